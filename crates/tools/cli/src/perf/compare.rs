//! `longhaul perf compare`: both ends on this host, measured next to the limit.

mod report;

use indicatif::{ProgressBar, ProgressStyle};
use longhaul_perf::compare::{self, CompareEvent, CompareRequest, Comparison, Place, Subject};

use crate::stop::Stop;

/// Run both ends on this host and compare with bare UDP and TCP
///
/// The ends are two processes in two network namespaces joined by a veth; without root, in user namespaces; where
/// neither is allowed, on the loopback device, and the report says so. Throughput: bare UDP with segmentation offload
/// (the limit: same packet size, socket buffers and bytes per call, counted as payload that arrived), kernel TCP, UC
/// and RC WRITEs of 1 MiB through the software RNIC, and messages of 16 MiB through the library with selective repeat
/// (sdr-sr) and erasure coding (sdr-ec: parity on its own threads; sdr-ec-inline: on the threads that send and
/// receive). One-way latency: bare UDP datagrams, RC SENDs of 2 bytes and messages of 64 bytes through the library
/// (facade), polling, and both again with sleeping threads (rc_send_events, facade_sleeping). Each end cycles through
/// 128 MiB of buffers; UC and the schemes keep 3 MiB in flight. The measurements are interleaved in short rounds, and
/// the median round counts.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Seconds per measurement, divided into rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = longhaul_units::seconds_within(0.1..=3600.0))]
    seconds: f64,

    /// MTU of the link in bytes; several, separated by commas, run one after another
    #[arg(long, value_name = "BYTES", default_value = "4200", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(576..=65_535))]
    mtu: Vec<u32>,

    /// Run only these measurements
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    only: Vec<Only>,

    /// Also measure RC WRITEs of 64 KiB on this many queue pairs at the same time
    #[arg(short, long = "qp", visible_alias = "qps", value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(2..=1 << 18))]
    queue_pairs: Option<u32>,

    /// Use IPv6
    #[arg(long)]
    ipv6: bool,

    /// Use the loopback device, even where namespaces could be made
    #[arg(long)]
    loopback: bool,

    /// Also print what each end spends on a packet and on a byte
    #[arg(long)]
    costs: bool,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `--only` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    BareUdp,
    Tcp,
    UcWrite,
    RcWrite,
    /// RC READs of 1 MiB; only when named
    RcRead,
    /// Messages of 16 MiB with selective repeat
    SdrSr,
    /// Messages of 16 MiB with erasure coding
    SdrEc,
    /// The same, coded on the threads that drive the connection
    SdrEcInline,
    Latency,
}

impl Arguments {
    fn subjects(&self) -> Vec<Subject> {
        let is_wanted = |subject: &Subject| {
            let name = match subject {
                Subject::BareUdp => Only::BareUdp,
                Subject::Tcp => Only::Tcp,
                Subject::UcWrite => Only::UcWrite,
                Subject::RcWrite => Only::RcWrite,
                Subject::RcWriteMany => return self.queue_pairs.is_some(),
                Subject::RcRead => return self.only.contains(&Only::RcRead),
                Subject::SdrSelectiveRepeat => Only::SdrSr,
                Subject::SdrErasure => Only::SdrEc,
                Subject::SdrErasureInline => Only::SdrEcInline,
                Subject::BareUdpPingPong
                | Subject::RcSendPingPong
                | Subject::RcSendEvents
                | Subject::FacadePingPong
                | Subject::FacadeSleeping => Only::Latency,
            };
            self.only.is_empty() || self.only.contains(&name)
        };
        Subject::BANDWIDTH.into_iter().chain(Subject::LATENCY).filter(is_wanted).collect()
    }
}

/// One end of a comparison, in its namespace; started by `compare`
#[derive(Debug, clap::Args)]
pub(crate) struct EndArguments {
    /// Where to live
    #[arg(long)]
    place: Place,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let request = CompareRequest {
        seconds: arguments.seconds,
        subjects: arguments.subjects(),
        queue_pairs: arguments.queue_pairs,
        ipv6: arguments.ipv6,
        loopback: arguments.loopback,
        end_command: &["perf", "end"],
    };
    let mut comparisons = Vec::new();
    for &mtu in &arguments.mtu {
        let comparison = compare(&request, mtu)?;
        if !arguments.json {
            let separator = if comparisons.is_empty() { "" } else { "\n" };
            print!("{separator}{}", report::to_table(&comparison, arguments.costs));
        }
        comparisons.push(comparison);
    }
    if arguments.json {
        println!("{}", report::to_json(&comparisons));
    }
    Ok(())
}

/// At one MTU, with progress on standard error, and only when that is a terminal.
fn compare(request: &CompareRequest, mtu: u32) -> Result<Comparison, Stop> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} rounds, {msg}").expect("a valid template");
    let progress = ProgressBar::new(0).with_style(style);
    let comparison = compare::compare(request, mtu, &mut |event| match event {
        CompareEvent::Note(note) => eprintln!("{note}"),
        CompareEvent::Prepared(rounds) => progress.set_length(rounds),
        CompareEvent::Begun(subject) => progress.set_message(format!("{} at MTU {mtu}", subject.name())),
        CompareEvent::Ended => progress.inc(1),
    })?;
    progress.finish_and_clear();
    Ok(comparison)
}

/// Runs an end.
pub(crate) fn run_end(arguments: &EndArguments) -> Result<(), Stop> {
    compare::run_end(arguments.place, |note| eprintln!("{note}"), || std::process::exit(0));
    Ok(())
}
