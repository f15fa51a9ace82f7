//! The options of `longhaul perf server` and `client`, with the names and defaults of perftest where it has them.

use std::net::IpAddr;
use std::time::Duration;

use longhaul_perf::{
    CHUNK_BYTES_MAX, ClientRequest, Congestion, Connection, DeviceChoice, EndSettings, MESSAGE_BYTES_MAX, Operation,
    PORT, Rate, SCHEME_DEPTH_MAX, SOFTNIC, Test,
};
use longhaul_reliable::{NamedScheme, SchemeList};
use longhaul_verbs::Mtu;

use super::fec_options::FecOptions;
use crate::softnic_options::SoftnicOptions;
use crate::stop::Stop;

/// The bytes of an atomic.
const ATOMIC_BYTES: u32 = 8;
/// perftest's send queue depth and acknowledgement timeout.
const TX_DEPTH: u32 = 128;
const TIMEOUT: u8 = 14;

/// Options of both ends of a measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct EndOptions {
    /// TCP port of the exchange
    #[arg(short, long, value_name = "PORT", default_value_t = PORT)]
    pub(crate) port: u16,

    /// The device to use: `softnic`, `softnic:ADDRESS`, or a libibverbs device such as `rxe0`; `longhaul devices` lists
    /// them
    #[arg(short = 'd', long = "ib-dev", visible_alias = "device", value_name = "DEVICE", default_value = SOFTNIC)]
    device: String,

    /// Local addresses of the device, its GID table [default: the one that the TCP connection uses]; of a libibverbs
    /// device, which of its addresses to use
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) address: Vec<IpAddr>,

    /// GID table index to use [default: the one that fits the peer]
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,

    #[command(flatten)]
    pub(crate) softnic: SoftnicOptions,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

impl EndOptions {
    /// Says what is wrong, before anything is opened.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        let choice = self.choice()?;
        self.softnic.check(&choice, &self.device)?;
        Ok(choice.check()?)
    }

    /// The device that the user wants.
    pub(crate) fn choice(&self) -> Result<DeviceChoice, Stop> {
        Ok(DeviceChoice::parse(&self.device, &self.address)?)
    }

    /// What this end is made with.
    pub(crate) fn settings(&self) -> Result<EndSettings, Stop> {
        let softnic = self.softnic.settings()?;
        Ok(EndSettings { port: self.port, device: self.choice()?, gid_index: self.gid_index, softnic })
    }
}

/// Wait for clients and run their measurements, one client at a time
///
/// Two terminals, no root: `longhaul perf server` in one, `longhaul perf client 127.0.0.1` in the other. The client
/// decides what is measured. Without --address the server listens on all addresses of the host, and the device uses
/// only the one that the client connected to.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArguments {
    #[command(flatten)]
    pub(crate) end: EndOptions,

    #[command(flatten)]
    pub(crate) fec: FecOptions,

    /// Exit after one client
    #[arg(long)]
    pub(crate) once: bool,
}

/// Measure against a server
///
/// The server gets its options from the client, so only the client needs any. Bandwidth of UC and UD counts what
/// arrived; the exit status is 1 if any message was lost. To another host, congestion control finds the rate of RC and
/// of messages with a scheme; UC and UD are paced at 1 Gbit/s by default.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientArguments {
    /// Host that runs the server
    pub(crate) host: String,

    /// What to measure
    #[arg(value_enum, default_value = "write_bw")]
    test: TestName,

    #[command(flatten)]
    pub(crate) end: EndOptions,

    /// Connection type [default: RC]
    #[arg(short, long, value_enum)]
    connection: Option<ConnectionType>,

    #[command(flatten)]
    pub(crate) fec: FecOptions,

    /// Send messages with a reliability scheme: sr:rto, sr:nack, ec:mds:K,M, ec:xor:K,M, be or be+ec:mds:K,M (write_bw
    /// and write_lat)
    ///
    /// sr is selective repeat, with timeouts or also with negative acknowledgements; ec sends M chunks of parity per K
    /// chunks of data, Reed-Solomon or XOR. A message is written packet by packet on unreliable connections, and the
    /// scheme makes sure that all of it arrives. The report shows the time from posting a message to its completion,
    /// retransmissions and duplicates. write_lat sends one message at a time. be is best effort: everything is sent
    /// once, with parity or without, and --deadline says when a message ends. With several schemes, such as
    /// sr:nack,ec:mds:32,8, messages of one connection take turns.
    #[arg(long, value_name = "SCHEME")]
    pub(crate) scheme: Option<SchemeList>,

    /// With --scheme: chunk size, a multiple of the MTU, such as 4KiB [default: that of the longhaul crate]
    #[arg(long, value_name = "SIZE", requires = "scheme", value_parser = chunk)]
    pub(crate) chunk: Option<u32>,

    /// With --scheme: send a 64-bit checksum with each message, which the server verifies, and measure its cost
    #[arg(long, requires = "scheme")]
    pub(crate) checksum: bool,

    /// With --scheme: each receive ends this long after it was posted, whole or not, such as 5ms
    ///
    /// Contents are always checked: the server reports which bytes were missing, verifies that those are zeros and all
    /// others are what was sent. One message is in flight at a time unless -r says more: receives that are posted ahead
    /// of their messages lose that time.
    #[arg(long, value_name = "TIME", requires = "scheme", value_parser = longhaul_units::duration)]
    pub(crate) deadline: Option<Duration>,

    /// Message size, such as 4096 or 64KiB [default: 65536 for bandwidth, 2 for latency; atomics are 8]
    #[arg(short, long, value_name = "BYTES", value_parser = longhaul_units::bytes_within::<u32>(1..=MESSAGE_BYTES_MAX.into()))]
    size: Option<u32>,

    /// Measure all sizes from 2 to 2^23 bytes
    #[arg(short, long, conflicts_with = "size")]
    all: bool,

    /// Messages per queue pair [default: 5000 for bandwidth, 1000 for latency]
    #[arg(short = 'n', long = "iters", value_name = "NUMBER", value_parser = longhaul_units::whole_number(1_u64..))]
    iterations: Option<u64>,

    /// Run for this many seconds instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iterations",
          value_parser = longhaul_units::whole_number(1_u32..))]
    pub(crate) duration: Option<u32>,

    /// Number of queue pairs (bandwidth only)
    #[arg(short, long = "qp", visible_alias = "qps", value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1 << 18))]
    pub(crate) queue_pairs: u32,

    /// Sleep until a completion arrives, at both ends, instead of polling (not with write_lat, which polls memory)
    #[arg(short, long)]
    pub(crate) events: bool,

    /// Send queue depth
    #[arg(short, long, value_name = "NUMBER", default_value_t = TX_DEPTH, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub(crate) tx_depth: u32,

    /// Receive queue depth [default: 512]; with --scheme, messages in flight and receives posted ahead [default: 64 MiB
    /// of messages, at most 128]
    #[arg(short, long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    rx_depth: Option<u32>,

    /// Outstanding READs and atomics per queue pair [default: as many as the device supports]
    #[arg(short, long, value_name = "NUMBER", value_parser = longhaul_units::whole_number(1_u8..))]
    outs: Option<u8>,

    /// The atomic to measure [default: FETCH_AND_ADD]
    #[arg(short = 'A', long = "atomic_type", visible_alias = "atomic-type", value_name = "TYPE", value_enum)]
    atomic_type: Option<AtomicType>,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that the path carries]
    #[arg(short, long, value_name = "BYTES", value_parser = mtu)]
    pub(crate) mtu: Option<Mtu>,

    /// Acknowledgement timeout, 4.096 µs · 2^N; 0 means never
    #[arg(short = 'u', long = "qp-timeout", value_name = "N", default_value_t = TIMEOUT, value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(crate) timeout: u8,

    /// Send at most this many Gbit/s, or a rate with its unit (500Mbps); 0 is unlimited [default: unlimited on this
    /// host, what congestion control finds off it, 1 for UC and UD]
    #[arg(long = "rate_limit", visible_aliases = ["rate-limit", "rate"], value_name = "GBITS", value_parser = longhaul_units::gbits)]
    rate_limit: Option<f64>,

    /// Report in Gbit/s instead of MiB/s
    #[arg(long = "report_gbits", visible_alias = "report-gbits")]
    pub(crate) report_gbits: bool,

    /// Fill messages with a pattern and check what arrives; exit with status 1 when it differs
    #[arg(long)]
    pub(crate) verify: bool,
}

/// What is measured, by the names that perftest users know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum TestName {
    /// Bandwidth of WRITEs
    WriteBw,
    /// Latency of WRITEs
    WriteLat,
    /// Bandwidth of SENDs
    SendBw,
    /// Latency of SENDs
    SendLat,
    /// Bandwidth of READs
    ReadBw,
    /// Latency of READs
    ReadLat,
    /// Bandwidth of atomics
    AtomicBw,
    /// Latency of atomics
    AtomicLat,
}

impl From<TestName> for Test {
    fn from(name: TestName) -> Test {
        match name {
            TestName::WriteBw => Test::WriteBw,
            TestName::WriteLat => Test::WriteLat,
            TestName::SendBw => Test::SendBw,
            TestName::SendLat => Test::SendLat,
            TestName::ReadBw => Test::ReadBw,
            TestName::ReadLat => Test::ReadLat,
            TestName::AtomicBw => Test::AtomicBw,
            TestName::AtomicLat => Test::AtomicLat,
        }
    }
}

/// The transport, by the name that perftest users know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ConnectionType {
    /// Reliable connection
    #[value(name = "RC", alias = "rc")]
    Rc,
    /// Unreliable connection: nothing is repeated
    #[value(name = "UC", alias = "uc")]
    Uc,
    /// Unreliable datagrams: single packets
    #[value(name = "UD", alias = "ud")]
    Ud,
}

impl From<ConnectionType> for Connection {
    fn from(name: ConnectionType) -> Connection {
        match name {
            ConnectionType::Rc => Connection::Rc,
            ConnectionType::Uc => Connection::Uc,
            ConnectionType::Ud => Connection::Ud,
        }
    }
}

/// The atomics, by the names that perftest users know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AtomicType {
    #[value(name = "CMP_AND_SWAP")]
    CompareAndSwap,
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
}

pub(crate) fn mtu(text: &str) -> Result<Mtu, String> {
    let fits = Mtu::ALL.into_iter().find(|mtu| mtu.byte_count().to_string() == text);
    fits.ok_or_else(|| format!("expected 256, 512, 1024, 2048 or 4096, got \"{text}\""))
}

fn chunk(text: &str) -> Result<u32, String> {
    let least = Mtu::Bytes256.byte_count();
    let fits = |bytes: &u32| (least..=CHUNK_BYTES_MAX).contains(bytes) && bytes.is_multiple_of(least);
    let bytes = longhaul_units::bytes(text).ok().and_then(|bytes| u32::try_from(bytes).ok()).filter(fits);
    bytes.ok_or_else(|| {
        let most = longhaul_units::bytes_text(CHUNK_BYTES_MAX.into());
        format!("expected a multiple of the MTU up to {most}, such as 4096, 4KiB or 64KiB, got \"{text}\"")
    })
}

impl ClientArguments {
    /// Combinations that mean nothing.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        // Before a device is looked for that could not do it anyway.
        self.fec.check(&self.end.choice()?)?;
        self.end.check()?;
        let usage = |text: &str| Err(Stop::Usage(text.to_owned()));
        let request = self.request()?;
        let operation = request.operation();
        if operation.is_answered() && !request.connection().is_reliable() {
            return usage("only RC has READs and atomics; leave -c out or use -c RC");
        }
        if request.connection() == Connection::Ud && operation == Operation::Write {
            return usage("UD has no WRITEs; use send_bw or send_lat, or another connection type with -c");
        }
        if self.outs.is_some() && !operation.is_answered() {
            return usage("-o is for READs and atomics, which alone have an answer that can be outstanding");
        }
        if self.atomic_type.is_some() && !request.test.is_atomic() {
            return usage("-A is for atomic_bw and atomic_lat");
        }
        if request.test.is_atomic() && (self.all || self.size.is_some_and(|size| size != ATOMIC_BYTES)) {
            return usage("atomics are of 8 bytes; leave -s and -a out");
        }
        if let Some(fec) = self.fec.fec
            && request.connection() == Connection::Ud
        {
            return Err(Stop::Usage(format!("--fec {fec}: UD's messages are single packets; use RC or UC")));
        }
        if request.test.is_latency() && self.queue_pairs > 1 {
            return Err(Stop::Usage("latency is measured on one queue pair; leave -q out".to_owned()));
        }
        if self.scheme.is_none() {
            self.end.softnic.check_without_messages()?;
        }
        self.check_scheme()
    }

    /// What does not fit a reliability scheme, and why.
    fn check_scheme(&self) -> Result<(), Stop> {
        let Some(schemes) = &self.scheme else { return Ok(()) };
        let test = Test::from(self.test);
        let other_test = format!("{} is not measured with a scheme; use write_bw or write_lat", test.name());
        let too_deep = format!("-r must be between 1 and {SCHEME_DEPTH_MAX}");
        let is_best_effort = schemes.iter().any(|scheme| matches!(scheme, NamedScheme::BestEffort(_)));
        let reasons = [
            (
                is_best_effort && self.deadline.is_none(),
                "it repeats nothing, so messages end by a time: give it with --deadline, such as --deadline 5ms",
            ),
            (self.deadline.is_some_and(|deadline| deadline.is_zero()), "--deadline must be more than 0"),
            (!matches!(test, Test::WriteBw | Test::WriteLat), other_test.as_str()),
            (self.connection.is_some(), "it uses unreliable connections of its own; leave -c out"),
            (
                self.end.softnic.congestion() == Some(Congestion::Off),
                "it always has congestion control to other hosts; use --congestion fixed:RATE",
            ),
            (
                self.fec.fec.is_some(),
                "its messages are single packets for the device, so --fec would send each twice; leave it out: ec:mds repairs losses itself",
            ),
            (self.all, "its receives are posted for one size of messages; leave -a out, and give the size with -s"),
            (self.queue_pairs > 1, "it has queue pairs of its own; leave -q out"),
            (self.events, "its ends poll and sleep as the library does; leave -e out"),
            (self.tx_depth != TX_DEPTH, "messages in flight are set with -r; leave -t out"),
            (self.rx_depth.is_some_and(|depth| depth > SCHEME_DEPTH_MAX), too_deep.as_str()),
            (self.timeout != TIMEOUT, "its time-outs follow from the round-trip time; leave -u out"),
        ];
        match reasons.into_iter().find(|(is_so, _)| *is_so) {
            Some((_, reason)) => Err(Stop::Usage(format!("--scheme {schemes}: {reason}"))),
            None => Ok(()),
        }
    }

    /// What to measure.
    pub(crate) fn request(&self) -> Result<ClientRequest, Stop> {
        Ok(ClientRequest {
            host: self.host.clone(),
            test: self.test.into(),
            end: self.fec.apply_to(self.end.settings()?),
            connection: self.connection.map(Connection::from),
            fec: self.fec.agreed(),
            schemes: self.scheme.clone(),
            chunk: self.chunk,
            checksum: self.checksum,
            deadline: self.deadline,
            size: self.size,
            all: self.all,
            iterations: self.iterations,
            duration: self.duration,
            queue_pairs: self.queue_pairs,
            events: self.events,
            tx_depth: self.tx_depth,
            rx_depth: self.rx_depth,
            outs: self.outs,
            compares_and_swaps: self.atomic_type == Some(AtomicType::CompareAndSwap),
            mtu: self.mtu,
            timeout: self.timeout,
            rate: match self.rate_limit {
                Some(0.0) => Rate::Unlimited,
                Some(gbits) => Rate::BitsPerSecond((gbits * 1e9) as u64),
                None => Rate::Careful,
            },
            verify: self.verify || self.deadline.is_some(),
        })
    }
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

    fn client(options: &[&str]) -> ClientArguments {
        Command::parse_from([&["client", "host"], options].concat()).client
    }

    fn request(options: &[&str]) -> ClientRequest {
        client(options).request().expect("a request")
    }

    #[test]
    fn defaults_are_perftests() {
        let bandwidth = request(&[]);
        assert_eq!((bandwidth.test, bandwidth.connection()), (Test::WriteBw, Connection::Rc));
        assert_eq!(bandwidth.sizes(Mtu::Bytes1024).unwrap(), [65_536]);
        assert_eq!((bandwidth.iterations(), bandwidth.tx_depth, bandwidth.rx_depth()), (5000, 128, 512));
        assert_eq!((bandwidth.end.port, bandwidth.timeout, bandwidth.queue_pairs), (18515, 14, 1));
        let latency = request(&["send_lat"]);
        assert_eq!(latency.sizes(Mtu::Bytes1024).unwrap(), [2]);
        assert_eq!(latency.iterations(), 1000);
    }

    #[test]
    fn all_sizes_are_powers_of_two() {
        let sizes = request(&["-a"]).sizes(Mtu::Bytes1024).unwrap();
        assert_eq!((sizes.first(), sizes.last(), sizes.len()), (Some(&2), Some(&(1 << 23)), 23));
    }

    #[test]
    fn datagrams_are_single_packets() {
        assert_eq!(request(&["send_bw", "-c", "UD"]).sizes(Mtu::Bytes2048).unwrap(), [2048]);
        assert_eq!(request(&["send_bw", "-c", "UD", "-a"]).sizes(Mtu::Bytes256).unwrap().last(), Some(&256));
        assert!(request(&["send_bw", "-c", "UD", "-s", "5000"]).sizes(Mtu::Bytes4096).is_err());
        assert!(client(&["write_bw", "-c", "UD"]).check().is_err());
    }

    #[test]
    fn reads_and_atomics_have_perftests_defaults() {
        let read = request(&["read_bw"]);
        assert_eq!((read.operation(), read.outstanding_reads()), (Operation::Read, u8::MAX));
        assert_eq!(read.sizes(Mtu::Bytes1024).unwrap(), [65_536]);
        assert_eq!(request(&["read_lat"]).sizes(Mtu::Bytes1024).unwrap(), [2]);
        for test in ["atomic_bw", "atomic_lat"] {
            let atomic = request(&[test]);
            assert_eq!((atomic.operation(), atomic.sizes(Mtu::Bytes1024).unwrap()), (Operation::FetchAndAdd, vec![8]));
            assert!(client(&[test, "-s", "8"]).check().is_ok());
            assert!(client(&[test, "-s", "16"]).check().is_err());
            assert!(client(&[test, "-a"]).check().is_err());
        }
        assert_eq!(request(&["atomic_bw", "-A", "CMP_AND_SWAP"]).operation(), Operation::CompareAndSwap);
        assert_eq!(request(&["atomic_bw", "--atomic_type", "FETCH_AND_ADD"]).operation(), Operation::FetchAndAdd);
        let few = request(&["read_bw", "-o", "3"]);
        assert_eq!((few.outstanding_reads(), few.outstanding_note(3)), (3, None));
        assert!(few.outstanding_note(2).is_some_and(|note| note.contains("at most 2")));
        assert_eq!(request(&["write_bw"]).outstanding_reads(), 0);
    }

    #[test]
    fn what_belongs_to_other_tests_is_refused() {
        let refused = |options: &[&str], word: &str| {
            let stop = client(options).check().unwrap_err();
            assert!(matches!(&stop, Stop::Usage(text) if text.contains(word)), "{options:?}: {stop}");
        };
        for test in ["read_bw", "read_lat", "atomic_bw", "atomic_lat"] {
            refused(&[test, "-c", "UC"], "only RC");
            refused(&[test, "-c", "UD"], "only RC");
        }
        refused(&["write_bw", "-o", "4"], "-o");
        refused(&["read_bw", "-A", "CMP_AND_SWAP"], "-A");
    }

    #[test]
    fn what_only_the_software_rnic_has_is_refused_elsewhere() {
        for option in [["--impair", "loss=1%"], ["--capture", "packets.pcapng"]] {
            let stop = client(&[&["-d", "rxe0"], &option[..]].concat()).check().unwrap_err();
            assert!(matches!(&stop, Stop::Usage(text) if text.contains(option[0]) && text.contains("rxe0")), "{stop}");
            assert!(client(&[&["-d", "softnic"], &option[..]].concat()).check().is_ok());
        }
    }

    #[test]
    fn what_does_not_fit_a_scheme_is_refused_with_the_reason() {
        let refused = |options: &[&str], word: &str| {
            let stop = client(&[&["--scheme", "sr:nack"], options].concat()).check().unwrap_err();
            assert!(matches!(&stop, Stop::Usage(text) if text.contains(word)), "{options:?}: {stop}");
        };
        refused(&["send_lat"], "send_lat");
        refused(&["-c", "RC"], "-c");
        refused(&["-a"], "-s");
        refused(&["-q", "2"], "-q");
        refused(&["-e"], "-e");
        refused(&["-t", "7"], "-t");
        refused(&["-r", "5000"], "4096");
        refused(&["-u", "7"], "-u");
        let fits =
            client(&["--scheme", "ec:mds:4,2", "-s", "100000", "-n", "3", "--verify", "--rate", "1", "-m", "1024"]);
        assert!(fits.check().is_ok());
        assert_eq!(fits.request().unwrap().connection(), Connection::Uc);
        let stop = client(&["--scheme", "be+ec:mds:8,2"]).check().unwrap_err();
        assert!(matches!(&stop, Stop::Usage(text) if text.contains("--deadline 5ms")), "{stop}");
        let bounded = client(&["--scheme", "be", "--deadline", "5ms"]);
        assert!(bounded.check().is_ok());
        let bounded = bounded.request().unwrap();
        assert_eq!((bounded.deadline, bounded.verify), (Some(Duration::from_millis(5)), true));
        refused(&["--deadline", "0ms"], "more than 0");
        assert!(Command::try_parse_from(["client", "host", "--deadline", "5ms"]).is_err(), "only with a scheme");
        let deep = client(&["write_lat", "--scheme", "sr:rto", "-r", "256", "--chunk", "8KiB"]);
        assert!(deep.check().is_ok());
        assert_eq!((deep.rx_depth, deep.chunk), (Some(256), Some(8192)));
        for wrong in ["0", "100", "4097", "2MiB", "big"] {
            let parsed = Command::try_parse_from(["client", "host", "--scheme", "sr:rto", "--chunk", wrong]);
            assert!(parsed.err().is_some_and(|error| error.to_string().contains("multiple of the MTU up to 1 MiB")));
        }
        assert!(Command::try_parse_from(["client", "host", "--chunk", "4KiB"]).is_err(), "only with a scheme");
        assert!(Command::try_parse_from(["client", "host", "--checksum"]).is_err(), "only with a scheme");
        let parsed = Command::try_parse_from(["client", "host", "--scheme", "sr:maybe"]);
        assert!(parsed.err().is_some_and(|error| error.to_string().contains("sr:rto")));
    }

    #[test]
    fn forward_error_correction_is_for_rc_and_uc_of_the_software_rnic() {
        let refused = |options: &[&str], word: &str| {
            let stop = client(&[&["--fec", "lowar:32,1"], options].concat()).check().unwrap_err();
            assert!(matches!(&stop, Stop::Usage(text) if text.contains(word)), "{options:?}: {stop}");
        };
        refused(&["send_bw", "-c", "UD"], "single packets");
        refused(&["-d", "rxe0"], "-d softnic");
        let fits = client(&["read_bw", "--fec", "lowar:mds:64,8"]);
        assert!(fits.check().is_ok());
        assert_eq!(fits.request().unwrap().fec.map(|fec| fec.to_string()).as_deref(), Some("lowar:mds:64,8"));
        let wrong = Command::try_parse_from(["client", "host", "--fec", "lowar:4,5"]);
        assert!(wrong.is_err_and(|error| error.to_string().contains("1 to 255 packets")));
        refused(&["--scheme", "sr:nack"], "single packets");
        let many = client(&["--fec", "lowar:mds:64,40"]).check().unwrap_err();
        assert!(matches!(&many, Stop::Usage(text) if text.contains("at most 32 repair packets")), "{many}");
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("64KiB", 65_536), ("1GB", 1_000_000_000), ("4096", 4096)] {
            assert_eq!(request(&["-s", text]).sizes(Mtu::Bytes1024).unwrap(), [bytes]);
        }
        let refused = |options: [&str; 2], word: &str| {
            let parsed = Command::try_parse_from([&["client", "host"], &options[..]].concat());
            assert!(parsed.is_err_and(|error| error.to_string().contains(word)), "{options:?}");
        };
        refused(["-s", "2GiB"], "expected 1 byte to 1 GiB");
        refused(["-n", "0"], "expected a whole number of at least 1");
        refused(["-D", "0"], "expected a whole number of at least 1");
    }

    #[test]
    fn rates_are_in_gigabits() {
        assert_eq!(request(&["--rate_limit", "2.5"]).rate, Rate::BitsPerSecond(2_500_000_000));
        assert_eq!(request(&["--rate", "10Gbps"]).rate, Rate::BitsPerSecond(10_000_000_000));
        assert_eq!(request(&["--rate_limit", "0"]).rate, Rate::Unlimited);
        assert_eq!(request(&[]).rate, Rate::Careful);
    }
}
