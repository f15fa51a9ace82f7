//! `longhaul link run`: a link between two interfaces, until somebody ends it.

use longhaul_forward::offloads;
use longhaul_link::control::{ControlSocket, Kind};
use longhaul_link::{Ports, RunningLink};

use super::options::{New, stop_of};
use super::serve::{Described, Signals, serve};
use super::show;
use crate::stop::{self, Stop};

/// Put a link between two interfaces, until Ctrl-C
///
/// The interfaces are given to the link: all that arrives at one leaves by the other, so they should carry nothing else (one end each
/// of two veth pairs, for example). Frames must be as they are on a wire: where programs of this host send into the other ends, switch
/// off what those leave to hardware (ethtool -K INTERFACE tx off). Joining of received frames is switched off here.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The first end
    #[arg(value_name = "INTERFACE")]
    first: String,

    /// The second end
    #[arg(value_name = "INTERFACE")]
    second: String,

    /// The ends are taps: they are made, and the host's side of them is what programs use
    #[arg(long)]
    tap: bool,

    #[command(flatten)]
    new: New,

    /// Print counters as one line of JSON at the end
    #[arg(long)]
    json: bool,
}

/// What is likely not meant.
fn warn_about(ends: &[String; 2]) {
    for end in ends.iter().filter(|end| !offloads::is_up(end).unwrap_or(true)) {
        eprintln!("{end} is down: no frame passes until it is up (ip link set {end} up)");
    }
    if let [Ok(first), Ok(second)] = [offloads::mtu(&ends[0]), offloads::mtu(&ends[1])]
        && first != second
    {
        eprintln!("{} has MTU {first}, {} has {second}: longer packets do not pass", ends[0], ends[1]);
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    if arguments.new.settings.prints_help() {
        return Ok(());
    }
    let Arguments { first, second, .. } = arguments;
    let ends = [first.clone(), second.clone()];
    let ports = if arguments.tap { Ports::Taps(ends.clone()) } else { Ports::Interfaces(ends.clone()) };
    let (options, seed) = arguments.new.link(ports)?;
    let signals = Signals::wait_for_end()?;
    let control = ControlSocket::open(Kind::Link, &arguments.new.name)?;
    let link = RunningLink::start(&options).map_err(stop_of)?;
    let name = arguments.new.name.clone();
    eprintln!("link \"{name}\" between {first} and {second}, seed {seed}; Ctrl-C ends it");
    warn_about(&ends);
    if !link.has_priority() {
        eprintln!("without real-time priority (root has it), so that frames may leave late on a busy host");
    }
    let settings = arguments.new.settings.texts().map(|text| text.unwrap_or_default().to_owned());
    let counted = serve(link, Described { name, ends, seed, settings, namespaces: None }, control, &signals)?;
    stop::tell(arguments.json, || counted.clone(), || show::to_table(&counted), None)
}
