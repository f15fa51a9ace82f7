//! What is asked of `longhaul plan`: the options, and the questions that they stand for.

use std::path::PathBuf;

use longhaul_plan::link::{Link, Loss};
use longhaul_plan::question::{Candidate, CodingSpeed, Objective, Question};
use longhaul_plan::ring::RING_SITES;
use longhaul_time::Duration;

use super::notes::{self, Note};
use crate::stop::Stop;

/// A mean burst that is longer is an outage, which no scheme is made for, and the model cannot count that far.
const BURST_PACKETS_MAX: f64 = 1e6;

/// A message, or a ring all-reduce, over a link.
#[derive(Clone, Debug, clap::Args)]
// One group of both, so that the error for neither names both.
#[command(group = clap::ArgGroup::new("length").args(["rtt", "distance"]).required(true))]
pub(super) struct Options {
    /// Link rate, in bits per second
    #[arg(long, value_name = "RATE", required = true, value_parser = longhaul_units::rate)]
    rate: u64,

    /// Round-trip time (or give --distance)
    #[arg(long, value_name = "TIME", value_parser = longhaul_units::duration)]
    rtt: Option<Duration>,

    /// Length of the link instead of --rtt, at the speed of light: 3750km is 25 ms (in fiber, half as long again)
    #[arg(long, value_name = "DISTANCE", value_parser = longhaul_units::kilometres)]
    distance: Option<f64>,

    /// Fraction of packets lost, such as 1e-5; several, separated by commas
    #[arg(long, value_name = "SHARE", required = true, value_delimiter = ',', value_parser = longhaul_units::share)]
    loss: Vec<f64>,

    /// Packets are lost in bursts of this length on average [default: losses are independent]
    #[arg(long, value_name = "PACKETS", value_parser = longhaul_units::number)]
    burst: Option<f64>,

    /// Size of the message, or of the buffer that a ring reduces; several, separated by commas
    #[arg(long, value_name = "BYTES", required = true, value_delimiter = ',', value_parser = longhaul_units::bytes)]
    size: Vec<u64>,

    /// Plan a ring all-reduce over this many sites, 2 to 64, instead of one message
    #[arg(long, value_name = "SITES", value_parser = longhaul_units::whole_number(RING_SITES))]
    ring: Option<u32>,

    /// Recommend the scheme that most often completes by this deadline, and show how often each does
    #[arg(long, value_name = "TIME", value_parser = longhaul_units::duration)]
    deadline: Option<Duration>,

    /// Scheme to consider: sr:rto, sr:nack, ec:mds:K,M, ec:xor:K,M, rc, lowar:R,C, or ec:mds or ec:xor for the best
    /// code; repeatable [default: one of each]
    #[arg(long, value_name = "SCHEME")]
    scheme: Vec<Candidate>,

    /// Chunk size, a multiple of --packet [default: the best for each scheme]
    #[arg(long, value_name = "BYTES", value_parser = longhaul_units::bytes)]
    chunk: Option<u64>,

    /// Payload of a packet: the path MTU. Loss is per packet, so the largest MTU of the path is best
    #[arg(long, value_name = "BYTES", default_value = "4KiB", value_parser = longhaul_units::bytes)]
    packet: u64,

    /// Completion time to minimize: mean, p99 or p999
    #[arg(long, value_name = "WHAT", default_value = "mean", value_parser = objective)]
    objective: Objective,

    /// GB of data a second that one core codes, with MDS(32,8) and with XOR [default: measured on this machine, and
    /// kept for a week]
    #[arg(long, value_name = "MDS[,XOR]", value_delimiter = ',', value_parser = longhaul_units::number)]
    coding_speed: Vec<f64>,

    /// Also draw it: slowdowns against sizes or losses if there are several, otherwise how likely a message takes how
    /// long
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,

    /// Print comma-separated values instead of a table
    #[arg(long, conflicts_with = "json")]
    pub(super) csv: bool,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

fn objective(text: &str) -> Result<Objective, String> {
    match text {
        "mean" => Ok(Objective::Mean),
        "p99" => Ok(Objective::P99),
        "p999" | "p99.9" => Ok(Objective::P999),
        _ => Err("expected mean, p99 or p999".to_owned()),
    }
}

impl Options {
    /// One for each size and loss, those of one loss together.
    pub(super) fn questions(&self, coding: CodingSpeed) -> Result<Vec<Question>, Stop> {
        let mut questions = Vec::new();
        for &share in &self.loss {
            for &message_bytes in &self.size {
                let link = Link { packet_bytes: self.packet_bytes()?, ..self.link(share)? };
                let open = Question::new(link, message_bytes);
                questions.push(Question {
                    chunk_bytes: self.chunk_bytes()?,
                    candidates: if self.scheme.is_empty() { open.candidates } else { self.scheme.clone() },
                    ring_sites: self.ring,
                    deadline_seconds: self.deadline.map(|deadline| deadline.as_secs_f64()),
                    coding,
                    objective: self.objective,
                    ..open
                });
            }
        }
        Ok(questions)
    }

    fn link(&self, share: f64) -> Result<Link, Stop> {
        let round_trip = match (self.rtt, self.distance) {
            (Some(round_trip), _) => round_trip.as_secs_f64(),
            (None, distance) => Link::round_trip_over(distance.unwrap_or_default()),
        };
        if share >= 1.0 {
            return Err(Stop::Usage(
                "--loss 1 loses every packet, so no message would arrive: use less than 1".to_owned(),
            ));
        }
        let loss = match self.burst {
            None => Loss::Independent(share),
            // The least is the mean run of losses that are independent.
            Some(burst) if !(1.0 / (1.0 - share)..=BURST_PACKETS_MAX).contains(&burst) => {
                return Err(Stop::Usage(format!(
                    "expected a --burst of {:.3} to {BURST_PACKETS_MAX} packets, got {burst}: independent losses of {share} are the shortest; \
                     leave out --burst for those",
                    1.0 / (1.0 - share)
                )));
            }
            Some(burst) => Loss::bursts(share, burst),
        };
        Ok(Link::new(self.rate as f64, round_trip, loss))
    }

    fn packet_bytes(&self) -> Result<u32, Stop> {
        match self.packet {
            1..=65_000 => Ok(self.packet as u32),
            packet => Err(Stop::Usage(format!(
                "expected a --packet of 1 to 65000 bytes, which is what fits into an IP packet, got {packet}: RDMA has 256, 512, 1024, 2048 and 4096"
            ))),
        }
    }

    fn chunk_bytes(&self) -> Result<Option<u32>, Stop> {
        let packet = u64::from(self.packet_bytes()?);
        match self.chunk {
            None => Ok(None),
            Some(chunk) if chunk > 0 && chunk.is_multiple_of(packet) && chunk <= 1 << 30 => Ok(Some(chunk as u32)),
            Some(chunk) => Err(Stop::Usage(format!(
                "expected a --chunk that is a multiple of a packet's {packet} bytes, at most 1 GiB, got {chunk}: take {} or change --packet",
                packet.max(chunk.min(1 << 30) / packet * packet)
            ))),
        }
    }

    /// What is given, if it is.
    pub(super) fn coding_speed(&self) -> Result<Option<CodingSpeed>, Stop> {
        let (mds, xor) = match self.coding_speed[..] {
            [] => return Ok(None),
            [both] => (both, both),
            [mds, xor] => (mds, xor),
            _ => (0.0, 0.0),
        };
        match mds > 0.0 && xor > 0.0 {
            true => Ok(Some(CodingSpeed { mds_bytes_per_second: mds * 1e9, xor_bytes_per_second: xor * 1e9 })),
            false => Err(Stop::Usage(format!(
                "expected a --coding-speed of one or two numbers of more than 0 GB/s, as in 6.8 or 6.8,12, got {}: `longhaul perf coding` \
                 measures it",
                self.coding_speed.iter().map(f64::to_string).collect::<Vec<_>>().join(",")
            ))),
        }
    }

    /// What a reader of the answers should know.
    pub(super) fn notes(&self) -> Vec<Note> {
        notes::softnic(self.rate as f64).into_iter().chain(self.distance.map(notes::distance)).collect()
    }
}
