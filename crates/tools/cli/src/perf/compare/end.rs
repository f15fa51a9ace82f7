//! An end: does what the coordinator says, until its standard input ends.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::bare_udp;
use super::facade::Wait;
use super::namespace::{self, Place};
use super::orders::{Answer, Contact, Order, Outcome, Role, Settings, Subject};
use super::{facade, scheme, softnic, tcp};
use crate::perf::child::answer;
use crate::perf::nic::Nic;
use crate::stop::Stop;

/// One end of a comparison, in its namespace; started by `compare`
#[derive(Debug, clap::Args)]
pub(crate) struct EndArguments {
    /// Where to live
    #[arg(long)]
    place: Place,
}

/// One end's half of a measurement. Its sockets and buffers live as long as the comparison.
pub(super) trait Measurement {
    /// How the other half reaches this one.
    fn contact(&self) -> Contact;
    /// Called once, before the first round.
    fn connect(&mut self, peer: &Contact) -> Result<(), Stop>;
    /// One round: a sender runs for the duration, a receiver until it is ordered to stop.
    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, Stop>;
}

/// Whether the coordinator has ordered this end to stop.
#[derive(Clone, Default)]
pub(super) struct StopSign(Arc<AtomicBool>);

impl StopSign {
    pub(super) fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, up: bool) {
        self.0.store(up, Ordering::Relaxed);
    }
}

/// Runs an end.
pub(crate) fn run_end(arguments: &EndArguments) -> Result<(), Stop> {
    // First of all: a process with several threads cannot change its user namespace.
    let entered = namespace::enter(arguments.place);
    let stop = StopSign::default();
    let orders = read_orders(stop.clone());
    answer(&entered.map(|namespace| Answer::Started { process: std::process::id(), namespace }));
    let mut worker = Worker { measurements: BTreeMap::new(), buffers: Buffers::default(), stop };
    while let Ok(order) = orders.recv() {
        answer(&worker.carry_out(order));
    }
    Ok(())
}

/// Orders as they come in, except those to stop, which raise the sign at once.
fn read_orders(stop: StopSign) -> Receiver<Order> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Order::Stop) => stop.set(true),
                Ok(order) => {
                    stop.set(false);
                    if sender.send(order).is_err() {
                        break;
                    }
                }
                Err(error) => {
                    answer::<Answer>(&Err(Stop::failed(format!("an order that cannot be read: {line}"), error)));
                }
            }
        }
        // The coordinator is gone, whatever this end is just doing.
        std::process::exit(0);
    });
    receiver
}

struct Worker {
    measurements: BTreeMap<Subject, (Role, Box<dyn Measurement>)>,
    buffers: Buffers,
    stop: StopSign,
}

impl Worker {
    fn carry_out(&mut self, order: Order) -> Result<Answer, Stop> {
        match order {
            Order::Network(link) => namespace::configure(&link).map(|()| Answer::Done),
            Order::Prepare(subject, settings) => {
                let measurement: Box<dyn Measurement> = match subject {
                    Subject::BareUdp => bare_udp::prepare(&settings, &mut self.buffers)?,
                    Subject::BareUdpPingPong => bare_udp::prepare_ping_pong(&settings)?,
                    Subject::Tcp => tcp::prepare(&settings, &mut self.buffers)?,
                    Subject::UcWrite
                    | Subject::RcWrite
                    | Subject::RcWriteMany
                    | Subject::RcRead
                    | Subject::RcSendPingPong
                    | Subject::RcSendEvents => softnic::prepare(subject, &settings, &mut self.buffers)?,
                    Subject::FacadePingPong => facade::prepare(Wait::Drives, &settings, &mut self.buffers)?,
                    Subject::FacadeSleeping => facade::prepare(Wait::Sleeps, &settings, &mut self.buffers)?,
                    Subject::SdrSelectiveRepeat | Subject::SdrErasure | Subject::SdrErasureInline => {
                        scheme::prepare(subject, &settings, &mut self.buffers)?
                    }
                };
                let contact = measurement.contact();
                self.measurements.insert(subject, (settings.role, measurement));
                Ok(Answer::Contact(contact))
            }
            Order::Connect(subject, peer) => self.measurement(subject)?.1.connect(&peer).map(|()| Answer::Done),
            Order::Run { subject, milliseconds } => {
                let stop = self.stop.clone();
                let (role, measurement) = self.measurement(subject)?;
                if *role == Role::Receiver {
                    answer(&Ok(Answer::Running));
                }
                let outcome = measurement.run(Duration::from_millis(milliseconds), &stop);
                if outcome.is_err() {
                    // The other half must not wait for what nobody receives.
                    self.measurements.remove(&subject);
                }
                outcome.map(Answer::Outcome)
            }
            Order::Stop => Ok(Answer::Done), // Never gets here: see `read_orders`.
        }
    }

    fn measurement(&mut self, subject: Subject) -> Result<&mut (Role, Box<dyn Measurement>), Stop> {
        let not_prepared = || Stop::Failed(format!("{} was not prepared", subject.name()));
        self.measurements.get_mut(&subject).ok_or_else(not_prepared)
    }
}

/// The memory that measurements over plain sockets send from and receive into, shared by them, because they take turns.
#[derive(Default)]
pub(super) struct Buffers {
    plain: Option<SharedBuffer>,
    nic: Option<Nic>,
}

/// Bytes that several measurements use in turns.
pub(super) type SharedBuffer = std::rc::Rc<std::cell::RefCell<Vec<u8>>>;

impl Buffers {
    /// The memory, made when it is first asked for. Not zeros, of which there would be only one page.
    pub(super) fn plain(&mut self, byte_count: usize) -> SharedBuffer {
        let make = || SharedBuffer::new(vec![0x5a; byte_count].into());
        self.plain.get_or_insert_with(make).clone()
    }

    /// The device, with memory of its own, opened when it is first asked for.
    pub(super) fn nic(&mut self, settings: &Settings) -> Result<&Nic, Stop> {
        if self.nic.is_none() {
            self.nic = Some(softnic::open(settings)?);
        }
        self.nic.as_ref().ok_or_else(|| Stop::Failed("the device is not open".to_owned()))
    }
}
