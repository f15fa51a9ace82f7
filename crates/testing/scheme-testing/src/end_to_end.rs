//! The end-to-end suite of reliability schemes: messages of many sizes over bad links, contents verified.
//!
//! A ground is two ends of a connection and the network between them: on virtual time ([`VirtualGround`]), or on real
//! time, over devices of any kind and through the library, as programs have it ([`LibraryGround`]). A [`Case`] is what
//! is sent over it; [`Suite`] is all of them: links, schemes and sizes. The same suite runs on every ground.
//!
//! ```text
//!   Suite: link × scheme × size ──▶ run_case ──▶ CaseSender   ─▶ Connection ═══ the ground ═══ Connection ─▶ CaseReceiver
//! ```
//!
//! Where the two ends are two processes (`longhaul-interop`), each has its half of a case, and its own [`LibraryEnd`].

mod case;
mod end;
mod ground;
mod halves;
mod library;
mod suite;
mod twice;
mod virtual_time;

pub use case::{Case, CaseError, CaseRunner, Outcome};
pub use end::GroundOptions;
pub use ground::{Ground, run_case};
pub use halves::{CaseHalf, CaseReceiver, CaseSender};
pub use library::{
    LibraryEnd, LibraryGround, LibraryReceiver, LibrarySender, Operation, accept, endpoint_of, patient_options,
};
pub use suite::{Figures, Link, Suite, SuiteError, links, scheme_by_name, schemes};
pub use twice::Twice;
pub use virtual_time::VirtualGround;
