//! What a test works with: the two devices, waiting, and the books on where a device departs from the specification.

use longhaul_time::Duration;
use longhaul_verbs::{
    AsyncEvent, Capabilities, CompletionQueue, CompletionStatus, Device, DeviceAttributes, Gid, GidType,
    PortAttributes, Transport, WorkCompletion,
};

use super::Environment;
use super::failure::{Failure, Outcome, status_among};
use super::memory::Memory;

/// What a test works with.
pub struct Context<'a> {
    environment: &'a mut dyn Environment,
    devices: [Device; 2],
    /// Where the device does not do what the specification says and the environment lets that pass.
    pub(super) departures: Vec<String>,
}

impl<'a> Context<'a> {
    pub(super) fn new(environment: &'a mut dyn Environment) -> Self {
        let devices = environment.devices().map(Clone::clone);
        Context { environment, devices, departures: Vec::new() }
    }

    /// The device of end 0 or 1.
    pub(super) fn device(&self, end: usize) -> &Device {
        &self.devices[end]
    }

    pub(super) fn device_attributes(&self, end: usize) -> Outcome<DeviceAttributes> {
        Ok(self.devices[end].attributes()?)
    }

    /// What both ends can do.
    pub(super) fn capabilities(&self) -> Outcome<Capabilities> {
        Ok(self.device_attributes(0)?.capabilities & self.device_attributes(1)?.capabilities)
    }

    /// The port of an end's device.
    pub(super) fn port(&self, end: usize) -> u8 {
        self.environment.port(end)
    }

    pub(super) fn port_attributes(&self, end: usize) -> Outcome<PortAttributes> {
        Ok(self.devices[end].port_attributes(self.port(end))?)
    }

    /// InfiniBand's address of an end's port; with RoCE there is none, and the port is not asked.
    pub(super) fn lid(&self, end: usize) -> Outcome<u16> {
        let entry = self.devices[end].gid(self.port(end), self.gid_index(end).into())?;
        match entry.gid_type {
            GidType::InfiniBand => Ok(self.port_attributes(end)?.lid),
            _ => Ok(0),
        }
    }

    pub(super) fn gid_index(&self, end: usize) -> u8 {
        self.environment.gid_index(end)
    }

    pub(super) fn gid(&self, end: usize) -> Outcome<Gid> {
        Ok(self.devices[end].gid(self.port(end), self.gid_index(end).into())?.gid)
    }

    /// The UDP port at which an end listens.
    pub(super) fn udp_port(&self, end: usize) -> u16 {
        self.environment.udp_port(end)
    }

    pub(super) fn path_mtu(&self) -> longhaul_verbs::Mtu {
        self.environment.mtu()
    }

    /// Payload bytes of a full packet.
    pub(super) fn mtu(&self) -> usize {
        self.environment.mtu().byte_count() as usize
    }

    pub(super) fn now(&self) -> Duration {
        self.environment.now()
    }

    pub(super) fn progress(&mut self) {
        self.environment.progress();
    }

    /// Long enough for everything that will happen by itself to have happened.
    pub(super) fn rest(&mut self) {
        for _ in 0..self.environment.quiet() {
            self.environment.progress();
        }
    }

    /// Takes down or brings up the link of an end's port; whether the environment can.
    pub(super) fn set_link(&mut self, end: usize, up: bool) -> bool {
        self.environment.set_link(end, up)
    }

    /// Lets a departure from the specification that is common in the field pass, if the environment is lenient; it is
    /// reported all the same.
    pub(super) fn tolerate(&mut self, result: Outcome) -> Outcome {
        match result {
            Err(failure) if !self.environment.is_strict() => {
                self.departures.push(failure.message);
                Ok(())
            }
            result => result,
        }
    }

    /// Fails unless this completion is that of request `id`, which has itself failed, with one of these statuses.
    /// Another failure than those is a departure that is common in the field: devices differ in what they call a fault,
    /// not in that it is one.
    pub(super) fn failed(
        &mut self,
        what: &str,
        completion: &WorkCompletion,
        id: u64,
        expected: &[CompletionStatus],
    ) -> Outcome {
        let result = status_among(what, completion, id, expected);
        let is_failure = !matches!(completion.status, CompletionStatus::Success | CompletionStatus::FlushedError);
        match completion.id == id && is_failure {
            true => self.tolerate(result),
            false => result,
        }
    }

    /// Waits for something; `attempt` is asked again and again and says at last why it has not happened.
    pub(super) fn wait_for<T>(&mut self, mut attempt: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        for _ in 0..self.environment.patience() {
            if let Ok(value) = attempt() {
                return Ok(value);
            }
            self.environment.progress();
        }
        attempt()
    }

    /// Waits for exactly this many completions, in their order.
    pub(super) fn completions(
        &mut self,
        what: &str,
        queue: &CompletionQueue,
        count: usize,
    ) -> Outcome<Vec<WorkCompletion>> {
        let mut completions = Vec::with_capacity(count);
        for _ in 0..=self.environment.patience() {
            while completions.len() < count {
                match queue.poll_one()? {
                    Some(completion) => completions.push(completion),
                    None => break,
                }
            }
            if completions.len() == count {
                return Ok(completions);
            }
            self.environment.progress();
        }
        let last: Vec<_> = completions.iter().rev().take(3).collect();
        Err(Failure::new(format!(
            "{what}: expected {count} completions, got {} in the time allowed; the last were {last:?}",
            completions.len()
        )))
    }

    /// Waits for one completion.
    pub(super) fn completion(&mut self, what: &str, queue: &CompletionQueue) -> Outcome<WorkCompletion> {
        Ok(self.completions(what, queue, 1)?[0])
    }

    /// Waits long enough to believe that no completion comes.
    pub(super) fn no_completion(&mut self, what: &str, queue: &CompletionQueue) -> Outcome {
        self.rest();
        match queue.poll_one()? {
            None => Ok(()),
            Some(completion) => Err(Failure::new(format!("{what}: expected no completion, got {completion:?}"))),
        }
    }

    /// Waits until memory holds what it should (a WRITE makes no completion at its target).
    pub(super) fn settle(&mut self, what: &str, memory: &Memory) -> Outcome {
        self.wait_for(|| memory.verify(what))
    }

    /// Waits long enough to believe that memory stays as it should be.
    pub(super) fn unchanged(&mut self, what: &str, memory: &Memory) -> Outcome {
        self.rest();
        memory.verify(what)
    }

    /// Takes and forgets the asynchronous events of both ends.
    pub(super) fn forget_events(&mut self) -> Outcome {
        for device in &self.devices {
            while device.next_event()?.is_some() {}
        }
        Ok(())
    }

    /// Waits for an asynchronous event of one end that fits, ignoring the others.
    pub(super) fn event(&mut self, what: &str, end: usize, fits: impl Fn(&AsyncEvent) -> bool) -> Outcome<AsyncEvent> {
        let device = self.devices[end].clone();
        let mut others = Vec::new();
        for _ in 0..=self.environment.patience() {
            while let Some(event) = device.next_event()? {
                if fits(&event) {
                    return Ok(event);
                }
                others.push(event.kind);
            }
            self.environment.progress();
        }
        Err(Failure::new(format!("{what}: expected an asynchronous event, got {others:?}")))
    }

    /// Waits long enough to believe that no asynchronous event comes that fits; others are taken and forgotten.
    pub(super) fn no_event(&mut self, what: &str, end: usize, fits: impl Fn(&AsyncEvent) -> bool) -> Outcome {
        self.rest();
        while let Some(event) = self.devices[end].next_event()? {
            if fits(&event) {
                return Err(Failure::new(format!("{what}: expected no such event, got {event:?}")));
            }
        }
        Ok(())
    }
}

/// The first part of a test's name.
pub(super) fn prefix(transport: Transport) -> String {
    transport.abbreviation().to_lowercase()
}
