//! How long a message takes over a lossy link with each reliability scheme, and which scheme to take: the completion-time model of
//! SDR-RDMA (§4.2 and its appendices), with whole distributions, bursts, serialised repetitions and the timers of our own protocols.
//!
//! Pure computation: no clock, no input or output; threads only in the [`twin`]. In the order of the computation:
//!
//! | module | what |
//! |---|---|
//! | [`link`] | the link, its loss as a chain of two states |
//! | [`scheme`] | the schemes and their timers |
//! | `losses` | losses of consecutive chunks, and what a code can do about them |
//! | [`distribution`] | distributions of times |
//! | `selective_repeat`, `erasure`, `go_back_n` | the models, each with the derivation of its formula |
//! | [`bounded`] | what has arrived at a deadline |
//! | [`ring`](mod@ring) | ring all-reduce over sites |
//! | [`model`] | one case: link, message, chunk, scheme |
//! | [`twin`] | the same protocols played through, event by event, from a seed |
//! | [`question`] | a question, and an answer that can be printed |
//! | [`recommendation`] | which scheme, why, and how close the second was |
//! | [`table`] | decisions prepared for live use |

pub mod bounded;
pub mod distribution;
mod erasure;
mod go_back_n;
pub mod link;
mod losses;
mod matrix;
pub mod model;
mod probability;
pub mod question;
pub mod recommendation;
pub mod ring;
pub mod scheme;
mod selective_repeat;
pub mod table;
pub mod twin;
