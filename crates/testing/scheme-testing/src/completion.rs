//! How long a message takes from one end of a long link to the other, with each reliability scheme: the real protocol
//! code on virtual time.
//!
//! A sample is one message. Its receive is posted and the sender knows of it before the clock starts, so that what is
//! measured is the message: from the send to the moment when the sender knows that it is done. Of data only lengths
//! travel, which halves the work: time is what is measured here, and contents are compared in
//! [`end_to_end`](crate::end_to_end).

pub mod formula;
mod sampling;

use std::str::FromStr;

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{NamedScheme, scheme_named};
use longhaul_scheme::parity::parity_bytes;
use longhaul_softnic::PayloadMode;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairLimits,
    QueuePairOptions, SendFlags, SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_world::{EGRESS_LIMIT_BYTES, World, WorldConfig};

pub use sampling::Sampling;

use crate::end_to_end::{CaseError, Ground, GroundOptions, VirtualGround};

/// Payload of a packet.
const MTU: Mtu = Mtu::Bytes4096;
/// A sample that takes longer than this many times the least possible has hung.
const SLOWDOWN_MAX: u32 = 100_000;
/// The driver polls the ends at least this often, and no more waits in front of the wire than leaves it in between.
const LOOKS_A_ROUND_TRIP: u32 = 400;

/// How a message is brought over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionScheme {
    /// By one of `longhaul-reliable`.
    Named(NamedScheme),
    /// One WRITE on a reliable connection: go-back-N.
    ReliableConnection,
}

impl FromStr for CompletionScheme {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "rc" => Ok(CompletionScheme::ReliableConnection),
            _ => text.parse().map(CompletionScheme::Named).map_err(|error| format!("{error}; or rc")),
        }
    }
}

impl std::fmt::Display for CompletionScheme {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CompletionScheme::Named(scheme) => scheme.fmt(formatter),
            CompletionScheme::ReliableConnection => formatter.write_str("rc"),
        }
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct CompletionOptions {
    /// The link's rate.
    pub rate_bits_per_second: u64,
    /// There and back.
    pub round_trip: Duration,
    /// Share of packets lost, in each direction.
    pub loss: f64,
    /// In bursts of this many packets on average; independent losses if not given.
    pub burst_packets: Option<f64>,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// How it is brought over.
    pub scheme: CompletionScheme,
    /// Everything random comes from it.
    pub seed: u64,
}

impl CompletionOptions {
    /// The least time that a message can take: its bytes at the link's rate, and a round trip.
    pub fn least(&self) -> Duration {
        let bits = 8 * self.message_bytes as u128;
        let injection = bits * 1_000_000_000 / u128::from(self.rate_bits_per_second.max(1));
        Duration::from_nanos(injection as u64) + self.round_trip
    }

    /// About how many packets of data and parity a message takes, repetitions included: to estimate beforehand how long
    /// a run will take.
    pub fn expected_packets(&self) -> f64 {
        let packet_bytes = f64::from(MTU.byte_count());
        let packets = (self.message_bytes as f64 / packet_bytes).ceil();
        let repeated = self.loss / (1.0 - self.loss);
        match self.scheme {
            CompletionScheme::Named(NamedScheme::Erasure(code)) => {
                let parity = parity_bytes(code, self.message_bytes as u64, self.chunk_bytes) as f64 / packet_bytes;
                let failed = 1.0 - formula::decoding_probability(code, formula::chunk_loss(self));
                packets * (1.0 + failed * repeated) + parity
            }
            CompletionScheme::Named(_) => packets * (1.0 + repeated),
            // Each loss repeats what was sent until the sender heard of it: a round trip, or what is left of the
            // message.
            CompletionScheme::ReliableConnection => {
                let round_trip_bits = self.rate_bits_per_second as f64 * self.round_trip.as_secs_f64();
                let window = packets.min(round_trip_bits / 8.0 / packet_bytes);
                let losses = packets * self.loss / (1.0 - self.loss);
                packets + losses * (window - window * window / (2.0 * packets))
            }
        }
    }

    fn link(&self) -> Profile {
        link(self.round_trip, self.rate_bits_per_second, self.loss, self.burst_packets)
    }

    /// How often the driver polls the ends: a fraction of what a device has queued takes to leave; and on slow links a
    /// fraction of a round trip, since what is looked at late is measured late.
    fn grain(&self) -> Duration {
        let queued = 64 * 4096 * 8 * 1_000_000_000_u128 / u128::from(self.rate_bits_per_second.max(1));
        Duration::from_nanos(queued as u64).min(self.round_trip / LOOKS_A_ROUND_TRIP).max(Duration::from_nanos(1))
    }

    /// What devices may have waiting in front of the wire: on slow links so little that it is a fraction of a round
    /// trip. What a device has queued it cannot take back when it hears of a loss, and what the ends measure as the
    /// round trip has it in it.
    fn egress_limit_bytes(&self) -> u64 {
        let bytes =
            u128::from(self.rate_bits_per_second) * (self.round_trip / LOOKS_A_ROUND_TRIP).as_nanos() / 8_000_000_000;
        (bytes as u64).clamp(2 * u64::from(MTU.byte_count()), EGRESS_LIMIT_BYTES)
    }
}

/// Messages over one link, one after the other.
pub struct Completion {
    options: CompletionOptions,
    ground: Setting,
}

enum Setting {
    Scheme(Box<VirtualGround>),
    Reliable(Box<ReliableSetting>),
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// From the send until the sender knew that it was done.
    pub duration: Duration,
    /// Packets of it that were sent more than once.
    pub repeated_packets: u64,
    /// Times that the receiver asked, or the sender's time ran out.
    pub fallbacks: u64,
}

impl Completion {
    /// Set up both ends.
    pub fn new(options: CompletionOptions) -> Self {
        let scheme = match options.scheme {
            CompletionScheme::Named(name) => scheme_named(name),
            CompletionScheme::ReliableConnection => {
                let setting = Box::new(ReliableSetting::new(&options));
                return Completion { options, ground: Setting::Reliable(setting) };
            }
        };
        // Data, parity and repetitions must all fit in flight: the window is not what is measured.
        let parity_bytes = scheme.parity_bytes(options.message_bytes as u64, options.chunk_bytes);
        let packets = (options.message_bytes as u64 + parity_bytes).div_ceil(MTU.byte_count().into());
        let receive_depth = u32::try_from(2 * packets).unwrap_or(u32::MAX).clamp(1024, 1 << 20);
        let mut ground = GroundOptions {
            seed: options.seed,
            mtu: MTU,
            chunk_bytes: options.chunk_bytes,
            receive_depth,
            generations: 2,
            grain: options.grain(),
            egress_limit_bytes: options.egress_limit_bytes(),
            payload: PayloadMode::WritesElided,
            ..GroundOptions::new(options.link(), options.message_bytes)
        };
        ground.connection.message_timeout = options.least() * SLOWDOWN_MAX;
        let ground = Box::new(VirtualGround::with_scheme(&ground, scheme));
        Completion { options, ground: Setting::Scheme(ground) }
    }

    /// Send the next message.
    pub fn sample(&mut self) -> Result<Sample, CaseError> {
        match &mut self.ground {
            Setting::Scheme(ground) => sample(ground, &self.options),
            Setting::Reliable(setting) => setting.sample(&self.options),
        }
    }
}

fn sample(ground: &mut VirtualGround, options: &CompletionOptions) -> Result<Sample, CaseError> {
    let failed = |why: String| CaseError::Failed { message: 0, why };
    let range = 0..options.message_bytes;
    let (receiver, memory) = ground.receiver();
    let receive = receiver.post_receive(memory, range.clone()).map_err(|error| failed(error.to_string()))?;
    // Clear-to-sends may be lost, and are repeated.
    ground.run_until(ground.now() + options.round_trip * 8)?;
    let now = ground.now();
    let (sender, memory) = ground.sender();
    let send = sender.send(memory, range, now).map_err(|error| failed(error.to_string()))?;
    let limit = now + options.least() * SLOWDOWN_MAX;
    while !(send.is_over() && receive.is_over()) {
        if ground.now() >= limit {
            return Err(CaseError::Hung { done: 0, messages: 1, limit: limit - now });
        }
        ground.step(limit)?;
    }
    let report = send.take().expect("it has ended").map_err(|error| failed(error.to_string()))?;
    receive.take().expect("it has ended").map_err(|error| failed(error.to_string()))?;
    // Let the last of it pass.
    ground.run_until(ground.now() + options.round_trip)?;
    Ok(Sample {
        duration: report.duration,
        repeated_packets: report.data_packets_repeated,
        fallbacks: report.fallbacks,
    })
}

/// One end of a reliable connection.
struct End {
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

/// Two queue pairs of a reliable connection.
struct ReliableSetting {
    world: World,
    ends: [End; 2],
}

impl ReliableSetting {
    fn new(options: &CompletionOptions) -> Self {
        let mut config = WorldConfig { link: options.link(), seed: options.seed, ..Default::default() };
        config.nic.payload = PayloadMode::WritesElided;
        config.egress_limit_bytes = options.egress_limit_bytes();
        let world = World::new(config);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let ends = [0, 1].map(|node| {
            let device = world.device(node);
            let domain = device.allocate_protection_domain().expect("a new device has room");
            let completions = device.create_completion_queue(16).expect("a new device has room");
            let limits = QueuePairLimits { send_requests: 4, receive_requests: 4, ..Default::default() };
            let pair_options = QueuePairOptions { limits, ..Default::default() };
            let queue_pair = domain
                .create_queue_pair(Transport::ReliableConnection, &completions, &completions, &pair_options)
                .expect("a new device has room");
            let region = domain.register(vec![0; options.message_bytes], access).expect("a new device has room");
            queue_pair.modify(&QueuePairAttributes::init_connected(access)).expect("INIT follows RESET");
            End { completions, queue_pair, region }
        });
        // The timeout's exponent: the first that is longer than the round trip and what waits in front of it.
        let wanted = options.least().as_nanos() * 2;
        let timeout = (0..31_u8).find(|exponent| 4096_u128 << exponent >= wanted).unwrap_or(31);
        for (node, end) in ends.iter().enumerate() {
            let peer = &ends[1 - node];
            let path = PathAttributes::to(world.gid(1 - node));
            let number = peer.queue_pair.number();
            let receive = QueuePairAttributes::ready_to_receive(path, MTU, number, 0).reliable_receive(0, 12);
            end.queue_pair.modify(&receive).expect("RTR follows INIT");
            let send = QueuePairAttributes::ready_to_send(0).reliable_send(timeout, 7, 7, 0);
            end.queue_pair.modify(&send).expect("RTS follows RTR");
        }
        ReliableSetting { world, ends }
    }

    /// Packets that the sender has sent.
    fn sent_packets(&self) -> u64 {
        self.world.softnic(0).nic().counters().sent_pkts
    }

    fn sample(&mut self, options: &CompletionOptions) -> Result<Sample, CaseError> {
        let [sender, receiver] = &self.ends;
        let entry = [sender.region.entry(0..options.message_bytes)];
        let request = SendRequest::new(0, SendOperation::Write(receiver.region.remote(0)), &entry);
        let failed = |why: String| CaseError::Failed { message: 0, why };
        let (begin, packets) = (self.world.now(), self.sent_packets());
        sender
            .queue_pair
            .post_send(&[request.with_flags(SendFlags::SIGNALED)])
            .map_err(|error| failed(error.to_string()))?;
        let limit = begin + options.least() * SLOWDOWN_MAX;
        let mut taken = [WorkCompletion::default(); 1];
        loop {
            self.world.run_some(limit, options.grain());
            if self.ends[0].completions.poll(&mut taken).map_err(|error| failed(error.to_string()))? > 0 {
                break;
            }
            if self.world.now() >= limit {
                return Err(CaseError::Hung { done: 0, messages: 1, limit: limit - begin });
            }
        }
        if !taken[0].is_success() {
            return Err(failed(format!("the reliable connection has failed: {:?}", taken[0].status)));
        }
        let duration = self.world.now() - begin;
        let first = (options.message_bytes as u64).div_ceil(MTU.byte_count().into());
        let repeated_packets = (self.sent_packets() - packets).saturating_sub(first);
        let pause: Instant = self.world.now() + options.round_trip;
        self.world.run_for(pause - self.world.now());
        Ok(Sample { duration, repeated_packets, fallbacks: 0 })
    }
}

/// What samples say together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Of all.
    pub mean: f64,
    /// Half are not above.
    pub p50: f64,
    /// 99 of 100 are not above.
    pub p99: f64,
    /// 999 of 1000 are not above; only when there are samples enough to say so.
    pub p999: Option<f64>,
}

impl Summary {
    /// Fewer say nothing about one in a thousand.
    const SAMPLES_FOR_P999: usize = 10_000;

    /// Of some numbers; there must be some.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let count = samples.len();
        let at = |share: f64| samples[((count as f64 * share).ceil() as usize).clamp(1, count) - 1];
        Summary {
            mean: samples.iter().sum::<f64>() / count as f64,
            p50: at(0.5),
            p99: at(0.99),
            p999: (count >= Self::SAMPLES_FOR_P999).then(|| at(0.999)),
        }
    }
}

/// A link that delays, and loses packets on their own or in bursts of this many in the mean.
pub(crate) fn link(round_trip: Duration, rate_bits_per_second: u64, loss: f64, burst_packets: Option<f64>) -> Profile {
    let link =
        Profile::default().with_propagation_delay(round_trip / 2).with_rate_bits_per_second(rate_bits_per_second);
    match (loss, burst_packets) {
        (0.0, _) => link,
        (loss, Some(packets)) => link.with_loss(Loss::bursts(loss, packets)),
        (probability, None) => link.with_loss(Loss::Independent { probability }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_read_as_they_are_written() {
        for text in ["sr:rto", "sr:nack", "ec:xor:32,8", "ec:mds:4,2", "rc"] {
            assert_eq!(text.parse::<CompletionScheme>().expect("a scheme").to_string(), text);
        }
        assert!("sr".parse::<CompletionScheme>().expect_err("no such scheme").contains("sr:rto"));
        assert!("ec:mds:300,8".parse::<CompletionScheme>().is_err());
    }

    #[test]
    fn percentiles() {
        let summary = Summary::of((1..=200).map(f64::from).collect());
        assert_eq!(summary, Summary { mean: 100.5, p50: 100.0, p99: 198.0, p999: None });
        let summary = Summary::of((1..=10_000).map(f64::from).collect());
        assert_eq!(summary.p999, Some(9990.0));
        assert_eq!(Summary::of(vec![3.0]).p99, 3.0);
    }

    fn options(scheme: &str, loss: f64) -> CompletionOptions {
        CompletionOptions {
            rate_bits_per_second: 100_000_000_000,
            round_trip: Duration::from_millis(10),
            loss,
            burst_packets: None,
            message_bytes: 8 << 20,
            chunk_bytes: 4096,
            scheme: scheme.parse().expect("a scheme"),
            seed: 1,
        }
    }

    fn mean(scheme: &str, loss: f64) -> f64 {
        let options = options(scheme, loss);
        let mut completion = Completion::new(options.clone());
        let samples: Vec<f64> = (0..4)
            .map(|_| completion.sample().expect("it is done").duration.as_secs_f64() / options.least().as_secs_f64())
            .collect();
        Summary::of(samples).mean
    }

    /// Without loss every scheme takes its bytes, headers and parity included, and a round trip.
    #[test]
    fn nothing_is_wasted_without_loss() {
        for (scheme, most) in
            [("sr:rto", 1.01), ("sr:nack", 1.01), ("ec:mds:32,8", 1.03), ("ec:xor:32,8", 1.03), ("rc", 1.01)]
        {
            let mean = mean(scheme, 0.0);
            assert!((1.0..most).contains(&mean), "{scheme}: {mean}");
        }
    }

    /// A timeout is three round trips, a negative acknowledgement one, and parity none.
    #[test]
    fn schemes_differ_in_what_a_loss_costs() {
        let [timeouts, negative, erasure] = ["sr:rto", "sr:nack", "ec:mds:32,8"].map(|scheme| mean(scheme, 1e-2));
        assert!((3.0..9.0).contains(&timeouts), "{timeouts}");
        assert!((1.5..4.0).contains(&negative) && negative < timeouts / 1.5, "{negative} and {timeouts}");
        assert!(erasure < 1.1, "{erasure}");
    }

    /// Within half and double of what is really repeated, where it is much.
    #[test]
    fn packets_are_foreseen() {
        assert_eq!(options("sr:rto", 0.0).expected_packets(), 2048.0);
        assert_eq!(options("ec:mds:32,8", 0.0).expected_packets(), 2560.0);
        assert!((2045.0..2070.0).contains(&options("sr:nack", 1e-3).expected_packets()));
        for loss in [3e-3, 1e-2] {
            let options = options("rc", loss);
            let mut completion = Completion::new(options.clone());
            let repeated = |_| completion.sample().expect("it is done").repeated_packets as f64;
            let mean = (0..10).map(repeated).sum::<f64>() / 10.0;
            let expected = options.expected_packets() - 2048.0;
            assert!((0.5..2.0).contains(&(expected / mean)), "loss {loss}: {expected} and {mean}");
        }
    }

    /// The first message on a link takes as long as later ones: the round trip is known by then.
    #[test]
    fn samples_do_not_depend_on_those_before() {
        for scheme in ["sr:rto", "ec:mds:32,8", "rc"] {
            let mut completion = Completion::new(options(scheme, 0.0));
            let samples: Vec<f64> =
                (0..3).map(|_| completion.sample().expect("it is done").duration.as_secs_f64()).collect();
            assert!(samples.iter().all(|sample| (sample / samples[2] - 1.0).abs() < 2e-3), "{scheme}: {samples:?}");
        }
    }
}
