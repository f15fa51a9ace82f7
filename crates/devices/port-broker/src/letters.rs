//! What a process and the broker say to each other: a request and an answer of a fixed length.

use std::net::{IpAddr, Ipv6Addr};

use nix::errno::Errno;

/// Begins every letter; the last byte is the version.
const MAGIC: [u8; 4] = *b"LHB\x01";

pub(crate) const REQUEST_BYTES: usize = 24;
pub(crate) const ANSWER_BYTES: usize = 12;

/// Why a process gets no part of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// All parts are taken.
    Full,
    /// Somebody else has the port.
    Taken,
    /// Processes of this user have the port whose broker was killed.
    Orphaned,
    /// The broker has sockets at as many addresses as it may.
    TooManyAddresses,
    /// No device can be at this address.
    NotOurAddress,
    /// The request is none.
    Malformed,
    /// A system call of the broker failed.
    System(Errno),
}

/// Ask for a part of an address.
pub(crate) fn request(address: IpAddr) -> [u8; REQUEST_BYTES] {
    let mut letter = [0; REQUEST_BYTES];
    letter[..4].copy_from_slice(&MAGIC);
    letter[4] = if address.is_ipv4() { 4 } else { 6 };
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    letter[8..].copy_from_slice(&octets);
    letter
}

/// The address that a request is about; `None` if it is none.
pub(crate) fn requested(letter: &[u8]) -> Option<IpAddr> {
    let letter: &[u8; REQUEST_BYTES] = letter.try_into().ok()?;
    let (octets, family) = (<[u8; 16]>::try_from(&letter[8..]).ok()?, letter[4]);
    let v6 = Ipv6Addr::from(octets);
    if letter[..4] != MAGIC || letter[5..8] != [0; 3] {
        return None;
    }
    match (family, v6.to_ipv4_mapped()) {
        (4, Some(v4)) => Some(v4.into()),
        (6, None) => Some(v6.into()),
        _ => None,
    }
}

/// Tell a process which part it has, or why it has none.
pub(crate) fn answer(result: Result<u8, Refusal>) -> [u8; ANSWER_BYTES] {
    let (status, value) = match result {
        Ok(part) => (0, u32::from(part)),
        Err(Refusal::Full) => (1, 0),
        Err(Refusal::Taken) => (2, 0),
        Err(Refusal::Orphaned) => (3, 0),
        Err(Refusal::TooManyAddresses) => (4, 0),
        Err(Refusal::NotOurAddress) => (5, 0),
        Err(Refusal::Malformed) => (6, 0),
        Err(Refusal::System(errno)) => (7, errno as u32),
    };
    let mut letter = [0; ANSWER_BYTES];
    letter[..4].copy_from_slice(&MAGIC);
    letter[4] = status;
    letter[8..].copy_from_slice(&value.to_le_bytes());
    letter
}

/// What an answer says; `None` if it is none.
pub(crate) fn answered(letter: &[u8]) -> Option<Result<u8, Refusal>> {
    let letter: &[u8; ANSWER_BYTES] = letter.try_into().ok()?;
    let value = u32::from_le_bytes(letter[8..].try_into().ok()?);
    if letter[..4] != MAGIC || letter[5..8] != [0; 3] {
        return None;
    }
    Some(match letter[4] {
        0 => Ok(u8::try_from(value).ok().filter(|part| (1..crate::parts::PARTS).contains(part))?),
        1 => Err(Refusal::Full),
        2 => Err(Refusal::Taken),
        3 => Err(Refusal::Orphaned),
        4 => Err(Refusal::TooManyAddresses),
        5 => Err(Refusal::NotOurAddress),
        6 => Err(Refusal::Malformed),
        7 => Err(Refusal::System(Errno::from_raw(i32::try_from(value).ok()?))),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_say_what_was_written() {
        for text in ["127.0.0.1", "255.1.2.3", "::1", "fd00::2"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(requested(&request(address)), Some(address));
        }
        let refusals = [
            Refusal::Full,
            Refusal::Taken,
            Refusal::Orphaned,
            Refusal::TooManyAddresses,
            Refusal::NotOurAddress,
            Refusal::Malformed,
            Refusal::System(Errno::EMFILE),
        ];
        for result in refusals.map(Err).into_iter().chain([Ok(1), Ok(63)]) {
            assert_eq!(answered(&answer(result)), Some(result));
        }
    }

    #[test]
    fn everything_else_is_no_letter() {
        let good = request("127.0.0.1".parse().unwrap());
        assert_eq!(requested(&good[..23]), None);
        assert_eq!(requested(&[&good[..], &[0]].concat()), None);
        for index in 0..8 {
            let mut bad = good;
            bad[index] ^= 1;
            assert_eq!(requested(&bad), None, "byte {index}");
        }
        assert_eq!(requested(&request("::ffff:127.0.0.1".parse().unwrap())), None, "there is one way to say it");
        let good = answer(Ok(5));
        for (index, value) in [(0, 0), (3, 2), (4, 8), (5, 1), (8, 0), (8, 64), (9, 1)] {
            let mut bad = good;
            bad[index] = value;
            assert_eq!(answered(&bad), None, "byte {index} is {value}");
        }
    }
}
