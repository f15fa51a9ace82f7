//! `longhaul conformance --reliable`: the end-to-end suite of reliability schemes on a device.

use std::sync::Arc;
use std::time::Instant;

use longhaul_reliable::Scheme;
use longhaul_scheme_testing::end_to_end::{
    Case, CaseError, CaseRunner, Figures, GroundOptions, LibraryGround, Link, Suite, VirtualGround, endpoint_of, links,
    patient_options,
};
use longhaul_softnic_udp::{Impair, UdpConfig, UdpPortChoice};
use serde_json::{Value, json};

use super::libibverbs;
use super::testable::Testable;
use crate::stop::{self, Stop};

/// Packets that may be in flight on virtual time: all of the largest messages.
const DEPTH_VIRTUAL: u32 = 1 << 15;
/// Bytes of them on real time, which sockets and drivers can hold.
const WINDOW_BYTES_REAL: u64 = 2 << 20;

/// What the suite is told.
pub(super) struct Options<'a> {
    /// As the user called it.
    pub(super) name: &'a str,
    pub(super) device: &'a Testable,
    pub(super) gid_indexes: Option<[u8; 2]>,
    pub(super) seed: u64,
    /// All when there are none.
    pub(super) schemes: Vec<Arc<dyn Scheme>>,
    pub(super) sizes: &'a [usize],
    pub(super) messages: usize,
    pub(super) json: bool,
}

/// What has come of it so far.
#[derive(Default)]
struct Results {
    checks: Vec<Value>,
    failed: usize,
    figures: Figures,
}

pub(super) fn run(options: &Options<'_>) -> Result<(), Stop> {
    let begin = Instant::now();
    let mut results = Results::default();
    let links = match options.device {
        Testable::Virtual => links(),
        // Nothing in between: packets leave in batches, and are received in place.
        Testable::Udp(_) => [vec![Link { name: "bare", profile: None }], links()].concat(),
        Testable::Libibverbs(_) => vec![Link { name: "as-it-is", profile: None }],
    };
    // Small sizes share connections; large ones come one after the other, so that progress can be seen.
    let (small, large): (Vec<usize>, Vec<usize>) = options.sizes.iter().partition(|bytes| **bytes <= 1 << 16);
    for sizes in std::iter::once(small).chain(large.into_iter().map(|bytes| vec![bytes])) {
        let mut suite = Suite { links: links.clone(), ..Suite::new(options.messages, &sizes) };
        if !options.schemes.is_empty() {
            suite.schemes.clone_from(&options.schemes);
        }
        run_suite(options, &suite, &mut results)
            .map_err(|missing| Stop::missing(format!("{} cannot be tested here", options.name), missing))?;
    }
    tell(options, &results, begin.elapsed().as_secs_f64())
}

fn run_suite(options: &Options<'_>, suite: &Suite, results: &mut Results) -> Result<(), String> {
    let memory_bytes = suite.memory_bytes();
    let library_options = |scheme: &Arc<dyn Scheme>| {
        let mut library = patient_options();
        library.scheme = scheme.clone();
        library.window_bytes = Some(WINDOW_BYTES_REAL);
        library
    };
    match options.device {
        Testable::Virtual => run_on(suite, results, |link, scheme| {
            let ground_options = GroundOptions {
                seed: options.seed,
                receive_depth: DEPTH_VIRTUAL,
                ..GroundOptions::new(link.profile.clone().unwrap_or_default(), memory_bytes)
            };
            Ok(VirtualGround::with_scheme(&ground_options, scheme.clone()))
        }),
        Testable::Udp(addresses) => {
            let mut udp = UdpConfig::default();
            udp.udp_port = UdpPortChoice::Free;
            run_on(suite, results, |link, scheme| {
                let impair = link.profile.clone().map(|profile| Impair { profile, seed: options.seed });
                LibraryGround::open(*addresses, &udp, impair, &library_options(scheme), memory_bytes)
            });
        }
        Testable::Libibverbs(names) => {
            let (ends, _) = libibverbs::open_ends(names, options.gid_indexes)?;
            run_on(suite, results, |_, scheme| {
                let endpoints = [endpoint_of(&ends[0])?, endpoint_of(&ends[1])?];
                LibraryGround::between(&endpoints, &library_options(scheme), memory_bytes)
            });
        }
    }
    Ok(())
}

fn run_on<G: CaseRunner>(
    suite: &Suite,
    results: &mut Results,
    open: impl FnMut(&Link, &Arc<dyn Scheme>) -> Result<G, CaseError>,
) {
    let mut begin = Instant::now();
    let (last_scheme, last_case) = (suite.schemes.last().map(|scheme| scheme.name()), suite.cases.last());
    let ran = suite.run(open, |link, scheme, case, outcome| {
        let Case { messages, message_bytes, .. } = case;
        let message = match outcome {
            Ok(outcome) => {
                results.figures.add(outcome);
                None
            }
            Err(error) => {
                eprintln!("failed: {error}");
                results.failed += 1;
                Some(error.source.to_string())
            }
        };
        results.checks.push(json!({
            "name": format!("{}/{scheme}/{message_bytes}", link.name),
            "operations": messages,
            "passed": message.is_none(),
            "message": message,
        }));
        if last_scheme.as_deref() == Some(scheme) && last_case.is_some_and(|last| last.message_bytes == *message_bytes)
        {
            let Figures { messages, bytes, .. } = results.figures;
            let seconds = begin.elapsed().as_secs_f64();
            eprintln!(
                "{}, up to {message_bytes} bytes: {seconds:.1} s; {messages} messages, {bytes} bytes so far",
                link.name
            );
            begin = Instant::now();
        }
        Ok(())
    });
    // What went wrong is among the results.
    drop(ran);
}

fn tell(options: &Options<'_>, results: &Results, seconds: f64) -> Result<(), Stop> {
    let Results { checks, failed, figures } = results;
    let passed = checks.len() - failed;
    let value = || {
        json!({
            "schema": 1,
            "device": options.name,
            "checks": checks,
            "passed": passed,
            "failed": failed,
            "messages": figures.messages,
            "bytes": figures.bytes,
            "data_packets_sent": figures.data_packets_sent,
            "data_packets_repeated": figures.data_packets_repeated,
            "parity_packets_sent": figures.parity_packets_sent,
            "chunks_recovered": figures.chunks_recovered,
            "duplicate_packets": figures.duplicate_packets,
            "seconds": (seconds * 1000.0).round() / 1000.0,
        })
    };
    let table = || {
        let rows = [
            ("messages, contents verified", figures.messages),
            ("bytes of them", figures.bytes),
            ("data packets sent", figures.data_packets_sent),
            ("of them repeated", figures.data_packets_repeated),
            ("parity packets sent", figures.parity_packets_sent),
            ("chunks computed from parity", figures.chunks_recovered),
            ("duplicate packets", figures.duplicate_packets),
        ];
        let rows: String = rows.iter().map(|(what, count)| format!("{what:<28} {count:>16}\n")).collect();
        rows + &format!("{passed} passed, {failed} failed, {seconds:.1} s\n")
    };
    let wrong = (*failed > 0).then(|| Stop::Failed(format!("number of checks that failed: {failed}")));
    stop::tell(options.json, value, table, wrong)
}
