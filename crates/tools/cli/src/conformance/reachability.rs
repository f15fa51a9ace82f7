//! Whether datagrams pass between two addresses of this host.
//!
//! They do not where an interface is down or a firewall drops them. Sockets can be bound there all the same, so devices
//! open, and then each test of the suite waits for its time-outs: minutes of failures for one cause.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

/// Within one host a datagram takes microseconds, on a busy one milliseconds.
const LONGEST_FLIGHT: Duration = Duration::from_millis(500);
/// A host that is short of memory may drop one.
const ATTEMPTS: usize = 3;

/// Sends a datagram each way; says what is wrong and what to do when one does not arrive.
pub(super) fn check(addresses: [IpAddr; 2]) -> Result<(), String> {
    let [one, other] = addresses;
    if one.is_ipv4() != other.is_ipv4() {
        return Err(format!(
            "{one} and {other} cannot reach each other: use two IPv4 or two IPv6 addresses of this host"
        ));
    }
    let (Ok(first), Ok(second)) = (UdpSocket::bind((one, 0)), UdpSocket::bind((other, 0))) else {
        // Not an address of this host, for example: opening the device fails and says so.
        return Ok(());
    };
    for (sender, receiver, [from, to]) in [(&first, &second, [one, other]), (&second, &first, [other, one])] {
        pass(sender, receiver).map_err(|error| {
            let got = match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it did not arrive in time".to_owned(),
                _ => error.to_string(),
            };
            let interface = if from.is_loopback() && to.is_loopback() { "lo" } else { "INTERFACE" };
            format!(
                "a UDP datagram from {from} did not reach {to}: {got}; if the interface is down, \
                 `ip link set {interface} up`, otherwise look for a firewall; `longhaul devices` shows more"
            )
        })?;
    }
    Ok(())
}

/// Sends until one datagram has arrived.
fn pass(sender: &UdpSocket, receiver: &UdpSocket) -> io::Result<()> {
    // Connected, so that nobody else's datagram counts.
    sender.connect(receiver.local_addr()?)?;
    receiver.connect(sender.local_addr()?)?;
    receiver.set_read_timeout(Some(LONGEST_FLIGHT))?;
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        sender.send(b"longhaul")?;
        outcome = receiver.recv(&mut [0; 8]).map(drop);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn loopback_reaches_itself() {
        assert_eq!(check([address("127.0.0.1"), address("127.0.0.1")]), Ok(()));
        assert_eq!(check([address("127.0.0.1"), address("127.0.0.2")]), Ok(()));
    }

    #[test]
    fn addresses_of_two_families_do_not_reach_each_other() {
        let refused = check([address("127.0.0.1"), address("::1")]).expect_err("two families");
        assert!(refused.contains("127.0.0.1 and ::1"), "{refused}");
    }
}
