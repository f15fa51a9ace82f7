//! An end: does what the coordinator says, until its standard input ends.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::bare_udp;
use super::facade::Wait;
use super::measurement::{Buffers, Measurement, StopSign};
use super::namespace::{self, Place};
use super::orders::{Answer, Order, Role, Subject};
use super::{facade, scheme, softnic, tcp};
use crate::child::answer;
use crate::error::PerfError;

/// Runs an end at its place, until its standard input ends; then calls `gone`, on another thread, whatever this end is
/// just doing. `note` gets what people should know.
pub fn run_end(place: Place, note: fn(String), gone: impl FnOnce() + Send + 'static) {
    // First of all: a process with several threads cannot change its user namespace.
    let entered = namespace::enter(place);
    let stop = StopSign::default();
    let orders = read_orders(stop.clone(), gone);
    answer(&entered.map(|namespace| Answer::Started { process: std::process::id(), namespace }));
    let mut worker = Worker { measurements: BTreeMap::new(), buffers: Buffers::new(note), stop };
    while let Ok(order) = orders.recv() {
        answer(&worker.carry_out(order));
    }
}

/// Orders as they come in, except those to stop, which raise the sign at once.
fn read_orders(stop: StopSign, gone: impl FnOnce() + Send + 'static) -> Receiver<Order> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Order::Stop) => stop.set(true),
                Ok(order) => {
                    stop.set(false);
                    if sender.send(order).is_err() {
                        break;
                    }
                }
                Err(error) => {
                    answer::<Answer>(&Err(PerfError::failed(format!("an order that cannot be read: {line}"), error)));
                }
            }
        }
        gone();
    });
    receiver
}

struct Worker {
    measurements: BTreeMap<Subject, (Role, Box<dyn Measurement>)>,
    buffers: Buffers,
    stop: StopSign,
}

impl Worker {
    fn carry_out(&mut self, order: Order) -> Result<Answer, PerfError> {
        match order {
            Order::Network(link) => namespace::configure(&link).map(|()| Answer::Done),
            Order::Prepare(subject, settings) => {
                let measurement: Box<dyn Measurement> = match subject {
                    Subject::BareUdp => bare_udp::prepare(&settings, &mut self.buffers)?,
                    Subject::BareUdpPingPong => bare_udp::prepare_ping_pong(&settings)?,
                    Subject::Tcp => tcp::prepare(&settings, &mut self.buffers)?,
                    Subject::UcWrite
                    | Subject::RcWrite
                    | Subject::RcWriteMany
                    | Subject::RcRead
                    | Subject::RcSendPingPong
                    | Subject::RcSendEvents => softnic::prepare(subject, &settings, &mut self.buffers)?,
                    Subject::FacadePingPong => facade::prepare(Wait::Drives, &settings, &mut self.buffers)?,
                    Subject::FacadeSleeping => facade::prepare(Wait::Sleeps, &settings, &mut self.buffers)?,
                    Subject::SdrSelectiveRepeat | Subject::SdrErasure | Subject::SdrErasureInline => {
                        scheme::prepare(subject, &settings, &mut self.buffers)?
                    }
                };
                let contact = measurement.contact();
                self.measurements.insert(subject, (settings.role, measurement));
                Ok(Answer::Contact(contact))
            }
            Order::Connect(subject, peer) => self.measurement(subject)?.1.connect(&peer).map(|()| Answer::Done),
            Order::Run { subject, milliseconds } => {
                let stop = self.stop.clone();
                let (role, measurement) = self.measurement(subject)?;
                if *role == Role::Receiver {
                    answer(&Ok(Answer::Running));
                }
                let outcome = measurement.run(Duration::from_millis(milliseconds), &stop);
                if outcome.is_err() {
                    // The other half must not wait for what nobody receives.
                    self.measurements.remove(&subject);
                }
                outcome.map(Answer::Outcome)
            }
            Order::Stop => Ok(Answer::Done), // Never gets here: see `read_orders`.
        }
    }

    fn measurement(&mut self, subject: Subject) -> Result<&mut (Role, Box<dyn Measurement>), PerfError> {
        let not_prepared = || PerfError::Failed(format!("{} was not prepared", subject.name()));
        self.measurements.get_mut(&subject).ok_or_else(not_prepared)
    }
}
