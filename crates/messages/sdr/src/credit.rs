//! What the ends tell each other about credit, next to data: announcements to the granter above, and grants back.
//!
//! ```text
//!   sender: Path (Flow with `credit`)          receiver: Credit ── CreditNews ──▶ one longhaul_congestion::CreditReceiver
//!     announcement, when it has changed ────▶                                      for all queue pairs of an endpoint
//!     grant, counted from the beginning ◀────            ◀── QueuePair::grant_credit ──
//! ```
//!
//! The grants are made above: the point of `credit` is that one receiver grants to all senders of a host, and a queue pair
//! knows only one.

use longhaul_congestion::{Announcement, Standing};
use longhaul_time::{Duration, Instant};
use longhaul_wire::control::{CreditAnnouncement, CreditGrant};

/// What a granter of credit must know of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditNews {
    /// How many there were of this sender before: threads that have taken some may tell the granter in another order.
    pub number: u64,
    /// What it has announced, if that is new.
    pub announcement: Option<Announcement>,
    /// What has arrived from it since the beginning, in bytes on the wire.
    pub arrived_bytes: u64,
    /// The shortest round trip to it, if one was measured.
    pub round_trip: Option<Duration>,
}

/// What this end says about credit.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    /// As a sender: to be announced.
    unsaid: Option<CreditAnnouncement>,
    /// As a receiver: what the sender has announced and nobody has taken.
    untaken: Option<Announcement>,
    has_announced: bool,
    /// How often the news was taken, and the bytes that had arrived the last time.
    taken_count: u64,
    taken_bytes: u64,
    grant: Option<Granted>,
    /// What the sender has shown to have seen of it.
    seen: u64,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    grant: CreditGrant,
    /// Not repeated after this.
    until: Instant,
    is_said: bool,
}

impl Credit {
    /// This end wants credit.
    pub(crate) fn announce(&mut self, announcement: &Announcement) {
        let Announcement { wanted_bytes, received_bytes, uncredited_bytes, lost_bytes } = *announcement;
        self.unsaid = Some(CreditAnnouncement {
            wanted: wanted_bytes,
            received: received_bytes,
            uncredited: uncredited_bytes,
            lost: lost_bytes,
        });
    }

    /// What has to be said now.
    pub(crate) fn due(&self) -> (Option<CreditAnnouncement>, Option<CreditGrant>) {
        (self.unsaid, self.grant.filter(|granted| !granted.is_said).map(|granted| granted.grant))
    }

    /// What was said before, and the sender may have missed.
    pub(crate) fn repeated(&self, now: Instant) -> Option<CreditGrant> {
        let may_miss = |granted: &Granted| granted.is_said && granted.grant.granted > self.seen && now < granted.until;
        self.grant.filter(may_miss).map(|granted| granted.grant)
    }

    /// It has left.
    pub(crate) fn on_said(&mut self, announcement: Option<CreditAnnouncement>, grant: Option<CreditGrant>) {
        if announcement.is_some() {
            self.unsaid = None;
        }
        if let (Some(_), Some(granted)) = (grant, &mut self.grant) {
            granted.is_said = true;
        }
    }

    /// The peer wants credit.
    pub(crate) fn on_announcement(&mut self, said: &CreditAnnouncement) {
        let CreditAnnouncement { wanted, received, uncredited, lost } = *said;
        self.has_announced = true;
        self.seen = self.seen.max(received);
        self.untaken = Some(Announcement {
            wanted_bytes: wanted,
            received_bytes: received,
            uncredited_bytes: uncredited,
            lost_bytes: lost,
        });
    }

    /// Whether an announcement waits for the granter.
    pub(crate) fn has_announcement(&self) -> bool {
        self.untaken.is_some()
    }

    /// What the granter must know, if there is anything new since it was taken.
    pub(crate) fn take_news(&mut self, arrived_bytes: u64, round_trip: Option<Duration>) -> Option<CreditNews> {
        if !self.has_announced || self.untaken.is_none() && arrived_bytes == self.taken_bytes {
            return None;
        }
        self.taken_bytes = arrived_bytes;
        let number = self.taken_count;
        self.taken_count += 1;
        Some(CreditNews { number, announcement: self.untaken.take(), arrived_bytes, round_trip })
    }

    /// The peer has been granted credit. Threads that bring grants may come in another order than the grants were made.
    pub(crate) fn grant(&mut self, standing: &Standing, now: Instant) {
        if self.grant.is_some_and(|known| standing.granted_bytes < known.grant.granted) {
            return;
        }
        let grant = CreditGrant { granted: standing.granted_bytes, recent: standing.recent_bytes };
        self.grant = Some(Granted { grant, until: now + standing.patience, is_said: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNOUNCEMENT: CreditAnnouncement = CreditAnnouncement { wanted: 1000, received: 0, uncredited: 0, lost: 0 };

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn news_are_taken_once_and_only_of_senders_that_want_credit() {
        let mut credit = Credit::default();
        assert_eq!(credit.take_news(500, None), None, "it may have no use for credit");
        credit.on_announcement(&ANNOUNCEMENT);
        let news = credit.take_news(500, None).expect("an announcement");
        assert_eq!((news.announcement.map(|said| said.wanted_bytes), news.arrived_bytes), (Some(1000), 500));
        assert_eq!(credit.take_news(500, None), None);
        let news = credit.take_news(600, None).expect("more has arrived");
        assert_eq!((news.number, news.announcement, news.arrived_bytes), (1, None, 600));
    }

    #[test]
    fn an_older_grant_that_comes_late_changes_nothing() {
        let mut credit = Credit::default();
        let standing = Standing { granted_bytes: 300, recent_bytes: 200, patience: Duration::from_millis(5) };
        credit.grant(&standing, at(10));
        credit.grant(&Standing { granted_bytes: 200, recent_bytes: 100, ..standing }, at(11));
        assert_eq!(credit.due(), (None, Some(CreditGrant { granted: 300, recent: 200 })));
    }

    #[test]
    fn a_grant_is_repeated_until_it_is_seen_or_expires() {
        let mut credit = Credit::default();
        let standing = Standing { granted_bytes: 300, recent_bytes: 200, patience: Duration::from_millis(5) };
        credit.grant(&standing, at(10));
        let grant = CreditGrant { granted: 300, recent: 200 };
        assert_eq!((credit.due(), credit.repeated(at(10))), ((None, Some(grant)), None));
        credit.on_said(None, Some(grant));
        assert_eq!((credit.due(), credit.repeated(at(14))), ((None, None), Some(grant)));
        assert_eq!(credit.repeated(at(15)), None, "it has been written off");
        credit.on_announcement(&CreditAnnouncement { received: 300, ..ANNOUNCEMENT });
        assert_eq!(credit.repeated(at(11)), None, "it has arrived");
    }
}
