//! The Hadamard transform: how fast tensors are encoded and decoded, compared with copying the same bytes, and what a
//! lost packet costs.
//!
//! Encoding, decoding and copying are interleaved, one round of each after the other, and the median counts: processor
//! time of one thread. Copies are in pieces of 1 MiB or of the whole tensor at once; speeds are compared with the
//! faster. What loss costs is measured on tensors that are encoded, lose packets at random, and are decoded; seeds make
//! it repeatable.

mod loss;
mod request;
mod speed;

use longhaul_coding::{ElementKind, HadamardKernel};

pub use self::loss::{BlockErrors, MeanError};
pub use self::request::{HadamardRequest, MeasuredLayout};
use crate::error::PerfError;

/// Encoding reaches at least this share of a memory copy's speed …
const OF_COPY_MIN: f64 = 0.5;
/// … in layouts with this block, signs, and a stride of more than one and at most this. With single elements of 2 bytes
/// in packets it is slower than the bound on the machine that it was written on: rows without a check, whose
/// figures are in docs/COMMANDS.md.
const OF_COPY_BLOCK: usize = 1024;
const OF_COPY_STRIDE_MAX: [(ElementKind, usize); 3] =
    [(ElementKind::F32, 1024), (ElementKind::Bf16, 64), (ElementKind::F16, 64)];
/// Energy of the heaviest packet of weights around 1, at the largest stride: with signs at most, without at least.
const HEAVIEST_PACKET: (f64, f64) = (0.005, 0.9);
/// How far the share of lost blocks may be from the loss: chance alone passes it in 1 of 16,000 cases.
const STANDARD_ERRORS_OF_BLOCKS_MAX: f64 = 4.0;
/// How far the error of a decoded block may be from the energy of what was lost: rounding to bf16, with room.
const ENERGY_TOLERANCE: f64 = 1e-3;

/// What was measured in a layout.
#[derive(Clone, Debug)]
pub struct Row {
    /// The layout.
    pub layout: MeasuredLayout,
    /// Packets that a block is spread over: the layout's stride, if packets are as long as blocks.
    pub packets_of_block: usize,
    /// Bytes of tensors that are encoded in a second.
    pub encode_bytes_per_second: f64,
    /// Bytes of tensors that are decoded in a second.
    pub decode_bytes_per_second: f64,
    /// The former over that of copying, by the faster way.
    pub encode_of_copy: f64,
    /// The same for decoding.
    pub decode_of_copy: f64,
    /// Error of decoded tensors.
    pub mean: MeanError,
    /// Error of single blocks.
    pub blocks: BlockErrors,
}

/// What must hold.
#[derive(Clone, Debug)]
pub struct Check {
    /// What it is about.
    pub name: String,
    /// Whether it holds.
    pub passed: bool,
    /// What was measured.
    pub got: f64,
    /// What it may be: at most, or at least, as the name says.
    pub bound: f64,
}

/// All that was measured.
#[derive(Clone, Debug)]
pub struct HadamardReport {
    /// The kernel that ran.
    pub kernel: HadamardKernel,
    /// Bytes that are copied in a second, in pieces of 1 MiB.
    pub copy_pieces_bytes_per_second: f64,
    /// The same with one call for a whole tensor.
    pub copy_whole_bytes_per_second: f64,
    /// In the order of the layouts.
    pub rows: Vec<Row>,
    /// What must hold.
    pub checks: Vec<Check>,
}

impl HadamardReport {
    /// Bytes that are copied in a second: by the faster of both ways.
    pub fn copy_bytes_per_second(&self) -> f64 {
        self.copy_pieces_bytes_per_second.max(self.copy_whole_bytes_per_second)
    }
}

impl Check {
    fn at_least(name: String, got: f64, bound: f64) -> Check {
        Check { name, passed: got >= bound, got, bound }
    }

    fn at_most(name: String, got: f64, bound: f64) -> Check {
        Check { name, passed: got <= bound, got, bound }
    }
}

/// No transform, blocks in one packet, strides up to one element a packet, with and without signs, and long blocks
/// that need no stride.
fn layouts() -> Vec<MeasuredLayout> {
    use ElementKind::{Bf16, F16, F32};
    let layout = |kind, block, packet, stride, signs| MeasuredLayout { kind, block, packet, stride, signs };
    let mut layouts = vec![
        layout(F32, 1, 1024, 1024, false),
        layout(F32, 1024, 1024, 1, true),
        layout(F32, 1024, 1024, 16, true),
        layout(F32, 1024, 1024, 64, true),
        layout(F32, 1024, 1024, 1024, true),
        layout(F32, 1024, 1024, 64, false),
        layout(F32, 1024, 1024, 1024, false),
        layout(F32, 65_536, 1024, 1, true),
        layout(F32, 1 << 20, 1024, 1, true),
    ];
    for kind in [Bf16, F16] {
        layouts.extend([
            layout(kind, 1024, 1024, 16, true),
            layout(kind, 1024, 1024, 64, true),
            layout(kind, 1024, 1024, 1024, true),
            layout(kind, 2048, 2048, 64, true),
        ]);
    }
    layouts
}

/// Measures. `step` is called when something begins.
pub fn measure(request: &HadamardRequest, step: &mut dyn FnMut(&str)) -> Result<HadamardReport, PerfError> {
    let layouts = layouts();
    let packets = layouts.iter().map(|layout| loss::ELEMENTS / layout.packet).min().unwrap_or(1);
    request.check(packets)?;
    step("speed");
    let speeds = speed::measure(&layouts, request)?;
    let [pieces, whole] = speeds.copies;
    let copy = pieces.max(whole);
    let mut rows = Vec::new();
    for (number, (layout, speed)) in layouts.into_iter().zip(speeds.layouts).enumerate() {
        step(&layout.name());
        let (mean, blocks) = loss::measure(number, &layout, request);
        rows.push(Row {
            packets_of_block: layout.hadamard(0).layout().packets_of_block(),
            layout,
            encode_bytes_per_second: speed.encode,
            decode_bytes_per_second: speed.decode,
            encode_of_copy: speed.encode / copy,
            decode_of_copy: speed.decode / copy,
            mean,
            blocks,
        });
    }
    let mut checks: Vec<Check> = rows.iter().flat_map(|row| checks(row, request)).collect();
    let (most, least) = HEAVIEST_PACKET;
    let heaviest = |signs| loss::heaviest_packet(signs, request.seed);
    checks.push(Check::at_most(
        "energy of the heaviest packet of weights, signs: at most".into(),
        heaviest(true),
        most,
    ));
    checks.push(Check::at_least(
        "energy of the heaviest packet of weights, no signs: at least".into(),
        heaviest(false),
        least,
    ));
    Ok(HadamardReport {
        kernel: HadamardKernel::fastest(),
        copy_pieces_bytes_per_second: pieces,
        copy_whole_bytes_per_second: whole,
        rows,
        checks,
    })
}

/// What loss does to blocks with one element that is not zero. Blocks in one packet are lost as a whole or not at all,
/// so their 99.9th percentile says little: there it is the share of lost blocks that must be right.
fn block_check(name: &str, row: &Row, request: &HadamardRequest) -> Check {
    if row.packets_of_block == 1 {
        let standard_error = (request.loss * (1.0 - request.loss) / f64::from(request.samples)).sqrt();
        return Check::at_most(
            format!("{name}: standard errors between the share of spike blocks that are lost and loss, at most"),
            (row.blocks.mean - request.loss).abs() / standard_error,
            STANDARD_ERRORS_OF_BLOCKS_MAX,
        );
    }
    Check::at_most(
        format!("{name}: block_error_p999 of spike blocks from that of the binomial, at most"),
        (row.blocks.p999 - row.blocks.binomial_p999).abs(),
        // The sums of energies are rounded.
        1.0 / row.packets_of_block as f64 + 1e-6,
    )
}

fn checks(row: &Row, request: &HadamardRequest) -> Vec<Check> {
    let name = row.layout.name();
    let MeanError { relative, standard_error } = row.mean;
    let mut checks = vec![
        Check::at_most(
            format!("{name}: standard errors between relative_mse and loss, at most"),
            (relative - request.loss).abs() / standard_error,
            3.0,
        ),
        block_check(&name, row, request),
        Check::at_most(
            format!("{name}: errors of decoded blocks from the energy that was lost, at most"),
            row.blocks.from_energy,
            ENERGY_TOLERANCE,
        ),
    ];
    let MeasuredLayout { kind, block, stride, signs, .. } = row.layout;
    let is_checked = |(checked, most): &(ElementKind, usize)| *checked == kind && (2..=*most).contains(&stride);
    if block == OF_COPY_BLOCK && signs && OF_COPY_STRIDE_MAX.iter().any(is_checked) {
        checks.push(Check::at_least(format!("{name}: of_copy, at least"), row.encode_of_copy, OF_COPY_MIN));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_one_packet_are_checked_by_how_many_are_lost() {
        let request = HadamardRequest { buffer_bytes: 0, rounds: 0, loss: 0.05, trials: 0, samples: 100_000, seed: 1 };
        let layout = MeasuredLayout { kind: ElementKind::F32, block: 1, packet: 1024, stride: 1024, signs: false };
        let row = |packets_of_block, mean, p999| Row {
            layout,
            packets_of_block,
            encode_bytes_per_second: 0.0,
            decode_bytes_per_second: 0.0,
            encode_of_copy: 0.0,
            decode_of_copy: 0.0,
            mean: MeanError { relative: 0.05, standard_error: 0.001 },
            blocks: BlockErrors { p999, mean, binomial_p999: 1.0, noise_p999: 1.0, from_energy: 0.0 },
        };
        assert!(block_check("", &row(1, 0.0502, 1.0), &request).passed);
        // Nothing is ever lost, or a fifth too much.
        assert!(!block_check("", &row(1, 0.0, 1.0), &request).passed);
        assert!(!block_check("", &row(1, 0.06, 1.0), &request).passed);
        assert!(block_check("", &row(16, 0.05, 1.0 - 1.0 / 16.0), &request).passed);
        assert!(!block_check("", &row(16, 0.05, 1.0 - 2.0 / 16.0), &request).passed);
    }
}
