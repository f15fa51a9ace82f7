//! Does a verbs device do what the InfiniBand specification says? For those who make devices and drivers.
//!
//! - The **suite**: some hundred short tests of what every device must do, each with a stable name. It is written
//!   against [`longhaul_verbs`], so it runs on any device behind that boundary: pass two of them to
//!   [`RealTime::between`], or implement [`Environment`].
//! - [`checker`]: is what a verbs program saw allowed by the specification? It knows nothing of the device.
//! - [`soak`]: random verbs programs over bad networks, watched by the checker, on the software RNIC.
//!
//! Nothing here knows messages or reliability schemes. The command `longhaul conformance` runs the same tests on devices
//! of this host.
//!
//! ```
//! use longhaul_conformance::{Test, VirtualTime, registry, run};
//!
//! // Two software RNICs on virtual time; `RealTime::between` takes any two devices.
//! let mut environment = VirtualTime::new(1);
//! let tests: Vec<Test> = registry().into_iter().filter(|test| test.name().contains("/fence/")).collect();
//! assert!(!tests.is_empty());
//! let report = run(&mut environment, &tests, |test, verdict| println!("{}: {verdict:?}", test.name()));
//! assert!(report.is_good());
//! ```

pub mod checker;
pub mod soak;
mod suite;

pub use suite::{
    Context, DeviceEnd, Environment, Failure, GROUPS, Group, KNOWN_DEPARTURES, KnownDeparture, Outcome, RealTime,
    Remark, Report, Shown, Test, Verdict, VirtualTime, known_departures, registry, run,
};
