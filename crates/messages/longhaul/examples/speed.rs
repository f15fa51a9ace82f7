//! How fast the library is on this host's loopback interface:
//! `cargo run --release -p longhaul --example speed [SCHEME]`. Both ends are in this process, each with a softnic of
//! its own.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use longhaul::{Connection, Listener, Options, connect};

const LARGE_BYTES: usize = 16 << 20;
const TIME: Duration = Duration::from_millis(1000);

fn main() -> Result<(), Box<dyn Error>> {
    let scheme = std::env::args().nth(1).unwrap_or("sr:nack".to_owned());
    let options = Options::with_scheme(&scheme)?;
    let listener = Listener::bind("127.0.0.1:0", "softnic", &options)?;
    let connecting = connect(listener.local_address(), "softnic", &options);
    let (one, other) = (Arc::new(connecting.wait()?), Arc::new(listener.accept().wait()?));

    let half_trips = ping_pong(&one, &other)?;
    let at = |share: usize| half_trips[(half_trips.len() - 1) * share / 100];
    println!("{scheme}: 1 byte there: {:?} at best, {:?} median, {:?} p99", at(0), at(50), at(99));
    println!("{scheme}: 16 MiB messages: {:.2} Gbit/s", stream(&one, &other)?);
    Ok(())
}

/// Half of each round trip of a byte, sorted.
fn ping_pong(one: &Connection, other: &Arc<Connection>) -> Result<Vec<Duration>, Box<dyn Error>> {
    let echo = thread::spawn({
        let other = other.clone();
        move || {
            let mut next = other.receive(1);
            while let Ok(message) = next.wait() {
                next = other.receive(1);
                // The last one is a 0.
                if message.bytes() == [0] || other.write(message.bytes()).wait().is_err() {
                    break;
                }
            }
        }
    });
    let mut half_trips = Vec::new();
    let mut echoed = one.receive(1);
    let begun = Instant::now();
    while begun.elapsed() < TIME {
        let sent = Instant::now();
        let writing = one.write([1]);
        echoed.wait()?;
        half_trips.push(sent.elapsed() / 2);
        echoed = one.receive(1);
        writing.wait()?;
    }
    one.write([0]).wait()?;
    echo.join().map_err(|_| "the echo has failed")?;
    half_trips.sort();
    // Each end has a receive open still; the next messages would go there.
    other.write([2]).wait()?;
    one.write([2]).wait()?;
    Ok(half_trips)
}

/// Gigabits of payload a second, several messages at a time.
fn stream(one: &Connection, other: &Connection) -> Result<f64, Box<dyn Error>> {
    let source = one.register(vec![7; LARGE_BYTES])?;
    let target = other.register(vec![0; 4 * LARGE_BYTES])?;
    let place = |index: usize| (index % 4) * LARGE_BYTES..(index % 4 + 1) * LARGE_BYTES;
    let mut under_way = std::collections::VecDeque::new();
    let (mut next, mut done, begun) = (0, 0_u64, Instant::now());
    while begun.elapsed() < TIME || !under_way.is_empty() {
        while under_way.len() < 4 && begun.elapsed() < TIME {
            let receiving = other.receive_into(&target, place(next));
            under_way.push_back((receiving, one.write_from(&source, 0..LARGE_BYTES)));
            next += 1;
        }
        if let Some((receiving, writing)) = under_way.pop_front() {
            writing.wait()?;
            receiving.wait()?;
            done += 1;
        }
    }
    Ok((done * LARGE_BYTES as u64 * 8) as f64 / begun.elapsed().as_secs_f64() / 1e9)
}
