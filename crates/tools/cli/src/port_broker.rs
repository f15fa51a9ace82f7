//! `longhaul port-broker`: hands sockets to the programs of `longhaul run`, so that several share an address. The first of them starts
//! it; it ends by itself. Nobody runs it by hand, so it is not in the help.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;

use longhaul_port_broker::{Bounds, serve};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::SigSet;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::AcceptConn;

use crate::stop::Stop;

/// Hand sockets to the programs of `longhaul run`, which start it when they need it
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Arguments {
    /// By which programs find it; the process that starts it listens under this name already
    #[arg(value_name = "NAME")]
    _name: String,
}

pub(crate) fn run(_: &Arguments) -> Result<(), Stop> {
    let standard_input = std::io::stdin();
    if !getsockopt(&standard_input, AcceptConn).unwrap_or(false) {
        return Err(Stop::Usage(
            "the port broker expects a listening socket as standard input: the programs of `longhaul run` start it, nobody else \
             has to"
                .into(),
        ));
    }
    let failed = |what: &'static str| move |error| Stop::missing(what, error);
    let listener = standard_input.as_fd().try_clone_to_owned();
    let listener = UnixListener::from(listener.map_err(failed("cannot keep the listening socket"))?);
    // What it has from the program that has started it: a folder that others may want to unmount, a mask of signals, a limit.
    let _ = nix::unistd::chdir("/");
    let _ = SigSet::empty().thread_set_mask();
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    serve(listener, Bounds::default()).map_err(failed("the port broker cannot go on"))
}
