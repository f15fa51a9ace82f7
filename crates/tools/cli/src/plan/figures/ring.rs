//! Figure 13: ring all-reduce between sites, whose stages wait for each other: how many times faster erasure coding is
//! at the tail.

use longhaul_charts::{HeatMap, bytes, power_of_ten};
use longhaul_plan::link::PlanError;
use longhaul_plan::ring::DRAWS;
use longhaul_plan::scheme::Scheme;

use super::figure::Figure;
use super::points::{MDS, MESSAGE_BYTES, Point, SR_RTO, losses, number};
use super::speedup::{RAMP, RAMP_TICKS};
use crate::parallel::in_parallel;

const SITES: [u32; 6] = [2, 4, 8, 16, 32, 64];
/// Powers of two.
const BUFFERS: [u32; 8] = [21, 23, 25, 27, 29, 31, 33, 35];
const LOSSES: (i32, i32) = (-7, -1);
const SEED: u64 = 1;

/// A ring of `sites` sites that reduces a buffer over lossy links.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    sites: u32,
    buffer_bytes: u64,
    loss: f64,
}

/// 99.9th percentiles in seconds.
#[derive(Clone, Copy, Debug)]
struct Tails {
    slow: f64,
    fast: f64,
}

impl Cell {
    fn tails(&self) -> Result<Tails, PlanError> {
        let tail = |scheme: Scheme| {
            let point = Point { message_bytes: self.buffer_bytes, loss: self.loss, ..Point::new(scheme) };
            Ok(point.case().ring(self.sites, 10 * DRAWS, SEED)?.quantile(0.999))
        };
        Ok(Tails { slow: tail(SR_RTO)?, fast: tail(MDS)? })
    }
}

pub(super) fn figure() -> Result<Figure, PlanError> {
    let losses = losses(LOSSES.0, LOSSES.1, 1);
    let over_sites: Vec<(u32, u64)> = SITES.map(|sites| (sites, MESSAGE_BYTES)).to_vec();
    let over_buffers: Vec<(u32, u64)> = BUFFERS.map(|exponent| (4, 1 << exponent)).to_vec();
    let rows: Vec<(u32, u64)> = [over_sites, over_buffers].concat();
    let cell =
        |&(sites, buffer_bytes): &(u32, u64)| losses.iter().map(move |loss| Cell { sites, buffer_bytes, loss: *loss });
    let cells: Vec<Cell> = rows.iter().flat_map(cell).collect();
    let tails: Vec<Tails> = in_parallel(&cells, Cell::tails).into_iter().collect::<Result<_, _>>()?;
    let row = |row: usize| {
        let own = &tails[row * losses.len()..(row + 1) * losses.len()];
        own.iter().map(|tails| Some(tails.slow / tails.fast)).collect::<Vec<_>>()
    };
    let map = |title: &str, y_title: &str, y_labels: Vec<String>, first_row: usize| HeatMap {
        title: title.to_owned(),
        subtitle: String::new(),
        x_title: "Share of packets lost".to_owned(),
        y_title: y_title.to_owned(),
        x_labels: (LOSSES.0..=LOSSES.1).map(power_of_ten).collect(),
        rows: (first_row..first_row + y_labels.len()).map(row).collect(),
        y_labels,
        value_title: "Times faster than SR RTO, p99.9".to_owned(),
        ramp: RAMP,
        ramp_ticks: RAMP_TICKS.to_vec(),
        notes: Vec::new(),
    };
    let sites = map("128 MiB buffer", "Sites", SITES.map(|sites| sites.to_string()).to_vec(), 0);
    let labels = BUFFERS.map(|exponent| bytes(f64::from(exponent).exp2())).to_vec();
    let buffers = map("4 sites", "Buffer size", labels, SITES.len());
    let title = "Ring all-reduce between sites: MDS EC(32,8) against SR RTO (3 RTT), p99.9";
    let subtitle =
        "400 Gbit/s and 25 ms (3750 km) between neighbours, chunks of 4 KiB; 2N − 2 stages of 1/N of the buffer";
    Ok(Figure {
        title: title.to_owned(),
        svg: longhaul_charts::side_by_side(title, subtitle, &[&sites, &buffers]),
        csv: csv(&cells, &tails),
    })
}

fn csv(cells: &[Cell], tails: &[Tails]) -> String {
    let mut text = "sites,buffer_bytes,loss,sr_rto_p999_ms,ec_mds_32_8_p999_ms,speedup_p999\n".to_owned();
    for (cell, tails) in cells.iter().zip(tails) {
        let numbers = [tails.slow * 1e3, tails.fast * 1e3, tails.slow / tails.fast].map(number);
        text += &format!("{},{},{:e},{}\n", cell.sites, cell.buffer_bytes, cell.loss, numbers.join(","));
    }
    text
}
