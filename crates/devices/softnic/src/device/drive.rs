//! What a device asks of its driver.

use std::io;
use std::sync::Arc;

use longhaul_verbs::Capabilities;

use crate::nic::guard::NicGuard;
use crate::port::Route;
use crate::resources::Signal;

/// Drives a device: gives it packets and time, and carries its packets away.
pub trait Drive: Send + Sync {
    /// What the port can do, beyond what every device can.
    fn capabilities(&self) -> Capabilities;

    /// A verbs call has made work. The device is still locked.
    fn on_work(&self, nic: NicGuard<'_>);

    /// A program looks for completions, and there are none. What arrives now it will be given.
    fn on_empty_poll(&self, _nic: &mut NicGuard<'_>) {}

    /// Another thread waits for the device, and this one has nothing to do.
    fn give_way(&self) {}

    /// A program wants to be told of the next completion: it is about to sleep.
    fn on_armed(&self, _nic: &mut NicGuard<'_>) {}

    /// A queue pair is about to go. What it has completed it must not leave unanswered: its peer would try again and again,
    /// and take for failed what has succeeded.
    fn before_destroy(&self, _nic: &mut NicGuard<'_>) {}

    /// The UDP port that packets of this route really leave from. A port that has not all of them at hand says which it uses.
    fn source_port(&self, route: &Route) -> Option<u16> {
        Some(route.source_port)
    }

    /// A descriptor that programs can wait for, if there is such a thing where the device runs.
    fn create_signal(&self) -> io::Result<Option<Arc<dyn Signal>>> {
        Ok(None)
    }
}

/// Where time is virtual, a function that is called when there is work is enough. It has multicast and no descriptors.
impl<F: Fn() + Send + Sync> Drive for F {
    fn capabilities(&self) -> Capabilities {
        Capabilities::MULTICAST
    }

    fn on_work(&self, nic: NicGuard<'_>) {
        drop(nic);
        self();
    }
}
