//! What is to be checked: operations, sizes, and how often.

use longhaul_verbs::{Access, Capabilities, CompletionOperation, Mtu, Transport};
use serde::{Deserialize, Serialize};

/// The transport, by the name that everybody writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Connection {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

impl Connection {
    /// All of them.
    pub const ALL: [Connection; 3] = [Connection::Rc, Connection::Uc, Connection::Ud];

    /// In the words of verbs.
    pub const fn transport(self) -> Transport {
        match self {
            Connection::Rc => Transport::ReliableConnection,
            Connection::Uc => Transport::UnreliableConnection,
            Connection::Ud => Transport::UnreliableDatagram,
        }
    }

    /// `RC`, `UC` or `UD`.
    pub const fn name(self) -> &'static str {
        self.transport().abbreviation()
    }

    /// Bytes before a message in its receive: a datagram's global route header.
    pub(crate) const fn header_bytes(self) -> usize {
        match self {
            Connection::Ud => 40,
            Connection::Rc | Connection::Uc => 0,
        }
    }
}

/// What the client does to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Send into the server's receives.
    Send,
    /// The same, with 32 bits for the completion.
    SendImmediate,
    /// Write into the server's memory.
    Write,
    /// The same, with 32 bits for the completion of a receive.
    WriteImmediate,
    /// Read the server's memory.
    Read,
    /// Replace words of the server's memory if they are as expected; some are not, on purpose.
    CompareAndSwap,
    /// Add to words of the server's memory.
    FetchAndAdd,
}

impl Operation {
    /// All of them, in the order in which they are checked.
    pub const ALL: [Operation; 7] = [
        Operation::Send,
        Operation::SendImmediate,
        Operation::Write,
        Operation::WriteImmediate,
        Operation::Read,
        Operation::CompareAndSwap,
        Operation::FetchAndAdd,
    ];

    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Send => "send",
            Operation::SendImmediate => "send-immediate",
            Operation::Write => "write",
            Operation::WriteImmediate => "write-immediate",
            Operation::Read => "read",
            Operation::CompareAndSwap => "compare-and-swap",
            Operation::FetchAndAdd => "fetch-and-add",
        }
    }

    /// Whether the transport has it.
    pub const fn is_possible(self, connection: Connection) -> bool {
        match self {
            Operation::Send | Operation::SendImmediate => true,
            Operation::Write | Operation::WriteImmediate => !matches!(connection, Connection::Ud),
            Operation::Read | Operation::CompareAndSwap | Operation::FetchAndAdd => {
                matches!(connection, Connection::Rc)
            }
        }
    }

    /// What both devices need for it in addition to the transport.
    pub const fn capability(self) -> Capabilities {
        match self {
            Operation::Read => Capabilities::READ,
            Operation::CompareAndSwap | Operation::FetchAndAdd => Capabilities::ATOMICS,
            _ => Capabilities::empty(),
        }
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Operation::CompareAndSwap | Operation::FetchAndAdd)
    }

    /// Whether something comes back that the client has to check.
    pub(crate) const fn is_answered(self) -> bool {
        matches!(self, Operation::Read) || self.is_atomic()
    }

    pub(crate) const fn has_immediate(self) -> bool {
        matches!(self, Operation::SendImmediate | Operation::WriteImmediate)
    }

    /// Whether it puts its bytes where a receive says.
    pub(crate) const fn is_send(self) -> bool {
        matches!(self, Operation::Send | Operation::SendImmediate)
    }

    /// Whether it uses up one of the server's receives.
    pub(crate) const fn consumes_receive(self) -> bool {
        self.is_send() || matches!(self, Operation::WriteImmediate)
    }

    /// What the client's completion must say.
    pub(crate) const fn completion(self) -> CompletionOperation {
        match self {
            Operation::Send | Operation::SendImmediate => CompletionOperation::Send,
            Operation::Write | Operation::WriteImmediate => CompletionOperation::Write,
            Operation::Read => CompletionOperation::Read,
            Operation::CompareAndSwap => CompletionOperation::CompareAndSwap,
            Operation::FetchAndAdd => CompletionOperation::FetchAndAdd,
        }
    }

    /// What the completion of the server's receive must say.
    pub(crate) const fn receive_completion(self) -> CompletionOperation {
        match self {
            Operation::WriteImmediate => CompletionOperation::ReceiveWriteWithImmediate,
            _ => CompletionOperation::Receive,
        }
    }

    /// What the client may do with the server's memory.
    pub(crate) const fn remote_access(self) -> Access {
        match self {
            Operation::Send | Operation::SendImmediate => Access::empty(),
            Operation::Write | Operation::WriteImmediate => Access::REMOTE_WRITE,
            Operation::Read => Access::REMOTE_READ,
            Operation::CompareAndSwap | Operation::FetchAndAdd => Access::REMOTE_ATOMIC,
        }
    }
}

/// The size of a message, as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// This many bytes.
    Bytes(u32),
    /// A full packet, plus or minus this many bytes.
    Mtu(i32),
}

impl Size {
    /// Those that are checked unless others are given: none, one, and around a full packet.
    pub const DEFAULT: [Size; 5] = [Size::Bytes(0), Size::Bytes(1), Size::Mtu(-1), Size::Mtu(0), Size::Mtu(1)];

    /// Bytes, now that the MTU is known.
    pub const fn bytes(self, mtu: Mtu) -> u32 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Mtu(more) => mtu.byte_count().saturating_add_signed(more),
        }
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = |_| format!("expected a number of bytes, mtu, mtu-1 or mtu+1, got \"{text}\"");
        match text.to_ascii_lowercase().strip_prefix("mtu") {
            Some("") => Ok(Size::Mtu(0)),
            Some(more) => more.parse().map(Size::Mtu).map_err(wrong),
            None => text.parse().map(Size::Bytes).map_err(wrong),
        }
    }
}

/// One operation in one size, repeated, on a queue pair of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The transport.
    pub connection: Connection,
    /// The operation.
    pub operation: Operation,
    /// Bytes of each.
    pub bytes: u32,
    /// How many.
    pub operations: u32,
    /// Contents follow from it, so that what an earlier check left behind is seen.
    pub seed: u64,
}

impl Check {
    /// For example `rc/write/1025`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.connection.name().to_ascii_lowercase(), self.operation.name(), self.bytes)
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// The check's name.
    pub name: String,
    /// How many operations it had.
    pub operations: u32,
    /// Whether everything was as it must be.
    pub passed: bool,
    /// What was not, on which side.
    pub message: Option<String>,
}

/// The outcome of all checks.
#[derive(Clone, Debug)]
pub struct Summary {
    /// One after the other.
    pub checks: Vec<CheckResult>,
    /// Those that a device cannot take part in, with the reason.
    pub skipped: Vec<(String, String)>,
    /// The payload of a packet that was agreed on.
    pub mtu: Mtu,
    /// The client's device.
    pub client_device: String,
    /// The server's device.
    pub server_device: String,
}

impl Summary {
    /// How many passed, how many did not.
    pub fn counts(&self) -> (usize, usize) {
        let passed = self.checks.iter().filter(|check| check.passed).count();
        (passed, self.checks.len() - passed)
    }
}

/// What a list of checks is made from.
pub(crate) struct Wanted<'a> {
    pub(crate) connection: Connection,
    pub(crate) only: &'a [Operation],
    pub(crate) sizes: &'a [Size],
    pub(crate) operations: u32,
    pub(crate) large_bytes: u32,
    pub(crate) large_operations: u32,
    pub(crate) seed: u64,
}

/// Bytes of an atomic.
pub(crate) const ATOMIC_BYTES: u32 = 8;

/// All checks, in order. What the transport does not have, and datagrams of more than a packet, are left out.
pub(crate) fn checks(wanted: &Wanted<'_>, mtu: Mtu) -> Vec<Check> {
    let mut checks = Vec::new();
    let connection = wanted.connection;
    for operation in wanted.only.iter().copied().filter(|operation| operation.is_possible(connection)) {
        let mut sizes: Vec<(u32, u32)> = match operation.is_atomic() {
            true => vec![(ATOMIC_BYTES, wanted.operations)],
            false => wanted.sizes.iter().map(|size| (size.bytes(mtu), wanted.operations)).collect(),
        };
        // Long SENDs with immediate are long SENDs.
        if !operation.is_atomic() && (operation != Operation::SendImmediate || wanted.only.len() == 1) {
            sizes.push((wanted.large_bytes, wanted.large_operations));
        }
        for (bytes, operations) in sizes {
            let is_too_long = connection == Connection::Ud && bytes > mtu.byte_count();
            if operations > 0 && !is_too_long {
                let seed = wanted.seed.wrapping_add(checks.len() as u64);
                checks.push(Check { connection, operation, bytes, operations, seed });
            }
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(connection: Connection) -> Vec<String> {
        let wanted = Wanted {
            connection,
            only: &Operation::ALL,
            sizes: &Size::DEFAULT,
            operations: 500,
            large_bytes: 1 << 20,
            large_operations: 20,
            seed: 1,
        };
        checks(&wanted, Mtu::Bytes1024).iter().map(|check| format!("{} {}", check.name(), check.operations)).collect()
    }

    #[test]
    fn each_transport_is_asked_for_what_it_has() {
        let rc = names(Connection::Rc);
        assert_eq!(rc.len(), 5 * 6 - 1 + 2, "{rc:?}");
        assert!(rc.contains(&"rc/write-immediate/1025 500".to_owned()), "{rc:?}");
        assert!(rc.contains(&"rc/read/1048576 20".to_owned()), "{rc:?}");
        assert!(rc.contains(&"rc/compare-and-swap/8 500".to_owned()), "{rc:?}");
        let uc = names(Connection::Uc);
        assert_eq!(uc.len(), 4 * 6 - 1, "{uc:?}");
        let ud = names(Connection::Ud);
        assert_eq!(ud.len(), 2 * 4, "sends of up to a packet: {ud:?}");
        assert!(!ud.iter().any(|name| name.contains("1025")), "{ud:?}");
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let sizes: Vec<_> = ["0", "mtu-1", "mtu", "MTU+1", "17"].iter().map(|text| text.parse::<Size>()).collect();
        let expected = [Size::Bytes(0), Size::Mtu(-1), Size::Mtu(0), Size::Mtu(1), Size::Bytes(17)].map(Ok);
        assert_eq!(sizes, expected);
        for wrong in ["mtu*2", "", "-1", "one"] {
            assert!(wrong.parse::<Size>().is_err_and(|error| error.contains("mtu-1")), "{wrong}");
        }
    }
}
