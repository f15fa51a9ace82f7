//! One end of the race: a process in one of the namespaces. Orders come on its standard input, answers go to its standard
//! output, a line of JSON each. It ends when its input does, so also when the race is killed.

use std::io::{BufRead as _, Write as _};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use longhaul::with_sources;
use serde::Serialize;

use super::end_error::EndError;
use super::ends;
use super::orders::{Contact, Order, Outcome, Work};
use super::prepared::End;
use super::tally::Tally;
use crate::clock::now;

/// An end, and what it was made for.
type Prepared = (Box<dyn End>, Work, Arc<Tally>);

/// Runs an end until its input ends.
pub fn run_end() {
    let (sender, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        // Threads of this end may be anywhere; nobody waits for them.
        std::process::exit(0);
    });
    let mut prepared: Option<Prepared> = None;
    for line in orders {
        let Ok(order) = serde_json::from_str::<Order>(&line) else { return };
        match order {
            Order::Receive(work) => answer(&receive(work, &mut prepared)),
            Order::Send(work, contact) => answer(&send(work, &contact, &mut prepared)),
            Order::Run { start, until } => {
                let [start, until] = [start, until].map(Duration::from_nanos);
                answer(&run(prepared.as_mut(), start, until));
            }
        }
    }
}

fn receive(work: Work, prepared: &mut Option<Prepared>) -> Result<Contact, EndError> {
    let tally = Arc::new(Tally::default());
    let (contact, end) = ends::receiver(&work, &tally)?;
    *prepared = Some((end, work, tally));
    Ok(contact)
}

fn send(work: Work, contact: &Contact, prepared: &mut Option<Prepared>) -> Result<(), EndError> {
    let end = ends::sender(&work, contact)?;
    *prepared = Some((end, work, Arc::default()));
    Ok(())
}

fn run(prepared: Option<&mut Prepared>, start: Duration, until: Duration) -> Result<Outcome, EndError> {
    let (end, work, tally) = prepared.ok_or(EndError::Unprepared)?;
    end.start(start, until, tally)?;
    // An end that is ready too late begins then.
    let begun = start.max(now());
    let [times, completions] = tally.wait_until(until)?;
    let whole_bytes = tally.meter.whole_bytes(work.message_bytes as u64);
    // This thread wakes a moment after the end of the row, and bytes go on arriving.
    let [begun, ended] = [begun, now()].map(|at| at.as_nanos() as u64);
    Ok(Outcome { begun, ended, whole_bytes, times, completions, counters: end.counters() })
}

fn answer<T: Serialize>(answer: &Result<T, EndError>) {
    // What is missing is no failure.
    let answer = answer.as_ref().map_err(|error| (matches!(error, EndError::Missing(_)), with_sources(error)));
    let line = serde_json::to_string(&answer).unwrap_or_default();
    // If nobody reads it, the input ends too.
    let _ = writeln!(std::io::stdout(), "{line}");
}
