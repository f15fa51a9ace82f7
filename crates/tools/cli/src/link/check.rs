//! `longhaul link check`: what a link can do on this machine.

use std::time::Duration;

use longhaul::with_sources;
use longhaul_units::seconds_within;
use longhaul_wan::check::{self, CheckError, Options, Report, Row, SET_ASIDE_MAX};
use serde_json::{Value, json};

use super::options::stop_of;
use crate::judged::{self, Judged};
use crate::progress;
use crate::stop::{self, Stop};

/// Of a link that moves frames as fast as it should.
const OVER_BARE_MIN: f64 = 0.7;
const DELAY_ERROR_P99_US_MAX: f64 = 100.0;
/// What is called a stall of the host must be: share of the link's processor.
const STALLED_BEYOND_STEAL_MAX: f64 = 0.1;
/// Of the rate at which delay is measured, as the sender does not catch up after a stall.
const PACED_SHARE_MIN: f64 = 0.9;
/// What TCP must carry, by MTU.
const TCP_GBITS_MIN: [(usize, f64); 2] = [(1500, 2.0), (4200, 4.0)];

/// Measure what a link can do on this machine, both ends on it
///
/// In namespaces of its own, for MTU 1500 and 4200: frames a second with delay, loss and duplication, compared with a forwarder that does
/// nothing to frames (medians of runs in turns); TCP without delay; the error of the delay at 1 and 2 Gbit/s. The host may take the
/// processor away for a moment: a thread watches for that, and frames that met such a stall are set aside and counted. Exit status 1:
/// a check failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Seconds of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds_within(0.1..=60.0))]
    seconds: f64,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let progress = progress::bar(8, "{bar:30} {pos}/{len} {msg}");
    let options = Options { duration: Duration::from_secs_f64(arguments.seconds) };
    let report = check::check(&options, &mut |what| {
        progress.set_message(what.to_owned());
        progress.inc(1);
    });
    progress.finish_and_clear();
    let report = report.map_err(|error| match error {
        CheckError::Link(error) => stop_of(error),
        CheckError::Forward(error) => stop_of(error.into()),
        CheckError::Namespace(error) => error.into(),
        error => Stop::Failed(with_sources(&error)),
    })?;
    let judged = judge(&report);
    stop::tell(arguments.json, || to_json(&report, &judged), || to_table(&report, &judged), judged::wrong(&judged))
}

fn judge(report: &Report) -> Vec<Judged> {
    let mut judged = Vec::new();
    for row in &report.rows {
        let (mtu, paced) = (row.mtu, &row.paced);
        let named = |name: &str| format!("{name}, MTU {mtu}");
        let share = paced.sent_bits_per_second / paced.asked_bits_per_second;
        let stalls = paced.stalled_share - paced.steal_share;
        let paced_gbits = paced.asked_bits_per_second / 1e9;
        judged.extend([
            Judged::at_least(named("over_bare_forwarder"), row.over_bare_forwarder, OVER_BARE_MIN),
            Judged::at_least(named("TCP, Gbit/s"), row.tcp_bits_per_second / 1e9, tcp_gbits_min(mtu)),
            Judged::at_least(named("share of the paced rate that was sent"), share, PACED_SHARE_MIN),
            Judged::none(named("frames lost without loss"), paced.missing_frames + paced.refused_frames),
            Judged::at_most(named("stalls beyond what the host took"), stalls, STALLED_BEYOND_STEAL_MAX),
            Judged::none(named(&format!("ring drops at {paced_gbits} Gbit/s")), paced.ring_full_frames),
            Judged::at_most(
                named("delay error p99 outside stalls, us"),
                paced.delay_error_us.p99,
                DELAY_ERROR_P99_US_MAX,
            ),
            Judged::at_most(named("frames set aside"), paced.set_aside_share, SET_ASIDE_MAX),
        ]);
    }
    let loss = report.loss;
    judged.push(Judged {
        name: "loss".to_owned(),
        got: loss.lost_frames as f64 / loss.frames.max(1) as f64,
        bar: format!("{} within its interval", loss.set),
        is_good: loss.is_within_interval,
    });
    let uncounted = loss.lost_frames.abs_diff(loss.counted_frames);
    judged.push(Judged::none("frames lost that the link did not count".to_owned(), uncounted));
    judged
}

fn tcp_gbits_min(mtu: usize) -> f64 {
    TCP_GBITS_MIN.iter().find(|(of, _)| *of == mtu).map_or(0.0, |(_, least)| *least)
}

fn row_to_json(row: &Row) -> Value {
    let paced = &row.paced;
    json!({
        "mtu": row.mtu,
        "frames_per_second": row.frames_per_second,
        "bare_frames_per_second": row.bare_frames_per_second,
        "over_bare_forwarder": row.over_bare_forwarder,
        "packets_per_second_per_core": row.frames_per_second_per_core,
        "gbit_per_second": row.tcp_bits_per_second / 1e9,
        "paced_gbit_per_second": paced.sent_bits_per_second / 1e9,
        "paced_frames": paced.frames,
        "paced_missing_frames": paced.missing_frames,
        "ring_full_frames": paced.ring_full_frames,
        "late_frames": paced.late_frames,
        "delay_error_us": { "p50": paced.delay_error_us.p50, "p99": paced.delay_error_us.p99 },
        "delay_error_all_us": { "p50": paced.delay_error_all_us.p50, "p99": paced.delay_error_all_us.p99 },
        "set_aside_share": paced.set_aside_share,
        "stalled_share": paced.stalled_share,
        "steal_share": paced.steal_share,
        "refused_frames": paced.refused_frames,
    })
}

fn to_json(report: &Report, judged: &[Judged]) -> Value {
    // The keys of the whole are those of the first row: the MTU of most networks.
    let mut value = report.rows.first().map_or_else(|| json!({}), row_to_json);
    value["schema"] = 1.into();
    value["rows"] = report.rows.iter().map(row_to_json).collect();
    value["loss_set"] = report.loss.set.into();
    value["loss_frames"] = report.loss.frames.into();
    value["lost_frames"] = report.loss.lost_frames.into();
    value["loss_within_interval"] = report.loss.is_within_interval.into();
    value["has_real_time_priority"] = report.has_priority.into();
    value["steal_share"] = report.steal_share.into();
    value["checks"] = judged::to_json(judged);
    value
}

fn to_table(report: &Report, judged: &[Judged]) -> String {
    let mut text = String::from(
        "  MTU   frames/s  bare frames/s  ratio  frames/s/core  TCP Gbit/s   delay error us p50   p99  p99 of all  set aside\n",
    );
    for row in &report.rows {
        let paced = &row.paced;
        text += &format!(
            "{:>5} {:>10.0} {:>14.0} {:>6.2} {:>14.0} {:>11.2} {:>20.1} {:>5.0} {:>11.0} {:>9.1}%\n",
            row.mtu,
            row.frames_per_second,
            row.bare_frames_per_second,
            row.over_bare_forwarder,
            row.frames_per_second_per_core,
            row.tcp_bits_per_second / 1e9,
            paced.delay_error_us.p50,
            paced.delay_error_us.p99,
            paced.delay_error_all_us.p99,
            100.0 * paced.set_aside_share,
        );
    }
    let priority = if report.has_priority { "with" } else { "without" };
    text += &format!(
        "\nframes/s: with 10 ms delay, 0.1 % loss and duplication; bare: a forwarder that does nothing to frames, in turns with it. Delay error:\n\
         at 1 Gbit/s (MTU 1500) and 2 Gbit/s (4200), outside stalls of the host. The link ran {priority} real-time priority; the host gave\n\
         {:.1} % of the processors' time to others. Loss: {} of {} frames, {} set.\n\n",
        100.0 * report.steal_share,
        report.loss.lost_frames,
        report.loss.frames,
        report.loss.set,
    );
    text + &judged::to_table(judged)
}
