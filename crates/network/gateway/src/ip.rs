//! The command `ip`, which knows more of interfaces than this program has to.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use thiserror::Error;

/// Why `ip` did not do what was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IpError {
    /// It is not there.
    #[error("the command ip cannot be run; is the package iproute2 installed?")]
    NoProgram(#[source] io::Error),
    /// It has failed.
    #[error(
        "`ip {command}` has failed: {said}; is the kernel built with bridges (CONFIG_BRIDGE)? bridge = \"\" does without"
    )]
    Failed {
        /// What was asked.
        command: String,
        /// What it said.
        said: String,
    },
}

/// What `ip` says.
pub(crate) fn ip(arguments: &str) -> Result<String, IpError> {
    let mut command = Command::new("ip");
    // Ctrl-C and Ctrl-Z are meant for the gateway, which knows what to do with them.
    command.args(arguments.split(' ')).process_group(0);
    let output = command.output().map_err(IpError::NoProgram)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(IpError::Failed { command: arguments.to_owned(), said })
}

/// The bridge or bond that the interface is a port of.
pub(crate) fn master_of(interface: &str) -> Result<Option<String>, IpError> {
    let shown = ip(&format!("-o link show dev {interface}"))?;
    // "5: eth1@if4: <…> mtu 1500 qdisc noqueue master bridge0 state …"
    let mut words = shown.split_whitespace().skip(2);
    Ok(words.find(|word| *word == "master").and_then(|_| words.next()).map(str::to_owned))
}
