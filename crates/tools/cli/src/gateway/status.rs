//! `longhaul gateway status`: what gateways do and have counted.

use std::fmt::Write as _;
use std::time::Duration;

use longhaul_gateway::settings::Settings;
use longhaul_gateway::{RunningState, SITE, WIDE};
use longhaul_link::control::{self, ControlError, Kind, Request, ask};
use serde_json::{Value, json};

use crate::device_report;
use crate::stop::{self, Stop};

/// How far looks are apart.
const WATCHED_APART: Duration = Duration::from_secs(1);

/// Show the gateways of this user, with what they have counted
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this gateway [default: all of this user]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Show it again every second, until Ctrl-C
    #[arg(long)]
    watch: bool,

    /// Print one line of JSON instead of a table (with --watch: a line every second)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    loop {
        let shown = ask_all(arguments.name.as_deref())?;
        if arguments.watch && !arguments.json {
            // The screen is cleared.
            print!("\x1b[H\x1b[2J");
        }
        let text = || match shown.is_empty() {
            true => "no gateway of this user runs; start one with `longhaul gateway run FILE`\n".to_owned(),
            false => shown.iter().map(to_table).collect::<Vec<_>>().join("\n"),
        };
        stop::tell(arguments.json, || json!({ "schema": 1, "gateways": shown }), text, None)?;
        if !arguments.watch {
            return Ok(());
        }
        std::thread::sleep(WATCHED_APART);
    }
}

fn ask_all(name: Option<&str>) -> Result<Vec<Value>, Stop> {
    if let Some(name) = name {
        return Ok(vec![ask(Kind::Gateway, name, &Request::Show)?]);
    }
    let mut shown = Vec::new();
    for name in control::names(Kind::Gateway) {
        match ask(Kind::Gateway, &name, &Request::Show) {
            Ok(gateway) => shown.push(gateway),
            // It was killed.
            Err(ControlError::NotRunning { .. }) => {}
            // The others are shown all the same.
            Err(error) => eprintln!("{}", longhaul::with_sources(&error)),
        }
    }
    Ok(shown)
}

pub(super) fn to_json(settings: &Settings, state: &RunningState, has_bypass: bool) -> Value {
    let gateway = &state.gateway;
    let (frames, sent, received) = (&gateway.frames, &gateway.sent, &gateway.received);
    let mean_wait_us = frames.waited_nanos as f64 / 1e3 / received.held.max(1) as f64;
    json!({
        "schema": 1,
        "name": settings.name,
        "site": settings.site,
        "wide": settings.wide,
        "code": settings.code.to_string(),
        "fec_paths": device_report::fec_paths_json(&state.paths),
        "process": std::process::id(),
        "has_bypass": has_bypass,
        "peer_heard": gateway.peer_heard,
        "running_seconds": state.running_time.as_secs_f64(),
        "processor_seconds": state.processor_time.as_secs_f64(),
        "memory_bytes": gateway.memory_bytes,
        "memory_bytes_max": gateway.memory_bytes_max,
        "towards_wide": {
            "packets": frames.packets[SITE],
            "other_frames": frames.other[SITE],
            "not_peer_packets": frames.not_peer[SITE],
            "flows": gateway.flows[SITE],
            "host_pairs": gateway.pairs[SITE],
            "protected_packets": sent.protected,
            "repair_packets": sent.repairs,
            "announcements": sent.announcements,
            "greetings": frames.greetings,
            "without_peer_packets": frames.without_peer,
            "no_host_pair_packets": frames.no_pair[SITE],
            "no_flow_packets": sent.no_flow,
            "no_unit_packets": sent.no_unit,
            "unfit_packets": sent.unfit,
            "icrc_error_packets": sent.icrc_errors,
            "site_repair_packets": frames.site_repairs,
            "ring_full_frames": state.arrived[SITE].no_room,
            "too_long_frames": state.arrived[SITE].too_long,
            "unfinished_frames": state.arrived[SITE].unfinished,
        },
        "towards_site": {
            "packets": frames.packets[WIDE],
            "other_frames": frames.other[WIDE],
            "not_peer_packets": frames.not_peer[WIDE],
            "flows": gateway.flows[WIDE],
            "host_pairs": gateway.pairs[WIDE],
            "repair_packets": received.repairs,
            "restored_packets": received.restored,
            "restored_acknowledgements": received.restored_acknowledgements,
            "lost_blocks": received.given_up + received.no_room,
            "wrong_blocks": received.wrong_blocks,
            "held_packets": received.held,
            "waiting_packets": gateway.waiting_packets,
            "mean_wait_us": mean_wait_us,
            "late_packets": received.late,
            "refused_repair_packets": received.refused,
            "not_peer_repair_packets": frames.not_peer_repairs,
            "malformed_repair_packets": received.malformed,
            "too_long_repair_packets": received.too_long,
            "no_unit_packets": received.no_unit,
            "no_flow_packets": received.no_flow,
            "no_host_pair_packets": frames.no_pair[WIDE],
            "not_built_packets": frames.not_built,
            "icrc_error_packets": received.icrc_errors,
            "ring_full_frames": state.arrived[WIDE].no_room,
            "too_long_frames": state.arrived[WIDE].too_long,
            "unfinished_frames": state.arrived[WIDE].unfinished,
        },
        "sent_frames": state.forwarded.sent,
        "refused_frames": state.forwarded.refused,
        "late_frames": state.forwarded.late,
        "latest_us": state.forwarded.latest_nanos as f64 / 1e3,
    })
}

/// What matters always, and the rest where it is not zero.
pub(super) fn to_table(gateway: &Value) -> String {
    let text_of = |key: &str| gateway[key].as_str().unwrap_or_default();
    let heard = if gateway["peer_heard"] == true { "heard" } else { "not heard: packets pass unprotected" };
    let bypass = if gateway["has_bypass"] == true { "a bridge takes over" } else { "nothing passes" };
    let mut text = format!(
        "gateway \"{}\": site {}, wide {}, {}\nthe other gateway is {heard}; when this one ends, {bypass}\n",
        text_of("name"),
        text_of("site"),
        text_of("wide"),
        text_of("code"),
    );
    for path in gateway["fec_paths"].as_array().into_iter().flatten() {
        let text_of = |key: &str| path[key].as_str().unwrap_or_default();
        let loss = path["loss"].as_f64().unwrap_or_default();
        let changes = path["changes"].as_array().map_or(&[][..], Vec::as_slice);
        let reason = changes.last().map_or("", |change| change["reason"].as_str().unwrap_or_default());
        let reason = if reason.is_empty() { String::new() } else { format!(", the last because it was {reason}") };
        let _ = writeln!(
            text,
            "to {}: {} now, loss {loss:.1e}, {} changes of the code{reason}",
            text_of("peer"),
            text_of("code"),
            changes.len(),
        );
    }
    let megabytes = |key: &str| gateway[key].as_u64().unwrap_or_default() as f64 / 1e6;
    let _ = writeln!(
        text,
        "running for {:.0} s, {:.1} MB in the shim of at most {:.0}",
        gateway["running_seconds"].as_f64().unwrap_or_default(),
        megabytes("memory_bytes"),
        megabytes("memory_bytes_max"),
    );
    for (side, title) in [("towards_wide", "site to wide"), ("towards_site", "wide to site")] {
        let _ = writeln!(text, "{title}");
        let counters = gateway[side].as_object().into_iter().flatten();
        for (key, value) in counters {
            let is_always_shown =
                matches!(&**key, "packets" | "flows" | "repair_packets" | "restored_packets" | "lost_blocks");
            let shown = match value.as_f64() {
                Some(value) if value != 0.0 || is_always_shown => format!("{:.0}", value),
                _ => continue,
            };
            let _ = writeln!(text, "  {:<28} {shown:>16}", key.replace('_', " "));
        }
    }
    let lost = |key: &str| {
        let of = |side: &str| gateway[side][key].as_u64().unwrap_or_default();
        of("towards_wide") + of("towards_site")
    };
    let (too_long, unfinished) = (lost("too_long_frames"), lost("unfinished_frames"));
    if too_long > 0 {
        let _ = writeln!(
            text,
            "{too_long} frames were dropped: longer than the MTU when the gateway was started; restart it after changing an MTU"
        );
    }
    if unfinished > 0 {
        let _ = writeln!(
            text,
            "{unfinished} frames were dropped: without their checksum; switch that off where they come from: ethtool -K INTERFACE tx off"
        );
    }
    let long_repairs = gateway["towards_site"]["too_long_repair_packets"].as_u64().unwrap_or_default();
    if long_repairs > 0 {
        let _ = writeln!(
            text,
            "{long_repairs} repair packets were dropped: longer than this gateway has room for; set the same rdma_mtu at both gateways"
        );
    }
    let refused = gateway["refused_frames"].as_u64().unwrap_or_default();
    if refused > 0 {
        let _ = writeln!(
            text,
            "{refused} frames were refused by an interface: is it down, or its MTU smaller than the other's?"
        );
    }
    text
}
