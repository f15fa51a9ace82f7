//! `longhaul gateway run`: a gateway between two interfaces, until somebody ends it.

use std::os::fd::AsFd as _;
use std::path::PathBuf;

use longhaul::with_sources;
use longhaul_forward::{ForwardError, offloads};
use longhaul_gateway::metrics::{self, Server};
use longhaul_gateway::settings::Settings;
use longhaul_gateway::{GatewayError, InterfaceError, RunningGateway, RunningState};
use longhaul_link::control::{ControlSocket, Kind, Request};
use longhaul_perf::random_number;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use serde_json::Value;

use super::status;
use crate::link::Signals;
use crate::stop::{self, Stop};

/// How often is looked whether the gateway has ended by itself.
const LOOK_MILLIS: u16 = 200;

/// Put a gateway between two interfaces, until Ctrl-C
///
/// The interfaces are given to the gateway: they must be up and should carry nothing of this host's own. They become ports of a bridge,
/// which forwards whenever the gateway does not run. Frames must be as they are on a wire: where programs of this host send into the
/// other ends of virtual interfaces, switch off what those leave to hardware (ethtool -K INTERFACE tx off).
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The configuration (`longhaul gateway init` prints one)
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print counters as one line of JSON at the end
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let shown = arguments.file.display();
    let text = std::fs::read_to_string(&arguments.file)
        .map_err(|error| Stop::missing(format!("the configuration {shown} cannot be read"), error))?;
    let settings = Settings::parse(&text).map_err(|error| Stop::Usage(format!("{shown}: {error}")))?;
    let signals = Signals::wait_for_end()?;
    hold_off_stops()?;
    let control = ControlSocket::open(Kind::Gateway, &settings.name)?;
    let server = metrics_of(&settings)?;
    let gateway = RunningGateway::start(&settings, random_number()?, None).map_err(stop_of)?;
    warn_about(&settings, &gateway);
    eprintln!(
        "gateway \"{}\" is running: site {}, wide {}, {}; Ctrl-C ends it",
        settings.name, settings.site, settings.wide, settings.code
    );
    let counted = serve(gateway, &settings, control, server.as_ref(), &signals)?;
    stop::tell(arguments.json, || counted.clone(), || status::to_table(&counted), None)
}

/// Ctrl-Z and its like do nothing: a process that is stopped forwards nothing, and the kernel does not either while it exists. Threads
/// that are started after this inherit it.
fn hold_off_stops() -> Result<(), Stop> {
    let stops: SigSet = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect();
    stops.thread_block().map_err(|error| Stop::failed("cannot hold off signals", std::io::Error::from(error)))
}

fn metrics_of(settings: &Settings) -> Result<Option<Server>, Stop> {
    let Ok(address) = settings.metrics.parse() else { return Ok(None) };
    let failed = |error| {
        let what =
            format!("metrics cannot be served at {address} (another gateway? set metrics to another address or \"\")");
        Stop::missing(what, error)
    };
    Server::open(address).map(Some).map_err(failed)
}

/// What is likely not meant.
fn warn_about(settings: &Settings, gateway: &RunningGateway) {
    for side in [&settings.site, &settings.wide] {
        if !offloads::is_up(side).unwrap_or(true) {
            eprintln!("{side} is down: no frame passes until it is up (ip link set {side} up)");
        }
    }
    if !gateway.has_bypass() {
        eprintln!("without a bridge: nothing passes when this process ends");
    }
    if !gateway.has_priority() {
        eprintln!("without real-time priority (root has it), so that frames may leave late on a busy host");
    }
}

/// Answers until the gateway is to end, or has ended by itself. Returns what was counted.
fn serve(
    gateway: RunningGateway,
    settings: &Settings,
    control: ControlSocket,
    server: Option<&Server>,
    signals: &Signals,
) -> Result<Value, Stop> {
    let state = || gateway.state().map_err(stop_of);
    let mut is_over = false;
    while !is_over && !gateway.has_ended() {
        let mut polled = vec![
            PollFd::new(control.listener().as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        polled.extend(server.map(|server| PollFd::new(server.listener().as_fd(), PollFlags::POLLIN)));
        // An interrupted look is one more look.
        let _ = poll(&mut polled, PollTimeout::from(LOOK_MILLIS));
        let ready: Vec<bool> = polled.iter().map(|polled| polled.any().unwrap_or(false)).collect();
        is_over = ready[1];
        if ready[0] {
            control.answer_one(|request| match request {
                Request::Show => {
                    let state = gateway.state().map_err(|error| error.to_string())?;
                    Ok(status::to_json(settings, &state, gateway.has_bypass()))
                }
                Request::End => {
                    is_over = true;
                    Ok(serde_json::json!({ "schema": 1 }))
                }
                Request::Set { .. } => {
                    Err("a gateway's settings are in its file; change that and start it anew".to_owned())
                }
            });
        }
        if let (Some(server), Some(true)) = (server, ready.get(2)) {
            server.answer_one(|| metrics::text(&gateway.state().unwrap_or_default()));
        }
    }
    let counted = state().map(|state: RunningState| status::to_json(settings, &state, gateway.has_bypass()));
    // The name is free, and the kernel forwards, when the process that asked for the end goes on.
    let ended = gateway.end().map_err(stop_of);
    if let Err(stop) = &ended {
        control.leave_reason(&stop.to_string());
    }
    drop(control);
    ended?;
    counted
}

/// Why a gateway could not be started or has ended, with the exit status that it deserves.
pub(super) fn stop_of(error: GatewayError) -> Stop {
    let text = with_sources(&error);
    match error {
        GatewayError::Interface(InterfaceError::OtherPort { .. }) => Stop::Missing(text),
        GatewayError::Interface(_) | GatewayError::Settings(_) | GatewayError::Shim(_) => Stop::Usage(text),
        GatewayError::Bypass(_)
        | GatewayError::Joining { .. }
        | GatewayError::Forward(
            ForwardError::NotAllowed { .. }
            | ForwardError::NoInterface(_)
            | ForwardError::Open { .. }
            | ForwardError::Offloaded { .. },
        ) => Stop::Missing(text),
        _ => Stop::Failed(text),
    }
}
