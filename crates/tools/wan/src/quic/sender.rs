//! The sending end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::CertificateDer;
use quinn::{ClientConfig, Connecting, Connection, ConnectionError, Endpoint};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::answer::{Answer, Delivery};
use super::contents::Contents;
use super::deadline;
use super::error::{Cause, QuicError};
use super::settings::Settings;
use crate::clock::now;

/// The name in the receiver's certificate. Who it is, is known by the certificate alone.
pub(super) const SERVER_NAME: &str = "longhaul";
/// Errors of the handshake are TLS's alerts from here on.
const TLS_ALERTS: u64 = 0x100;
/// Those that a certificate causes: bad_certificate to unknown_ca, and decrypt_error for a signature that is not its.
const CERTIFICATE_ALERTS: [u64; 8] = [42, 43, 44, 45, 46, 47, 48, 51];

/// Connections with one receiver.
pub struct Sender {
    connections: Vec<Connection>,
    endpoint: Endpoint,
    runtime: Runtime,
    handshakes: Vec<Duration>,
    contents: Arc<Contents>,
    settings: Settings,
}

/// How much is sent on each connection.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// This many bytes.
    Bytes(u64),
    /// As many as can be written in this time; what is then in the send window arrives after it.
    Time(Duration),
}

/// What the sender's connections have counted, all together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Packets that were sent, retransmissions and acknowledgements too.
    pub sent_packets: u64,
    /// Of them were taken for lost.
    pub lost_packets: u64,
    /// How often congestion control has slowed down.
    pub congestion_events: u64,
    /// The shortest round trip.
    pub round_trip_min: Duration,
    /// Bytes of the longest datagram, of the connection where it is shortest.
    pub datagram_bytes: u16,
}

impl Sender {
    /// Opens connections with the receiver that has this certificate, given in DER form.
    pub fn connect(
        address: SocketAddr,
        certificate: &[u8],
        connections: usize,
        settings: &Settings,
    ) -> Result<Self, QuicError> {
        let mut roots = RootCertStore::empty();
        let added = roots.add(CertificateDer::from(certificate.to_vec()));
        added.map_err(|error| QuicError::NotACertificate(error.into()))?;
        let config = ClientConfig::with_root_certificates(Arc::new(roots));
        let mut config = config.map_err(|error| QuicError::NotACertificate(error.into()))?;
        config.transport_config(settings.transport(address.ip())?);
        let runtime = deadline::runtime()?;
        let any = match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let endpoint = {
            let _entered = runtime.enter();
            settings.endpoint(SocketAddr::new(any, 0), None)?
        };
        let silence = settings.silence;
        let opening = async {
            let mut opening = JoinSet::new();
            for _ in 0..connections {
                let connecting = endpoint.connect_with(config.clone(), address, SERVER_NAME);
                let connecting = connecting.map_err(|error| QuicError::Connect(address, error.into()))?;
                opening.spawn(open(connecting, address, silence));
            }
            deadline::all(opening).await
        };
        let opened = deadline::wait(&runtime, settings.limit, "connecting", opening)?;
        let (connections, handshakes) = opened.into_iter().unzip();
        let contents = Arc::new(Contents::new());
        Ok(Sender { connections, endpoint, runtime, handshakes, contents, settings: *settings })
    }

    /// How long the handshake of each connection took.
    pub fn handshakes(&self) -> &[Duration] {
        &self.handshakes
    }

    /// Sends on all connections at once, one stream in one direction on each. One delivery for each connection.
    pub fn send_bulk(&mut self, amount: Amount) -> Result<Vec<Delivery>, QuicError> {
        let send = |connection, contents| async move { Ok(vec![send_bulk(connection, contents, amount).await?]) };
        self.send("sending", send)
    }

    /// Sends this many messages on each connection, one at a time: a stream each, begun when the one before it was
    /// answered.
    pub fn send_messages(&mut self, bytes: u64, count: usize) -> Result<Vec<Delivery>, QuicError> {
        self.send("sending messages", move |connection, contents| async move {
            let mut deliveries = Vec::with_capacity(count);
            for _ in 0..count {
                deliveries.push(send_message(&connection, &contents, bytes).await?);
            }
            Ok(deliveries)
        })
    }

    fn send<F>(
        &self,
        doing: &'static str,
        send: impl Fn(Connection, Arc<Contents>) -> F,
    ) -> Result<Vec<Delivery>, QuicError>
    where
        F: Future<Output = Result<Vec<Delivery>, QuicError>> + Send + 'static,
    {
        let sending = async {
            let mut sending = JoinSet::new();
            for connection in &self.connections {
                sending.spawn(send(connection.clone(), self.contents.clone()));
            }
            deadline::all(sending).await
        };
        let deliveries = deadline::wait(&self.runtime, self.settings.limit, doing, sending)?;
        Ok(deliveries.into_iter().flatten().collect())
    }

    /// What the connections have counted so far.
    pub fn statistics(&self) -> Statistics {
        let mut all = Statistics { round_trip_min: Duration::MAX, datagram_bytes: u16::MAX, ..Statistics::default() };
        for path in self.connections.iter().map(|connection| connection.stats().path) {
            all.sent_packets += path.sent_packets;
            all.lost_packets += path.lost_packets;
            all.congestion_events += path.congestion_events;
            all.round_trip_min = all.round_trip_min.min(path.min_rtt);
            all.datagram_bytes = all.datagram_bytes.min(path.current_mtu);
        }
        all
    }

    /// Ends the connections in order. A sender that is dropped instead leaves its receiver waiting for
    /// [`Settings::silence`].
    pub fn close(self) -> Result<(), QuicError> {
        for connection in &self.connections {
            connection.close(0_u32.into(), b"done");
        }
        let leaving = async {
            self.endpoint.wait_idle().await;
            Ok(())
        };
        deadline::wait(&self.runtime, self.settings.limit, "closing", leaving)
    }
}

/// The connection, and how long its handshake took. (quinn alone waits for three timeouts of its own, at least.)
async fn open(
    connecting: Connecting,
    address: SocketAddr,
    silence: Duration,
) -> Result<(Connection, Duration), QuicError> {
    let begun = now();
    match tokio::time::timeout(silence, connecting).await {
        Ok(Ok(connection)) => Ok((connection, now() - begun)),
        Err(_) | Ok(Err(ConnectionError::TimedOut)) => Err(QuicError::NoAnswer(address, silence)),
        Ok(Err(error)) if is_about_certificate(&error) => Err(QuicError::WrongCertificate(address, error.into())),
        Ok(Err(error)) => Err(QuicError::Connect(address, error.into())),
    }
}

fn is_about_certificate(error: &ConnectionError) -> bool {
    let ConnectionError::TransportError(error) = error else { return false };
    let alert = u64::from(error.code).checked_sub(TLS_ALERTS);
    alert.is_some_and(|alert| CERTIFICATE_ALERTS.contains(&alert))
}

async fn send_bulk(connection: Connection, contents: Arc<Contents>, amount: Amount) -> Result<Delivery, QuicError> {
    let (posted, mut sent) = (now(), 0);
    let sending = async {
        let mut stream = connection.open_uni().await?;
        loop {
            let left = match amount {
                Amount::Bytes(bytes) => bytes - sent,
                Amount::Time(time) if now() - posted < time => u64::MAX,
                Amount::Time(_) => 0,
            };
            if left == 0 {
                break;
            }
            sent += stream.write(contents.piece(sent, left)).await? as u64;
        }
        stream.finish()?;
        let mut back = connection.accept_uni().await?;
        Answer::read(&mut back).await
    };
    let answer = sending.await.map_err(QuicError::ended::<Cause>(connection.remote_address()))?;
    Delivery::new(sent, posted, answer)
}

async fn send_message(connection: &Connection, contents: &Contents, bytes: u64) -> Result<Delivery, QuicError> {
    let posted = now();
    let sending = async {
        let (mut stream, mut back) = connection.open_bi().await?;
        let mut sent = 0;
        while sent < bytes {
            sent += stream.write(contents.piece(sent, bytes - sent)).await? as u64;
        }
        stream.finish()?;
        Answer::read(&mut back).await
    };
    let answer = sending.await.map_err(QuicError::ended::<Cause>(connection.remote_address()))?;
    Delivery::new(bytes, posted, answer)
}
