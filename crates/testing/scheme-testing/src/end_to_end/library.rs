//! Two ends on real time, as programs have them: connections of the library, over software RNICs on UDP sockets or
//! whatever libibverbs knows. The library drives them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use longhaul::{
    Connection, DeviceName, Endpoint, Listener, Memory, Message, MessageReport, Options, Pending, Towards,
    TransferError,
};
use longhaul_conformance::DeviceEnd;
use longhaul_softnic_udp::{Impair, UdpConfig};
use longhaul_time::Duration;

use super::case::{Case, CaseError, CaseRunner, Outcome};
use super::halves::{CaseHalf, failed, fill, verify};

/// A message may take this long without progress: hosts of tests are busy, and guests of virtual machines slow.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(300);
/// And connecting, over links that lose many packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// A half looks this often at what else has ended, or failed.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What connections of tests are made with, unless a test wants something else.
pub fn patient_options() -> Options {
    let mut options = Options::default();
    options.message_timeout = MESSAGE_TIMEOUT;
    options.connect_timeout = CONNECT_TIMEOUT;
    options
}

/// A device of a test as the library has it.
pub fn endpoint_of(end: &DeviceEnd) -> Result<Endpoint, CaseError> {
    let gid = end.device.gid(end.port, end.gid_index.into()).map_err(CaseError::of_ground)?.gid;
    Ok(Endpoint::new(end.device.clone(), gid, end.gid_index, end.port, end.udp_port))
}

/// One end: a connection, and memory for its messages.
pub struct LibraryEnd {
    /// The connection.
    pub connection: Connection,
    /// Registered for it.
    pub memory: Memory,
}

impl LibraryEnd {
    /// A connection, and this many bytes of memory.
    pub fn new(connection: Connection, memory_bytes: usize) -> Result<Self, CaseError> {
        let memory = connection.register(vec![0; memory_bytes]).map_err(CaseError::of_ground)?;
        Ok(LibraryEnd { connection, memory })
    }
}

/// Two ends of one process: messages go from the first to the second.
pub struct LibraryGround {
    /// They are connected.
    pub ends: [LibraryEnd; 2],
}

impl LibraryGround {
    /// On any two devices, or twice on the same.
    pub fn between(endpoints: &[Endpoint; 2], options: &Options, memory_bytes: usize) -> Result<Self, CaseError> {
        // The handshake is between this process and itself, wherever the devices are.
        let listener = endpoints[1].listen((Ipv4Addr::LOCALHOST, 0), options).map_err(CaseError::of_ground)?;
        // The handle, because the devices need not have the address of the handshake.
        let connecting = endpoints[0].connect(listener.handle(), options);
        let one = connecting.wait().map_err(CaseError::of_ground)?;
        let other = accept(&listener, options.connect_timeout)?;
        Ok(LibraryGround { ends: [LibraryEnd::new(one, memory_bytes)?, LibraryEnd::new(other, memory_bytes)?] })
    }

    /// On two software RNICs on UDP sockets. The first has the bad network in front of its sockets, both ways, if there
    /// is one.
    pub fn open(
        addresses: [IpAddr; 2],
        udp: &UdpConfig,
        impair: Option<Impair>,
        options: &Options,
        memory_bytes: usize,
    ) -> Result<Self, CaseError> {
        let open = |end: usize, impair| {
            let name = DeviceName::Softnic { addresses: vec![addresses[end]] };
            let towards = Towards { local: addresses[end], peer: addresses[1 - end], gid_index: None };
            let mut udp = udp.clone();
            udp.impair = impair;
            Endpoint::open(&name, towards, udp).map_err(CaseError::of_ground)
        };
        LibraryGround::between(&[open(0, impair)?, open(1, None)?], options, memory_bytes)
    }
}

impl CaseRunner for LibraryGround {
    /// Each end has a thread of its own, as in two programs.
    fn run_case(&mut self, case: &Case) -> Result<Outcome, CaseError> {
        let [sender, receiver] = &self.ends;
        let other_failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let half = LibraryReceiver::new(case, receiver.memory.len());
                run_half(half, |half| half.poll(receiver), &other_failed)
            });
            let half = LibrarySender::new(case, sender.memory.len());
            let sent = run_half(half, |half| half.poll(sender), &other_failed);
            let received = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // An end that ended because the other had failed has nothing to say of its own.
            match (sent, received) {
                (Ok(Some(sent)), Ok(Some(received))) => Ok(Outcome { sent, received }),
                (Err(error), _) | (_, Err(error)) => Err(error),
                _ => Err(CaseError::Hung { done: 0, messages: case.messages, limit: case.limit }),
            }
        })
    }
}

/// Run a half to its end; `None` if that was early, because the other one has failed.
fn run_half<T>(
    mut half: CaseHalf<Operation<T>>,
    mut poll: impl FnMut(&mut CaseHalf<Operation<T>>) -> Result<(), CaseError>,
    other_failed: &AtomicBool,
) -> Result<Option<Vec<MessageReport>>, CaseError> {
    let Case { limit, messages, .. } = *half.case();
    let begin = Instant::now();
    let ends_badly = EndsBadly(other_failed);
    loop {
        let late = CaseError::Hung { done: half.done_count(), messages, limit };
        let polled = poll(&mut half).and_then(|()| if begin.elapsed() < limit { Ok(()) } else { Err(late) });
        if half.is_done() {
            std::mem::forget(ends_badly);
            return Ok(Some(half.into_reports()));
        }
        polled?;
        if other_failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        half.wait(LOOK_EVERY);
    }
}

/// Notifies the other half, also when this one panics.
struct EndsBadly<'a>(&'a AtomicBool);

impl Drop for EndsBadly<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A message that is in flight at one end.
pub struct Operation<T>(State<T>);

enum State<T> {
    Running(Pending<T, TransferError>),
    Over(Result<T, TransferError>),
    /// Its result has been reported.
    Told,
}

impl<T> Operation<T> {
    fn new(pending: Pending<T, TransferError>) -> Self {
        Operation(State::Running(pending))
    }

    /// Wait until it has ended, but no longer than this.
    fn wait(&mut self, patience: Duration) {
        self.0 = match std::mem::replace(&mut self.0, State::Told) {
            State::Running(pending) => pending.wait_for(patience).map_or_else(State::Running, State::Over),
            state => state,
        };
    }

    /// How it ended, once.
    fn take(&mut self) -> Option<Result<T, TransferError>> {
        match std::mem::replace(&mut self.0, State::Told) {
            State::Running(pending) => match pending.ask() {
                Ok(result) => Some(result),
                Err(pending) => {
                    self.0 = State::Running(pending);
                    None
                }
            },
            State::Over(result) => Some(result),
            State::Told => None,
        }
    }
}

/// What the sender of a case does through the library.
pub type LibrarySender = CaseHalf<Operation<MessageReport>>;
/// What the receiver of a case does through the library.
pub type LibraryReceiver = CaseHalf<Operation<Message>>;

impl<T> CaseHalf<Operation<T>> {
    /// Wait until the oldest message in flight has ended, but no longer than this.
    pub fn wait(&mut self, patience: Duration) {
        match self.oldest() {
            Some(operation) => operation.wait(patience),
            None => std::thread::sleep(patience),
        }
    }
}

impl LibrarySender {
    /// Send what can be sent, and look what is done.
    pub fn poll(&mut self, end: &LibraryEnd) -> Result<(), CaseError> {
        let length = self.case().message_bytes;
        let look = |message, operation: &mut Operation<MessageReport>| {
            operation.take().transpose().map_err(|error| failed(message, &error))
        };
        self.turn(look, |message, at| {
            let range = at..at + length;
            fill(&mut end.memory.write(range.clone()).map_err(|error| failed(message, &error))?, message as u64);
            Ok(Operation::new(end.connection.write_from(&end.memory, range)))
        })
    }
}

impl LibraryReceiver {
    /// Post what can be posted, and verify what has come.
    pub fn poll(&mut self, end: &LibraryEnd) -> Result<(), CaseError> {
        let Case { message_bytes: length, slack_bytes, .. } = *self.case();
        let look = |message, operation: &mut Operation<Message>| {
            let Some(result) = operation.take() else { return Ok(None) };
            let received = result.map_err(|error| failed(message, &error))?;
            verify(message, received.bytes(), received.missing().len(), length)?;
            Ok(Some(*received.report()))
        };
        self.turn(look, |message, at| {
            let room = at..at + length + slack_bytes;
            end.memory.write(room.clone()).map_err(|error| failed(message, &error))?.fill(0);
            Ok(Operation::new(end.connection.receive_into(&end.memory, room)))
        })
    }
}

/// The connection of somebody who has connected.
pub fn accept(listener: &Listener, patience: Duration) -> Result<Connection, CaseError> {
    let late = |_| CaseError::Ground(format!("no connection was accepted within {patience:?}"));
    listener.accept().wait_for(patience).map_err(late)?.map_err(CaseError::of_ground)
}
