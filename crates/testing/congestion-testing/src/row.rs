//! What a scenario has shown: a row of the report, and checks that can fail.

use longhaul_time::Duration;

/// One run of a scenario.
#[derive(Clone, Debug)]
pub struct Row {
    /// By its name.
    pub controller: &'static str,
    /// What happens, in a few words.
    pub scenario: String,
    /// How many.
    pub flows: usize,
    /// Of all random decisions.
    pub seed: u64,
    /// Payload delivered by all flows, over the rate times the payload's share of a full packet.
    pub goodput_of_link: f64,
    /// Jain's index of fairness.
    pub jain: f64,
    /// The queueing delay at the bottleneck that 99 % of packets did not exceed.
    pub queue_p99: Duration,
    /// The share of packets that were dropped because the queue was full.
    pub loss_caused: f64,
    /// Until 0.9 of what the link can carry was reached after the beginning, or after a change; `None` if never.
    pub converged: Option<Duration>,
}

/// A figure and its bar.
#[derive(Clone, Debug)]
pub struct Check {
    /// What is compared.
    pub name: String,
    /// What was found.
    pub measured: f64,
    /// What was demanded.
    pub bar: Bar,
}

/// What a figure must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// No less.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
}

impl Check {
    /// Whether the bar is reached. What is not a number never is.
    pub fn is_good(&self) -> bool {
        match self.bar {
            Bar::AtLeast(bar) => self.measured >= bar,
            Bar::AtMost(bar) => self.measured <= bar,
        }
    }
}

/// Rows and checks of some scenarios.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In order of running.
    pub rows: Vec<Row>,
    /// What they must show.
    pub checks: Vec<Check>,
}

impl Report {
    /// Adds a check.
    pub fn check(&mut self, name: impl Into<String>, measured: f64, bar: Bar) {
        self.checks.push(Check { name: name.into(), measured, bar });
    }
}

/// The median; of an even count, the smaller of the two in the middle.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}
