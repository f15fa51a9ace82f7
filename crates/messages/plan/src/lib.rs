//! How long a message takes over a lossy link with each reliability scheme, and which scheme to take: the
//! completion-time model of SDR-RDMA (§4.2 and its appendices), with whole distributions, bursts, serialised
//! repetitions and the timers of our own protocols.
//!
//! Pure computation: no clock, no input or output; threads only where samples are drawn, in rings and in the [`twin`].
//! In the order of the computation:
//!
//! | module | what |
//! |---|---|
//! | [`link`] | the link, its loss as a chain of two states |
//! | [`scheme`] | the schemes and their timers |
//! | `losses` | losses of consecutive chunks |
//! | `submessage` | what a code can do about them |
//! | [`distribution`] | distributions of times |
//! | `asked` | how many chunks an erasure receiver asks for |
//! | `selective_repeat`, `erasure`, `go_back_n` | the models, each with the derivation of its formula |
//! | [`bounded`] | what has arrived at a deadline |
//! | [`ring`](mod@ring) | ring all-reduce over sites |
//! | [`model`] | one case: link, message, chunk, scheme |
//! | [`twin`] | the same protocols played through, event by event, from a seed |
//! | [`question`] | a question, and an answer that can be printed |
//! | [`recommendation`] | which scheme, why, and how close the second was |
//! | [`table`] | decisions prepared for live use |
//! | [`digits`] | numbers in at most four digits |
//!
//! What is exact and what is not, against the twin:
//!
//! | | exact | approximated |
//! |---|---|---|
//! | selective repeat | losses of single packets, while a message is shorter than the timeout; first losses in bursts | repeats in a long message queue behind a number of others that is taken to be normal; bursts that meet repeats |
//! | erasure coding | what a code can recover, single losses and bursts (XOR: up to 8 groups); loss of what the receiver asks | the number of chunks asked for from the third time on is a mean; neighbours that fail together in bursts, once they have been asked for |
//! | go-back-N | up to a thousand losses of single packets | more: a gamma distribution; where in a block the shim finds a loss, when there are many |
//! | bounded completion | single losses | bursts: a normal distribution |
//! | ring | | samples |
//!
//! And against our protocols: feedback that is paced is taken to be as late as it may be, that of negative
//! acknowledgements included; each report or request of the receiver is one packet; a message that `longhaul-reliable`
//! cuts into several is one. `docs/VALIDATION.md` has what that makes.

mod asked;
pub mod bounded;
pub mod digits;
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
mod submessage;
pub mod table;
pub mod twin;
