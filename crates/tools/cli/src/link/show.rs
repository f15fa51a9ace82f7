//! `longhaul link show`: what links do and have counted.

use std::fmt::Write as _;

use longhaul_link::control::{self, ControlError, Kind, Request, ask};
use serde_json::{Value, json};

use crate::stop::{self, Stop};

/// Show the links of this user, with what they have counted
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this link [default: all of this user]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let mut shown = Vec::new();
    match &arguments.name {
        Some(name) => shown.push(ask(Kind::Link, name, &Request::Show)?),
        None => {
            for name in control::names(Kind::Link) {
                match ask(Kind::Link, &name, &Request::Show) {
                    Ok(link) => shown.push(link),
                    // It was killed; `longhaul link clean` removes the rest.
                    Err(ControlError::NotRunning { .. }) => {}
                    // The others are shown all the same.
                    Err(error) => eprintln!("{}", longhaul::with_sources(&error)),
                }
            }
        }
    }
    let text = || match shown.is_empty() {
        true => "no link of this user runs; start one with `longhaul link demo`\n".to_owned(),
        false => shown.iter().map(to_table).collect::<Vec<_>>().join("\n"),
    };
    stop::tell(arguments.json, || json!({ "schema": 1, "links": shown }), text, None)
}

/// Counters of both directions, those that are zero for both left out.
pub(super) fn to_table(link: &Value) -> String {
    let end = |index: usize| link["ends"][index].as_str().unwrap_or_default();
    let mut text = format!("link \"{}\", seed {}\n", link["name"].as_str().unwrap_or_default(), link["seed"]);
    let forth = format!("{} to {}", end(0), end(1));
    let back = format!("{} to {}", end(1), end(0));
    let _ = writeln!(text, "{:<22} {forth:>20} {back:>20}", "");
    for (key, name) in [
        ("settings", "settings"),
        ("frames", "frames"),
        ("bytes", "bytes"),
        ("queue_full_frames", "dropped: queue full"),
        ("lost_frames", "lost"),
        ("marked_frames", "marked (ECN)"),
        ("not_markable_frames", "not markable"),
        ("reordered_frames", "held back"),
        ("duplicated_frames", "duplicated"),
        ("corrupted_frames", "corrupted"),
        ("no_memory_frames", "dropped: memory full"),
        ("ring_full_frames", "dropped: ring full"),
        ("too_long_frames", "dropped: too long"),
        ("kept_frames", "in flight"),
    ] {
        let cell = |direction: &str| match &link[direction][key] {
            Value::String(text) if text.is_empty() => "nothing set".to_owned(),
            Value::String(text) => text.clone(),
            number => number.to_string(),
        };
        let (forth, back) = (cell("forth"), cell("back"));
        let is_always_shown = matches!(key, "settings" | "frames" | "bytes");
        if is_always_shown || forth != "0" || back != "0" {
            let _ = writeln!(text, "{name:<22} {forth:>20} {back:>20}");
        }
    }
    let refused = link["refused_frames"].as_u64().unwrap_or_default();
    if refused > 0 {
        let _ = writeln!(
            text,
            "{refused} frames were refused by an interface: is it down, or its MTU smaller than the other's?"
        );
    }
    if let Some(frames) = link["captured_frames"].as_u64() {
        let left_out = link["not_captured_frames"].as_u64().unwrap_or_default();
        let _ = writeln!(
            text,
            "the capture has {frames} frames{}",
            match left_out {
                0 => String::new(),
                _ => format!("; {left_out} more were left out, because the file had reached its limit"),
            }
        );
    }
    let late = link["late_frames"].as_u64().unwrap_or_default();
    if late > 0 {
        let latest = link["latest_us"].as_f64().unwrap_or_default() / 1e3;
        let _ =
            writeln!(text, "{late} frames left more than 1 ms late, the latest by {latest:.1} ms: is the host busy?");
    }
    text
}
