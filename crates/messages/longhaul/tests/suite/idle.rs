//! A connection on which nothing happens costs nothing. Alone in its process, so that only it is measured.

use crate::ends;

use std::time::Duration;

use ends::pair;
use longhaul::Options;

/// Hundredths of a second that this process has used.
fn used() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc is mounted");
    // After the name, which is in brackets, user and system time are the 12th and 13th.
    let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
    after_name.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn an_idle_connection_sleeps() {
    let (one, other) = pair(&Options::default());
    let receiving = other.receive(100);
    // Once around, so that everything has been in use.
    one.write("first").wait().expect("it is written");
    receiving.wait().expect("it comes");
    let (waiting, unheard) = (other.receive(100), one.receive(100));
    std::thread::sleep(Duration::from_millis(200));
    let before = used();
    std::thread::sleep(Duration::from_secs(1));
    let ticks = used() - before;
    assert!(ticks <= 20, "{ticks} hundredths of a second of work in a second without any");
    one.write("second").wait().expect("it is written");
    waiting.wait().expect("it comes");
    drop(unheard);
}
