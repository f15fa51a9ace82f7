//! Whose process this is, and whose is at the other end.

use std::os::unix::net::UnixStream;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::Uid;

/// Stands for all users whom a user namespace does not know, so two of them may be different ones.
const NOBODY_IN_PARTICULAR: u32 = 65_534;

/// The user of this process; `None` if he cannot be told from others.
pub(crate) fn own_user() -> Option<u32> {
    distinct(Uid::effective().as_raw())
}

/// The user of the process that has made the connection, or has begun to listen.
fn peer_user(stream: &UnixStream) -> Option<u32> {
    distinct(getsockopt(stream, PeerCredentials).ok()?.uid())
}

/// Whether the other end is a process of the same user.
pub(crate) fn is_of_same_user(stream: &UnixStream) -> bool {
    is_same(own_user(), peer_user(stream))
}

fn distinct(user: u32) -> Option<u32> {
    (user != NOBODY_IN_PARTICULAR).then_some(user)
}

fn is_same(one: Option<u32>, other: Option<u32>) -> bool {
    one.is_some() && one == other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_who_cannot_be_told_apart_are_not_the_same() {
        assert!(is_same(distinct(0), distinct(0)) && is_same(distinct(1000), distinct(1000)));
        assert!(!is_same(distinct(0), distinct(1000)));
        assert!(!is_same(distinct(NOBODY_IN_PARTICULAR), distinct(NOBODY_IN_PARTICULAR)));
    }

    #[test]
    fn both_ends_of_a_pair_are_ours() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(is_of_same_user(&one), own_user().is_some());
    }
}
