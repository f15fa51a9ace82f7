//! The options of `longhaul interop server` and `client`.

use std::net::{IpAddr, TcpStream};

use longhaul_interop::{ClientOptions, Connection, End, Operation, ReliableOptions, Size};
use longhaul_perf::{DeviceChoice, OpenedDevice, SOFTNIC, Towards, meeting, random_number};
use longhaul_scheme_testing::end_to_end::scheme_by_name;
use longhaul_softnic_udp::{UdpPortChoice, path};
use longhaul_verbs::Mtu;

use crate::device_report;
use crate::perf::mtu;
use crate::softnic_options::SoftnicOptions;
use crate::stop::Stop;

/// The TCP port of the exchange: the one after perf's.
pub(crate) const PORT: u16 = 18516;
/// What a guest of a virtual machine without hardware support takes, with room to spare: unreliable transports lose the
/// rest.
const CAREFUL_UNRELIABLE_MEGABITS: f64 = 80.0;
/// RC recovers, but a sender that outruns the receiver spends its time retransmitting.
const CAREFUL_RELIABLE_MEGABITS: f64 = 160.0;
/// On one host unreliable transports lose what does not fit a socket's buffer while its owner has no processor.
const LOCAL_UNRELIABLE_MEGABITS: f64 = 1000.0;
/// Acknowledgement time-outs on one host, and between hosts of which one may be slow: 67 ms and 268 ms.
const TIMEOUT_LOCAL: u8 = 14;
const TIMEOUT_REMOTE: u8 = 16;
/// 1.07 s, seven times: a dead peer is given up after some seconds, a slow one is not.
const TIMEOUT_UNTIL_DEATH: u8 = 18;

/// Stands for every scheme of the suite.
const ALL_SCHEMES: &str = "all";

/// Options of both ends.
#[derive(Debug, clap::Args)]
pub(crate) struct EndOptions {
    /// TCP port of the exchange
    #[arg(short, long, value_name = "PORT", default_value_t = PORT)]
    pub(crate) port: u16,

    /// The device to use: `softnic`, `softnic:ADDRESS`, or a libibverbs device such as `rxe0`; `longhaul devices` lists
    /// them
    #[arg(short = 'd', long, value_name = "DEVICE", default_value = SOFTNIC)]
    device: String,

    /// Address of the device to use [default: the one that the TCP connection uses]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,

    /// GID table index to use [default: the one that fits the peer]
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    gid_index: Option<u8>,

    #[command(flatten)]
    softnic: SoftnicOptions,

    /// Print one line of JSON instead of a line for each check
    #[arg(long)]
    pub(crate) json: bool,
}

impl EndOptions {
    /// Says what is wrong, before anything is opened or anybody is connected to.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        let choice = self.choice()?;
        self.softnic.check(&choice, &self.device)?;
        self.softnic.check_without_messages()?;
        Ok(choice.check()?)
    }

    /// The device that the user wants.
    pub(crate) fn choice(&self) -> Result<DeviceChoice, Stop> {
        Ok(DeviceChoice::parse(&self.device, self.address.as_slice())?)
    }

    /// Opens the device towards the other end of a TCP connection.
    pub(crate) fn open(&self, stream: &TcpStream, is_client: bool) -> Result<(OpenedDevice, End), Stop> {
        let (local, peer) = meeting::addresses(stream)?;
        let towards = Towards { local, peer, gid_index: self.gid_index };
        let choice = self.choice()?;
        // At one address only one of two softnics can have RoCE's own port; it is the server, which is there first.
        let udp_port = match is_client && choice.address_towards(towards) == Some(peer) {
            true => UdpPortChoice::Free,
            false => UdpPortChoice::RoceOrFree,
        };
        let opened = OpenedDevice::open(&choice, towards, self.softnic.settings()?.udp_config(udp_port)?)?;
        device_report::warnings(&opened);
        let end = End {
            device: opened.verbs(),
            description: opened.describe().to_owned(),
            address: opened.address,
            gid_index: opened.gid_index,
            port: opened.port,
            udp_port: opened.udp_port,
        };
        Ok((opened, end))
    }
}

/// Wait for clients and check what they send
///
/// The client decides what is checked.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArguments {
    #[command(flatten)]
    pub(crate) end: EndOptions,

    /// Exit after one client
    #[arg(long)]
    pub(crate) once: bool,

    /// Wait for a client with --until-death, pass only if it dies and this end gets the errors it must get, then exit
    #[arg(long)]
    pub(crate) until_death: bool,
}

/// Run operations against a server and check everything at both ends
///
/// Each check is one operation with one message size, on its own queue pair. It verifies every byte, the guard bytes
/// around each buffer, every completion, and their order.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientArguments {
    /// Host that runs the server
    pub(crate) host: String,

    #[command(flatten)]
    pub(crate) end: EndOptions,

    /// Connection type: RC, UC or UD
    #[arg(short, long, default_value = "RC", value_parser = connection)]
    pub(crate) connection: Connection,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that both devices support]
    #[arg(short, long, value_name = "BYTES", value_parser = mtu)]
    mtu: Option<Mtu>,

    /// Message sizes, in bytes (4096, 64KiB) or relative to the MTU (mtu-1)
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "0,1,mtu-1,mtu,mtu+1")]
    sizes: Vec<Size>,

    /// Operations per check
    #[arg(long, value_name = "NUMBER", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    operations: u32,

    /// One more message size (not on UD)
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = longhaul_units::bytes_within::<u32>(0..=1 << 28))]
    large: u32,

    /// Operations per check of the --large size; 0 skips it
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(..=1 << 16))]
    large_operations: u32,

    /// Run only these operations: send, send-immediate, write, write-immediate, read, compare-and-swap, fetch-and-add
    #[arg(long, value_name = "OPERATIONS", value_delimiter = ',', value_parser = operation)]
    only: Vec<Operation>,

    /// Send at most this many Mbit/s; 0 is unlimited [default: to this host 0 on RC, 1000 on UC and UD; to another host
    /// 160 on RC, 80 on UC and UD]
    #[arg(long, value_name = "MBITS", value_parser = megabits)]
    rate: Option<f64>,

    /// RC: acknowledgement timeout, 4.096 µs · 2^N [default: 14 to this host, 16 to another host, 18 with
    /// --until-death]
    #[arg(short = 'u', long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=31))]
    timeout: Option<u8>,

    /// Instead of operations, send messages with this reliability scheme over an unreliable connection, in both
    /// directions: sr:rto, sr:nack, ec:mds:K,M, ec:xor:K,M, twice, or `all` for every scheme of the end-to-end suite;
    /// repeatable
    #[arg(long = "scheme", value_name = "NAME", conflicts_with_all = ["until_death", "only", "connection"], value_parser = scheme)]
    schemes: Vec<String>,

    /// With --scheme: message sizes
    #[arg(long, value_name = "BYTES", value_delimiter = ',', requires = "schemes", default_value = "0,1,4095,4096,4097,65536,1048576,4194304",
          value_parser = longhaul_units::bytes_within::<u32>(0..=1 << 27))]
    message_sizes: Vec<u32>,

    /// With --scheme: number of messages of each size, in each direction
    #[arg(long, value_name = "NUMBER", requires = "schemes", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    messages: u32,

    /// Instead of checks, post RC WRITEs until the server dies; pass if the errors after that are the right ones
    #[arg(long)]
    pub(crate) until_death: bool,

    /// With --until-death: the server writes too, so that it notices when the client dies
    #[arg(long, requires = "until_death")]
    pub(crate) from_server: bool,
}

impl ClientArguments {
    /// Says what is wrong, before anything is opened.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        self.end.check()?;
        let impossible = self.only.iter().find(|operation| !operation.is_possible(self.connection));
        if let Some(operation) = impossible {
            let (operation, connection) = (operation.name(), self.connection.name());
            return Err(Stop::Usage(format!(
                "--only {operation}: {connection} does not support it; leave it out or use -c RC"
            )));
        }
        if self.until_death && self.connection != Connection::Rc {
            return Err(Stop::Usage(
                "--until-death needs RC, because UC and UD do not notice that a peer has died; use -c RC".to_owned(),
            ));
        }
        Ok(())
    }

    /// Whether messages are to be sent instead of operations.
    pub(crate) fn is_reliable(&self) -> bool {
        !self.schemes.is_empty()
    }

    /// What to send with reliability schemes, if that is what the user wants.
    pub(crate) fn reliable_options(&self) -> Option<ReliableOptions> {
        let is_all = self.schemes.iter().any(|name| name == ALL_SCHEMES);
        self.is_reliable().then(|| ReliableOptions {
            schemes: if is_all { Vec::new() } else { self.schemes.clone() },
            sizes: self.message_sizes.clone(),
            messages: self.messages,
        })
    }

    /// What the client is to do with a server there.
    pub(crate) fn options(&self, peer: IpAddr) -> Result<ClientOptions, Stop> {
        let is_local = path::is_of_this_host(peer);
        let careful = match (self.connection, is_local) {
            (Connection::Rc, true) => 0.0,
            (Connection::Rc, false) => CAREFUL_RELIABLE_MEGABITS,
            (Connection::Uc | Connection::Ud, true) => LOCAL_UNRELIABLE_MEGABITS,
            (Connection::Uc | Connection::Ud, false) => CAREFUL_UNRELIABLE_MEGABITS,
        };
        let megabits = self.rate.unwrap_or(careful);
        let timeout = match self.timeout {
            Some(timeout) => timeout,
            None if self.until_death => TIMEOUT_UNTIL_DEATH,
            None if is_local => TIMEOUT_LOCAL,
            None => TIMEOUT_REMOTE,
        };
        Ok(ClientOptions {
            // What messages are sent over.
            connection: if self.is_reliable() { Connection::Uc } else { self.connection },
            mtu: self.mtu,
            sizes: self.sizes.clone(),
            operations: self.operations,
            large_bytes: self.large,
            large_operations: self.large_operations,
            only: if self.only.is_empty() { Operation::ALL.to_vec() } else { self.only.clone() },
            rate_bits_per_second: (megabits > 0.0).then_some((megabits * 1e6) as u64),
            timeout,
            seed: random_number()?,
        })
    }
}

fn connection(text: &str) -> Result<Connection, String> {
    let named = Connection::ALL.into_iter().find(|connection| connection.name().eq_ignore_ascii_case(text));
    named.ok_or_else(|| format!("expected RC, UC or UD, got \"{text}\""))
}

fn scheme(name: &str) -> Result<String, String> {
    match name {
        ALL_SCHEMES => Ok(name.to_owned()),
        _ => scheme_by_name(name).map(|_| name.to_owned()).map_err(|error| error.to_string()),
    }
}

fn operation(text: &str) -> Result<Operation, String> {
    let names = Operation::ALL.map(Operation::name).join(", ");
    let named = Operation::ALL.into_iter().find(|operation| operation.name() == text);
    named.ok_or_else(|| format!("expected one of {names}, got \"{text}\""))
}

fn megabits(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate == 0.0 || (0.001..=1e8).contains(&rate) => Ok(rate),
        _ => Err("expected Mbit/s, between 0.001 and 100000000, or 0 for unlimited".to_owned()),
    }
}

fn size(text: &str) -> Result<Size, String> {
    text.parse().or_else(|error| longhaul_units::bytes_within(0..=1 << 28)(text).map(Size::Bytes).map_err(|_| error))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        client: ClientArguments,
    }

    fn client(options: &[&str]) -> Result<ClientArguments, clap::Error> {
        Command::try_parse_from([&["interop", "host"], options].concat()).map(|command| command.client)
    }

    #[test]
    fn what_is_not_said_follows_from_where_the_server_is() {
        let (here, there) = ("127.0.0.1".parse().expect("an address"), "198.51.100.7".parse().expect("an address"));
        let options = |arguments: &[&str], peer| client(arguments).expect("options").options(peer).expect("options");
        let rate = |arguments: &[&str], peer| options(arguments, peer).rate_bits_per_second;
        assert_eq!((rate(&[], here), rate(&["-c", "UC"], here)), (None, Some(1_000_000_000)));
        assert_eq!(rate(&[], there), Some(160_000_000));
        assert_eq!(rate(&["-c", "uc"], there), Some(80_000_000));
        assert_eq!((rate(&["--rate", "0"], there), rate(&["--rate", "2.5"], here)), (None, Some(2_500_000)));
        let timeout = |arguments: &[&str], peer| options(arguments, peer).timeout;
        assert_eq!((timeout(&[], here), timeout(&[], there), timeout(&["--until-death"], there)), (14, 16, 18));
        assert_eq!(options(&[], here).sizes, Size::DEFAULT);
        assert_eq!(options(&[], here).only.len(), Operation::ALL.len());
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let error = |arguments: &[&str]| client(arguments).expect_err("not an option").to_string();
        assert!(error(&["-c", "XC"]).contains("RC, UC or UD"));
        assert!(error(&["-m", "1500"]).contains("1024, 2048"));
        assert!(error(&["--only", "sing"]).contains("fetch-and-add"));
        assert!(error(&["--sizes", "mtu*2"]).contains("mtu-1"));
        assert!(error(&["--from-server"]).contains("--until-death"));
        assert!(error(&["--scheme", "sr"]).contains("sr:rto, sr:nack"));
        assert!(error(&["--scheme", "all", "--only", "write"]).contains("--only"));
        assert!(error(&["--messages", "5"]).contains("--scheme"));
        let refused =
            |arguments: &[&str]| client(arguments).expect("options").check().expect_err("no sense").to_string();
        assert!(refused(&["-c", "UD", "--only", "write"]).contains("UD does not support it"));
        assert!(refused(&["-c", "UC", "--until-death"]).contains("needs RC"));
        assert!(refused(&["-d", "rxe0", "--impair", "loss=1%"]).contains("software RNIC"));
        assert!(refused(&["--impair", "loss=1ms"]).contains("share"));
    }
}
