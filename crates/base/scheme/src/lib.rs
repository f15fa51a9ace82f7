//! What a reliability scheme is called and what follows from its name: the code, the layout of parity, the timers.
//!
//! `longhaul-reliable` runs the schemes and `longhaul-plan` computes how long they take. Both must mean the same thing
//! by `ec:mds:32,8` and by "three round trips", so both take it from here. These are values and formulas only: nothing
//! here sends, waits or reads a clock.
//!
//! | module | what |
//! |---|---|
//! | `name` | the schemes that a message can have, and how they are written |
//! | `list` | the schemes that a connection's messages can have |
//! | [`parity`] | how much parity a message gets |
//! | [`timers`] | how long each scheme waits for what, from the round trip |

mod list;
mod name;
pub mod parity;
pub mod timers;

pub use list::SchemeList;
pub use longhaul_coding::{Code, CodeError, CodeKind, ParseCodeError};
pub use name::{NamedScheme, SchemeNameError};
