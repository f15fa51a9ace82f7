//! How far a simulation may grow.

/// How far a simulation may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulationLimits {
    /// Frames in flight on one direction of a link; further ones are dropped and counted. The default, 2^22, is
    /// 400 Gbit/s × 250 ms in frames of 4 KiB.
    pub in_flight_frames_max: usize,
    /// Room in each buffer of the frame pool. The default, 4,352 bytes, takes a 4 KiB payload and its headers; give
    /// less when payload is elided.
    pub pool_buffer_bytes: usize,
    /// Unused buffers that the pool keeps.
    pub pool_buffer_count_max: usize,
    /// Frames that wait for a paused node; further ones are dropped and counted. The default, 4,096, is a large receive
    /// ring of a NIC.
    pub paused_frames_max: usize,
    /// Faults that are scheduled and have not happened. The default is 2^20.
    pub scheduled_faults_max: usize,
    /// Events at one instant before the simulation panics, because time has stopped: a node whose deadline does not
    /// move on, or frames in a circle without delay.
    pub events_per_instant_max: u64,
}

impl Default for SimulationLimits {
    fn default() -> Self {
        SimulationLimits {
            in_flight_frames_max: 1 << 22,
            pool_buffer_bytes: 4_352,
            pool_buffer_count_max: 1 << 16,
            paused_frames_max: 4_096,
            scheduled_faults_max: 1 << 20,
            events_per_instant_max: 1 << 26,
        }
    }
}
