//! Which interface a name means.
//!
//! An interface has one primary name, and may have others (`ip link property add dev eth1 altname uplink`). Commands and system calls
//! take all of them, but show the primary one, and nf_tables silently accepts a name that matches nothing. So names are made primary
//! before anything else is done with them.

use std::process::Command;

use nix::net::if_::{if_indextoname, if_nametoindex};

use crate::error::ForwardError;

/// The primary name of an interface that may be given by another of its names.
pub fn primary_name(name: &str) -> Result<String, ForwardError> {
    let found = if_nametoindex(name).and_then(if_indextoname);
    found.ok().and_then(|found| found.into_string().ok()).ok_or_else(|| ForwardError::NoInterface(name.to_owned()))
}

/// Whether `lower` is what `ip link` shows as `upper@lower`: the other end of its pair, or the interface that it is built on, as a
/// VLAN is. Names must be primary. (sysfs would say it too, but of the namespace where it was mounted.)
pub fn is_above(upper: &str, lower: &str) -> bool {
    let shown = Command::new("ip").args(["-o", "link", "show", "dev", upper]).output();
    shown.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(&format!(" {upper}@{lower}:")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_interface_has_is_named() {
        assert_eq!(primary_name("lo").expect("there is one"), "lo");
        for name in ["no-such-if", "a-name-that-is-too-long-for-an-interface", "zero\0"] {
            let error = primary_name(name).expect_err(name).to_string();
            assert!(error.contains(&format!("no interface {name}")), "{error}");
        }
    }
}
