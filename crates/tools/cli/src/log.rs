//! What the libraries have to say, on standard error: standard output is for results.

use std::env;

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Which of it is shown: crates and levels, separated by commas, such as `longhaul=debug` or `info`.
const VARIABLE: &str = "RUST_LOG";

/// Show what `RUST_LOG` asks for; without it, warnings and errors.
pub(crate) fn install() {
    let warnings = Targets::new().with_default(Level::WARN);
    let asked = env::var(VARIABLE).ok().filter(|text| !text.trim().is_empty());
    let (shown, problem) = match asked.as_deref().map(str::parse::<Targets>) {
        None => (warnings, None),
        Some(Ok(targets)) => (targets, None),
        Some(Err(error)) => (warnings, Some(error)),
    };
    // Who says it matters only to those who ask for more than warnings.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).without_time().with_ansi(false);
    tracing_subscriber::registry().with(lines.with_target(asked.is_some())).with(shown).init();
    if let Some(error) = problem {
        tracing::warn!("{VARIABLE} is ignored: {error}; use for example {VARIABLE}=longhaul=debug");
    }
}
