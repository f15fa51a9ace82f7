//! Erasure codes: parity chunks are computed from data chunks, and lost data chunks from what has arrived.
//!
//! A chunk is some bytes in memory; nothing here knows what a packet, a message or a network is. The codes are
//! systematic: data stays where it lies and as it is, parity is written into slices of the caller's, and decoding
//! writes the lost chunks where they belong.
//!
//! ```
//! use longhaul_coding::{Arrived, Code, Coder};
//!
//! let mut coder = Coder::new(Code::mds(3, 2)?);
//! let mut parity = [[0; 4]; 2];
//! coder.encode(&[b"when", b"in d", b"oubt"], &mut parity.each_mut().map(|chunk| &mut chunk[..]))?;
//! // The first two chunks are lost in transit.
//! let (mut first, mut second, mut third) = (*b"????", *b"????", *b"oubt");
//! let arrived = Arrived { data: [2].into_iter().collect(), parity: [0, 1].into_iter().collect() };
//! assert!(coder.code().can_decode(&arrived));
//! let mut data = [&mut first[..], &mut second[..], &mut third[..]];
//! coder.decode(&arrived, &mut data, &parity.each_ref().map(|chunk| &chunk[..]))?;
//! assert_eq!((&first, &second), (b"when", b"in d"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The codes
//!
//! What parity is, is a wire format: both ends must compute the same bytes, whatever processor they have. With `k` data
//! chunks `d[0] … d[k-1]` and `m` parity chunks `p[0] … p[m-1]`, at most 255 together:
//!
//! - **XOR**: `p[i]` is the XOR of all `d[j]` with `j mod m = i`. One loss in each such group can be recovered. Hardly
//!   any work, but two losses that fall into the same group are one too many.
//! - **MDS** (Reed–Solomon; "maximum distance separable"): `p[i] = Σ a[i][j] · d[j]`, byte by byte, in the field of 256
//!   elements with the polynomial x⁸ + x⁴ + x³ + x² + 1 (0x11d), where `a[i][j] = 1 / ((255 − i) + j)`, and `+` is XOR.
//!   This is a Cauchy matrix, of which every square part can be inverted: any `k` of the `k + m` chunks give all
//!   others.
//!
//! In both, what a data chunk adds to a parity chunk does not depend on `k`. So a submessage at the end of a message
//! that has fewer than `k` chunks is coded as if it were filled up with chunks of zeros, and nothing is spent on those.
//!
//! Parity chunks all have the same length, and data chunks have at most that length. A shorter one, such as the last of
//! a message, is coded as if it were filled up with zeros; when it is lost, only its own bytes are computed.
//!
//! # The modules
//!
//! In the order in which parity comes about: `code` (which code, what it can recover), `field` and `matrix` (arithmetic
//! and coefficients), `coder` (encode and decode one submessage), `combine` (walks over the chunks in pieces that fit
//! into the cache), `kernel` (the inner loop, chosen at run time), `message` (a whole message of many submessages, on
//! several threads), `running` (parity that is updated as chunks pass).
//!
//! # Without parity
//!
//! [`Hadamard`] spreads the loss of a packet thinly over a tensor, for messages that end on time and not whole. Nothing
//! is sent in addition and nothing is recovered.
//!
//! The kernels of both are the only SIMD of the project.

mod arrived;
mod code;

mod field;
mod matrix;

mod coder;
mod combine;
mod kernel;

mod message;
mod running;

mod hadamard;

pub use arrived::{Arrived, ChunkSet};
pub use code::{CHUNKS_MAX, Code, CodeError, CodeKind, ParseCodeError};
pub use coder::{Coder, DecodeError, EncodeError};
pub use hadamard::{
    Bf16, ElementKind, F16, Hadamard, HadamardElement, HadamardError, HadamardKernel, HadamardLayout,
    HadamardLayoutError, HadamardSigns, sum_encoded,
};
pub use kernel::Kernel;
pub use message::{DecodeMessageError, EncodeMessageError, LayoutError, MessageLayout};
pub use running::{RunningCoder, can_restore, xor_group};
