//! What a random program runs on: software RNICs that can reach each other, and how time passes for them.

use longhaul_impair::Profile;
use longhaul_shim::Agreement;
use longhaul_softnic::{Counters, ShimLayer};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Device;
use longhaul_wire::UDP_PORT_ROCE;
use longhaul_world::{Fault, World};

/// What a random program runs on.
pub(super) trait Ground {
    /// The device of a node. Rows 0 and 1 of its GID table are addresses that reach the others.
    fn device(&self, node: usize) -> Device;

    /// The UDP port at which a node listens.
    fn udp_port(&self, _node: usize) -> u16 {
        UDP_PORT_ROCE
    }

    /// The time since the beginning.
    fn now(&self) -> Instant;

    /// Lets time pass until `condition` holds, but not beyond `deadline`. Returns whether it holds.
    fn run_until(&mut self, deadline: Instant, condition: &mut dyn FnMut() -> bool) -> bool;

    /// Makes every way between nodes better or worse.
    fn set_link_profile(&mut self, profile: Profile);

    /// Lets something go wrong, or repairs it. On real time nothing does.
    fn apply(&mut self, _fault: Fault) {}

    /// Links between switches.
    fn fabric_link_count(&self) -> usize {
        0
    }

    /// Protects a queue pair of a node with forward error correction, if the node has it.
    fn agree(&mut self, _node: usize, _agreement: &Agreement) {}

    /// Protects it no more.
    fn disagree(&mut self, _node: usize, _agreement: &Agreement) {}

    /// How long nothing may happen after everything is done.
    fn silence(&self) -> Duration;

    /// Whether packets may be received where they are guessed to belong.
    fn has_guesses(&self) -> bool {
        false
    }

    /// What the devices have done so far. When it is the same twice, they did nothing in between.
    fn activity(&self) -> Vec<Counters> {
        Vec::new()
    }

    /// Lets `look` look at memory while the devices stand still; but not if they have done something since `activity`.
    /// Returns whether it has looked.
    fn look_at_rest(&self, activity: &[Counters], look: &mut dyn FnMut()) -> bool;
}

/// On virtual time everything stands still until the caller lets time pass.
impl Ground for World {
    fn device(&self, node: usize) -> Device {
        World::device(self, node)
    }

    fn now(&self) -> Instant {
        World::now(self)
    }

    fn run_until(&mut self, deadline: Instant, condition: &mut dyn FnMut() -> bool) -> bool {
        World::run_until(self, deadline, condition)
    }

    fn set_link_profile(&mut self, profile: Profile) {
        World::set_link_profile(self, profile);
    }

    fn apply(&mut self, fault: Fault) {
        World::apply(self, fault);
    }

    fn fabric_link_count(&self) -> usize {
        World::fabric_link_count(self)
    }

    fn agree(&mut self, node: usize, agreement: &Agreement) {
        self.with_layers(node, |stack| {
            let layer = stack.layers_mut::<ShimLayer>().next();
            layer.map(|layer| layer.agree(agreement).expect("a code that was checked"))
        });
    }

    fn disagree(&mut self, node: usize, agreement: &Agreement) {
        self.with_layers(node, |stack| stack.layers_mut::<ShimLayer>().for_each(|layer| layer.disagree(agreement)));
    }

    fn silence(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn look_at_rest(&self, _activity: &[Counters], look: &mut dyn FnMut()) -> bool {
        look();
        true
    }
}
