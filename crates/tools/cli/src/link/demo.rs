//! `longhaul link demo`: two network namespaces with a link between them, in one command.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use longhaul_link::control::{ControlSocket, Kind};
use longhaul_link::namespaces::{Namespaces, Side};
use longhaul_link::{Ports, RunningLink};
use longhaul_units::whole_number;
use nix::unistd::setsid;
use serde_json::{Value, json};

use super::options::{New, stop_of};
use super::serve::{Described, Signals, serve};
use crate::stop::{self, Stop};

/// Make two network namespaces with a link between them
///
/// Works without root where user namespaces are allowed. Programs are run in them with `longhaul link exec left -- COMMAND` and
/// `longhaul link exec right -- COMMAND`; the left one has address 198.18.0.1, the right one 198.18.0.2. A process in the background
/// holds everything; `longhaul link clean` ends it, and nothing is left.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    new: New,

    /// Bytes of the longest packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = whole_number(576_u32..=9000))]
    mtu: u32,

    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The process in the background.
#[derive(Debug, clap::Args)]
pub(crate) struct HoldArguments {
    #[command(flatten)]
    new: New,

    #[arg(long)]
    mtu: u32,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let new = &arguments.new;
    if new.settings.prints_help() {
        return Ok(());
    }
    let (_, seed) = new.link(Ports::Interfaces([String::new(), String::new()]))?;
    let held = start(new, seed, arguments.mtu)?;
    stop::tell(arguments.json, || held.clone(), || how_to_use(new, seed), None)
}

fn how_to_use(new: &New, seed: u64) -> String {
    let name = &new.name;
    let option = if name == super::options::NAME { String::new() } else { format!(" --name {name}") };
    let [forth, back] = new.settings.texts().map(|text| text.unwrap_or("nothing set"));
    let [left, right] = Side::BOTH.map(Side::address);
    format!(
        "link \"{name}\" is up between two network namespaces, seed {seed}:\n  \
         left  {left}   to right: {forth}\n  \
         right {right}   to left:  {back}\n\n\
         use it:     longhaul link exec{option} left -- ping -c 3 {right}\n\
         change it:  longhaul link set{option} --impair delay=10ms\n\
         look at it: longhaul link show{option}\n\
         remove it:  longhaul link clean{option}\n"
    )
}

/// Starts the process that holds the namespaces, and waits until they can be used.
fn start(new: &New, seed: u64, mtu: u32) -> Result<Value, Stop> {
    let program = std::env::current_exe().map_err(|error| Stop::missing("cannot find this program", error))?;
    let mut child = Command::new(program)
        .args(["link", "hold"])
        .args(new.to_arguments(seed))
        .arg(format!("--mtu={mtu}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Stop::missing("the process that holds the link cannot be started", error))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        // It says one line, or ends.
        let _ = BufReader::new(output).read_line(&mut line);
    }
    match serde_json::from_str::<Result<Value, (u8, String)>>(&line) {
        Ok(Ok(held)) => Ok(held),
        Ok(Err((status, why))) => {
            let _ = child.wait();
            Err(match status {
                crate::exit::USAGE => Stop::Usage(why),
                crate::exit::MISSING => Stop::Missing(why),
                _ => Stop::Failed(why),
            })
        }
        Err(_) => {
            let status = child.wait().map(|status| status.to_string()).unwrap_or_default();
            Err(Stop::Failed(format!("the process that holds the link has ended early: {status}")))
        }
    }
}

/// Holds namespaces and the link, and says in one line that it does, or why not.
pub(super) fn hold(arguments: &HoldArguments) -> Result<(), Stop> {
    let tell = |answer: &Result<Value, (u8, String)>| {
        println!("{}", serde_json::to_string(answer).unwrap_or_default());
    };
    let (link, described, control, signals) = match prepare(arguments) {
        Ok(prepared) => prepared,
        Err(stop) => {
            tell(&Err((stop.exit_status(), stop.to_string())));
            return Ok(());
        }
    };
    let Described { name, seed, .. } = &described;
    let addresses = Side::BOTH.map(|side| side.address().to_string());
    tell(&Ok(
        json!({ "schema": 1, "name": name, "seed": seed, "process": std::process::id(), "addresses": addresses }),
    ));
    serve(link, described, control, &signals).map(drop)
}

fn prepare(arguments: &HoldArguments) -> Result<(RunningLink, Described, ControlSocket, Signals), Stop> {
    // Nobody's terminal ends it.
    let _ = setsid();
    let new = &arguments.new;
    // Before anything is made: a link whose name is taken needs no namespaces. And before this is another user, who has another folder.
    let control = ControlSocket::open(Kind::Link, &new.name)?;
    let namespaces = Namespaces::make(arguments.mtu as usize)?;
    let ends = Side::BOTH.map(|side| side.name().to_owned());
    let (options, seed) = new.link(Ports::Interfaces(ends.clone()))?;
    let signals = Signals::wait_for_end()?;
    let link = RunningLink::start(&options).map_err(stop_of)?;
    let settings = new.settings.texts().map(|text| text.unwrap_or_default().to_owned());
    let descriptors = Side::BOTH.map(|side| namespaces.descriptor(side));
    // They live as long as this process.
    std::mem::forget(namespaces);
    let described = Described { name: new.name.clone(), ends, seed, settings, namespaces: Some(descriptors) };
    Ok((link, described, control, signals))
}
