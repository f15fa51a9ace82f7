//! QUIC (quinn), as [`crate::quic`] has it.

use std::sync::Arc;
use std::time::Duration;

use longhaul_link::namespaces::Side;

use crate::clock::now;
use crate::quic::{self, Amount, Congestion, QuicError, Settings};
use crate::race::end_error::EndError;
use crate::race::orders::{Contact, Measure, Work};
use crate::race::prepared::{End, PATIENCE};
use crate::race::system::System;
use crate::race::tally::{Tally, sleep_until};

/// The process ends long before.
const LIMIT: Duration = Duration::from_secs(3600);

fn settings(work: &Work) -> Settings {
    Settings {
        congestion: match work.system {
            System::QuicCubic => Congestion::Cubic,
            _ => Congestion::Bbr,
        },
        link_mtu: work.mtu,
        bandwidth_delay_bytes: work.bandwidth_delay_bytes,
        silence: PATIENCE,
        limit: LIMIT,
    }
}

struct Receiver;

pub(super) fn receiver(work: &Work, tally: &Arc<Tally>) -> Result<(Contact, Box<dyn End>), EndError> {
    let failed = EndError::failed::<QuicError>("receive over QUIC");
    let address = (Side::Right.address(), 0).into();
    let mut receiver = quic::Receiver::listen(address, &settings(work)).map_err(&failed)?;
    receiver.count_with(tally.meter.clone());
    let contact = Contact { address: receiver.address().to_string(), certificate: receiver.certificate().to_vec() };
    // Handshakes are answered while it receives.
    tally.spawn(move |_| receiver.receive().map(drop).map_err(failed));
    Ok((contact, Box::new(Receiver)))
}

impl End for Receiver {
    fn start(&mut self, _: Duration, _: Duration, _: &Arc<Tally>) -> Result<(), EndError> {
        Ok(())
    }
}

struct Sender {
    sender: Option<quic::Sender>,
    work: Work,
}

pub(super) fn sender(work: &Work, contact: &Contact) -> Result<Box<dyn End>, EndError> {
    let address = contact.address.parse().map_err(EndError::failed("understand an address"))?;
    let sender = quic::Sender::connect(address, &contact.certificate, work.connections, &settings(work));
    let sender = sender.map_err(EndError::failed("connect over QUIC"))?;
    Ok(Box::new(Sender { sender: Some(sender), work: work.clone() }))
}

impl End for Sender {
    fn start(&mut self, start: Duration, until: Duration, tally: &Arc<Tally>) -> Result<(), EndError> {
        let (sender, work) = (self.sender.take().ok_or(EndError::Unprepared)?, self.work.clone());
        tally.spawn(move |tally| {
            sleep_until(start);
            send(sender, &work, until, tally).map_err(EndError::failed("send over QUIC"))
        });
        Ok(())
    }
}

fn send(mut sender: quic::Sender, work: &Work, until: Duration, tally: &Tally) -> Result<(), QuicError> {
    match work.measure {
        // It goes on until the process ends: what counts is what has arrived by then.
        Measure::Bulk => drop(sender.send_bulk(Amount::Time(until.saturating_sub(now()) + PATIENCE))?),
        Measure::Completion(count) => {
            for _ in 0..count {
                if now() >= until {
                    break;
                }
                tally.stamp();
                for delivery in sender.send_messages(work.message_bytes as u64, 1)? {
                    tally.complete(delivery.time());
                }
            }
            tally.end();
        }
    }
    Ok(())
}
