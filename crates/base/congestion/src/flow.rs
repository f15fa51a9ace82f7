//! What a sender owns for each path: sampler, controller and pacer together.

use longhaul_time::{Duration, Instant};

use crate::controller::{Announcement, Controller, PathFacts, Sample};
use crate::fixed::Unlimited;
use crate::name::ControllerName;
use crate::pacer::Pacer;
use crate::sampler::{Arrivals, Sampler};

/// Congestion control of one path.
#[derive(Debug)]
pub struct Flow {
    sampler: Sampler,
    controller: Box<dyn Controller>,
    pacer: Pacer,
    /// It sends no faster, whatever the controller says.
    rate_max: Option<u64>,
}

impl Flow {
    /// With a controller by name.
    pub fn new(name: ControllerName, facts: &PathFacts) -> Self {
        Flow::with_controller(name.controller(facts), facts)
    }

    /// With a controller of the caller's own.
    pub fn with_controller(controller: Box<dyn Controller>, facts: &PathFacts) -> Self {
        let pacer = Pacer::new(facts.packet_bytes, controller.burst());
        Flow { sampler: Sampler::default(), controller, pacer, rate_max: None }
    }

    /// Without control: as fast as the device takes packets.
    pub fn unlimited(facts: &PathFacts) -> Self {
        Flow::with_controller(Box::new(Unlimited), facts)
    }

    /// The same, but no faster than this, whatever the controller says.
    pub fn with_rate_max(self, bits_per_second: Option<u64>) -> Self {
        Flow { rate_max: bits_per_second, ..self }
    }

    /// From now on no faster than this, whatever the controller says. What it has learned and what is in flight stay.
    pub fn set_rate_max(&mut self, bits_per_second: Option<u64>) {
        self.rate_max = bits_per_second;
    }

    /// The rate now, in bits per second; `None` when it is not limited.
    pub fn bits_per_second(&self) -> Option<u64> {
        match (self.controller.bits_per_second(), self.rate_max) {
            (Some(rate), Some(most)) => Some(rate.min(most)),
            (rate, most) => rate.or(most),
        }
    }

    /// Bytes that may be sent now. A sender with a packet of at most this size sends it; others wait until
    /// [`ready_at`](Self::ready_at), or for a report.
    pub fn room_bytes(&mut self, now: Instant) -> u64 {
        self.rate_room_bytes(now).min(self.window_room_bytes())
    }

    /// What the window alone would allow.
    pub fn window_room_bytes(&self) -> u64 {
        self.controller.window_bytes().saturating_sub(self.sampler.in_flight_bytes())
    }

    /// What the rate alone would allow.
    pub fn rate_room_bytes(&mut self, now: Instant) -> u64 {
        self.pacer.set_rate(now, self.bits_per_second());
        self.pacer.room_bytes(now)
    }

    /// When the pacer lets more be sent, if the window does.
    pub fn ready_at(&self) -> Option<Instant> {
        self.pacer.ready_at()
    }

    /// Packets were given to the device. Returns the number of the first.
    pub fn on_sent(&mut self, now: Instant, packets: u64, bytes: u64) -> u64 {
        let first = self.sampler.sent_packets();
        if first > 0 && self.sampler.in_flight_packets() == 0 && self.sampler.is_app_limited() {
            self.controller.on_restart(now);
        }
        self.sampler.on_sent(now, packets, bytes);
        self.pacer.on_sent(now, bytes);
        self.controller.on_sent(now, bytes, self.sampler.in_flight_bytes());
        first
    }

    /// Bytes were sent that no report counts: they are paced, and not in flight.
    pub fn on_unreported_sent(&mut self, now: Instant, bytes: u64) {
        self.pacer.set_rate(now, self.bits_per_second());
        self.pacer.on_sent(now, bytes);
    }

    /// Packets have left the device, in the order of sending.
    pub fn on_left(&mut self, now: Instant, packets: u64) {
        self.sampler.on_left(now, packets);
    }

    /// The sender has nothing to send, although there is room.
    pub fn on_app_limited(&mut self) {
        self.sampler.on_app_limited();
    }

    /// The receiver has reported; see [`Sampler::on_report`].
    pub fn on_report(&mut self, now: Instant, arrivals: &Arrivals, horizon: Duration) -> Sample {
        let sample = self.sampler.on_report(now, arrivals, horizon);
        self.take(sample)
    }

    /// A receiver that takes packets in order only has acknowledged all before number `end`; see
    /// [`Sampler::on_acknowledged`].
    pub fn on_acknowledged(&mut self, now: Instant, end: u64, is_repeat: bool) -> Sample {
        let sample = self.sampler.on_acknowledged(now, end, is_repeat);
        self.take(sample)
    }

    /// All that is in flight to such a receiver is sent again, after `lost` packets of it were lost; see
    /// [`Sampler::on_went_back`].
    pub fn on_went_back(&mut self, now: Instant, lost: u64) -> Sample {
        let sample = self.sampler.on_went_back(now, lost);
        self.take(sample)
    }

    /// The controller decides with this sample, and the pacer follows.
    fn take(&mut self, sample: Sample) -> Sample {
        self.controller.on_sample(&sample);
        self.pacer.set_rate(sample.now, self.bits_per_second());
        sample
    }

    /// A congestion notification packet has come.
    pub fn on_notification(&mut self, now: Instant) {
        self.controller.on_notification(now);
    }

    /// Nothing was reported for so long that what left the device longer ago than `horizon` is presumed lost.
    pub fn on_timeout(&mut self, now: Instant, horizon: Duration) {
        let sample = self.sampler.on_timeout(now, horizon);
        self.controller.on_sample(&sample);
        self.controller.on_timeout(now);
    }

    /// The path's shortest round trip has been measured by other messages than reports.
    pub fn on_round_trip(&mut self, least: Duration) {
        self.controller.on_round_trip(least);
    }

    /// The receiver has granted this many bytes more.
    pub fn on_credit(&mut self, now: Instant, bytes: u64) {
        self.controller.on_credit(now, bytes);
    }

    /// The sender has this much to send, repeats included; what is sent afterwards is subtracted.
    pub fn on_backlog(&mut self, now: Instant, bytes: u64) {
        self.controller.on_backlog(now, bytes);
    }

    /// What is to be announced to the receiver now, if it grants credit. Ask after a change of the backlog, after
    /// reports and credit, and at deadlines.
    pub fn announcement(&mut self, now: Instant) -> Option<Announcement> {
        self.controller.announcement(now)
    }

    /// When [`on_deadline`](Self::on_deadline) is due, for the controller's own timers.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.controller.next_deadline()
    }

    /// The deadline has passed.
    pub fn on_deadline(&mut self, now: Instant) {
        self.controller.on_deadline(now);
        self.pacer.set_rate(now, self.bits_per_second());
    }

    /// What is in flight.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// What decides.
    pub fn controller(&self) -> &dyn Controller {
        self.controller.as_ref()
    }
}
