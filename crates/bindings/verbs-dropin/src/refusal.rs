//! Why a device is not opened: a text for people, and a number for programs.

use std::io;

use longhaul_port_broker::{LeaseError, Refusal as BrokerRefusal};
use longhaul_softnic_udp::OpenError;
use nix::errno::Errno;

/// Why a device was not opened.
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) errno: Errno,
}

pub(crate) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

pub(crate) fn refusal(error: &OpenError) -> Refusal {
    let mut text = error.to_string();
    let errno = match error {
        OpenError::PortTaken { .. } => {
            text.push_str("; or take another address: longhaul run -d ADDRESS, such as 127.0.0.2");
            // What programs know of a device that somebody else has.
            Errno::EBUSY
        }
        OpenError::NotOurAddress { .. } | OpenError::UnusableAddress { .. } => Errno::EADDRNOTAVAIL,
        OpenError::System { source, .. } => {
            text = format!("{text}: {source}");
            errno_of(source)
        }
        _ => Errno::EINVAL,
    };
    Refusal { text, errno }
}

pub(crate) fn refused(error: &LeaseError) -> Refusal {
    let errno = match error {
        LeaseError::Descriptors => Errno::EMFILE,
        LeaseError::Refused { refusal, .. } => match refusal {
            BrokerRefusal::NotOurAddress => Errno::EADDRNOTAVAIL,
            BrokerRefusal::System(errno) => *errno,
            // What programs know of a device that somebody else has.
            _ => Errno::EBUSY,
        },
        _ => Errno::EIO,
    };
    let mut text = error.to_string();
    if errno == Errno::EBUSY {
        text.push_str(" (longhaul run -d ADDRESS)");
    }
    Refusal { text, errno }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn refusals_have_the_systems_number() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let number = |error: OpenError| refusal(&error).errno;
        assert_eq!(number(OpenError::PortTaken { address, port: 4791 }), Errno::EBUSY);
        assert_eq!(number(OpenError::NotOurAddress { address }), Errno::EADDRNOTAVAIL);
        let source = io::Error::from_raw_os_error(Errno::EMFILE as i32);
        assert_eq!(number(OpenError::System { what: "open a socket", address, source }), Errno::EMFILE);
    }

    #[test]
    fn the_brokers_refusals_say_what_to_do() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let refused = |refusal| refused(&LeaseError::Refused { address, refusal });
        let full = refused(BrokerRefusal::Full);
        assert_eq!(full.errno, Errno::EBUSY);
        for part in ["63", "4791", "192.0.2.1", "limit", "longhaul run -d"] {
            assert!(full.text.contains(part), "{}", full.text);
        }
        assert_eq!(refused(BrokerRefusal::Orphaned).errno, Errno::EBUSY);
        assert_eq!(refused(BrokerRefusal::NotOurAddress).errno, Errno::EADDRNOTAVAIL);
        assert_eq!(refused(BrokerRefusal::System(Errno::ENFILE)).errno, Errno::ENFILE);
        let few = super::refused(&LeaseError::Descriptors);
        assert!(few.errno == Errno::EMFILE && few.text.contains("ulimit -n"), "{}", few.text);
    }
}
