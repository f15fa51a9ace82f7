//! Figure 15: how large a chunk is, how often it is lost, and how many packets a second go into bitmaps.
//!
//! The probability is the model's. The packet rates are not computed: the paper's were measured on a BlueField-3, ours
//! by `longhaul perf bitmap`; they are here for reference.

use longhaul_charts::{Axis, Bar, BarChart, Colour, LineChart, Scale, Series, Style, decimal, power_of_ten};
use longhaul_plan::link::PlanError;

use super::figure::Figure;
use super::points::{CHUNK_BYTES, Point, SR_RTO, number};

/// Packets in a chunk, and million packets a second in the paper's figure: 16 threads of a BlueField-3, writes of 64
/// bytes.
const REPORTED: [(u32, f64); 7] = [(1, 15.0), (2, 17.0), (4, 19.0), (8, 21.0), (16, 23.0), (32, 24.0), (64, 24.5)];
/// What the paper gives for 400 Gbit/s in packets of 4 KiB.
const LINE_RATE: f64 = 11.6;
/// Packets in a chunk, host threads, and million packets a second: docs/PERFORMANCE.md.
const MEASURED: [(u32, u32, f64); 2] = [(16, 1, 40.8), (16, 2, 71.9)];
/// Black letters on it can be read.
const REPORTED_COLOUR: Colour = (190, 190, 190);
/// The paper's loss, as a power of ten.
const LOSS_EXPONENT: i32 = -5;
/// The losses of packets in the right half.
const LOSSES: [i32; 4] = [-5, -4, -3, -2];

pub(super) fn figure() -> Result<Figure, PlanError> {
    let lost = |loss: f64, packets: u32| {
        let point = Point { loss, ..Point::new(SR_RTO) };
        point.link().chunk_loss(packets * CHUNK_BYTES)
    };
    let mut csv = "chunk_packets,packet_loss,chunk_loss,paper_hardware_million_packets_per_second,\
                   ours_1_host_thread_million_packets_per_second,ours_2_host_threads_million_packets_per_second\n"
        .to_owned();
    let mut groups = Vec::new();
    let mut lines: Vec<Vec<(f64, f64)>> = vec![Vec::new(); LOSSES.len()];
    for (packets, rate) in REPORTED {
        let bar = Bar { kind: 0, height: rate, above: decimal(rate, 1) };
        groups.push((packets.to_string(), vec![bar]));
        for (line, exponent) in lines.iter_mut().zip(LOSSES) {
            let loss: f64 = format!("1e{exponent}").parse().expect("a number");
            let chunk_loss = lost(loss, packets)?;
            line.push((f64::from(packets), chunk_loss));
            let ours = |threads: u32| {
                let found =
                    MEASURED.iter().find(|(chunk, host_threads, _)| (*chunk, *host_threads) == (packets, threads));
                found.map(|(.., rate)| rate.to_string()).unwrap_or_default()
            };
            csv += &format!("{packets},{loss:e},{},{rate},{},{}\n", number(chunk_loss), ours(1), ours(2));
        }
    }
    let measured = |(kind, (_, _, rate)): (usize, (u32, u32, f64))| Bar { kind, height: rate, above: decimal(rate, 1) };
    let bars = (1..).zip(MEASURED).map(measured).collect();
    groups.push((format!("{}, ours", MEASURED[0].0), bars));
    let rates = BarChart {
        title: "Packets into bitmaps".to_owned(),
        subtitle:
            "Measured: the paper's on a BlueField-3 with writes of 64 bytes, ours on a host processor without a network"
                .to_owned(),
        x_title: "Chunk [packets of 4 KiB]".to_owned(),
        y_title: "Million packets a second".to_owned(),
        groups,
        kinds: vec![
            ("paper, 16 NIC threads".to_owned(), REPORTED_COLOUR),
            ("ours, 1 host thread".to_owned(), Style::numbered(5).colour),
            ("ours, 2 host threads".to_owned(), Style::numbered(0).colour),
        ],
        guide: Some((LINE_RATE, "400 Gbit/s in 4 KiB packets".to_owned())),
        notes: Vec::new(),
    };
    let series = lines.into_iter().zip(LOSSES).enumerate().map(|(index, (points, exponent))| {
        // The paper's figure has the numbers at its loss.
        let is_paper = exponent == LOSS_EXPONENT;
        let labels = points.iter().filter(|_| is_paper).map(|point| probability(point.1)).collect();
        Series::new(format!("packet loss {}", power_of_ten(exponent)), Style::numbered(index), points).labelled(labels)
    });
    let chances = LineChart {
        title: "Share of chunks lost: one packet is enough".to_owned(),
        subtitle: "1 − (1 − p)ᴺ for N packets; the paper's figure has the numbers at 10⁻⁵".to_owned(),
        x: Axis::new("Chunk [packets of 4 KiB]", Scale::Log2).over(1.0, 64.0),
        y: Axis::new("Share of chunks lost", Scale::Log10).over(1e-6, 1.0),
        series: series.collect(),
        guides: Vec::new(),
        notes: Vec::new(),
    };
    let title = "What the size of a chunk costs";
    Ok(Figure {
        title: title.to_owned(),
        svg: longhaul_charts::side_by_side(title, "Packets of 4 KiB, lost independently", &[&rates, &chances]),
        csv,
    })
}

/// 1.6·10⁻⁴.
fn probability(share: f64) -> String {
    // A little less than a power of ten is that power.
    let exponent = (share.log10() + 1e-3).floor() as i32;
    let factor = share / 10.0_f64.powi(exponent);
    format!("{}·{}", decimal(factor, 1), power_of_ten(exponent))
}
