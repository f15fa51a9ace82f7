//! The receiving end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use quinn::{Connecting, Connection, ConnectionError, Endpoint, ServerConfig};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::answer::Answer;
use super::contents::Contents;
use super::deadline;
use super::error::{Cause, QuicError};
use super::sender::SERVER_NAME;
use super::settings::Settings;
use crate::meter::Meter;

/// Listens at an address and takes what senders send.
pub struct Receiver {
    endpoint: Endpoint,
    runtime: Runtime,
    address: SocketAddr,
    certificate: Vec<u8>,
    settings: Settings,
    meter: Arc<Meter>,
}

/// What has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Connections that were opened and have ended.
    pub connections: u64,
    /// Attempts to connect that failed, such as those of senders with another certificate.
    pub refused: u64,
    /// Streams that have arrived.
    pub streams: u64,
    /// Of them did not have the right contents.
    pub wrong_streams: u64,
    /// Bytes of all streams.
    pub bytes: u64,
}

impl Receiver {
    /// Opens a socket, and makes a certificate. Port 0 is any that is free.
    pub fn listen(address: SocketAddr, settings: &Settings) -> Result<Self, QuicError> {
        let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]);
        let made = made.map_err(|error| QuicError::MakeCertificate(error.into()))?;
        let certificate = made.cert.der().to_vec();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let config = ServerConfig::with_single_cert(vec![CertificateDer::from(certificate.clone())], key);
        let mut config = config.map_err(|error| QuicError::MakeCertificate(error.into()))?;
        config.transport_config(settings.transport(address.ip())?);
        let runtime = deadline::runtime()?;
        let endpoint = {
            let _entered = runtime.enter();
            settings.endpoint(address, Some(config))?
        };
        let address = endpoint.local_addr().map_err(|error| QuicError::Socket(address, error))?;
        Ok(Receiver { endpoint, runtime, address, certificate, settings: *settings, meter: Arc::default() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate that senders must be given, in DER form.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Has what arrives counted, by connection, while [`Receiver::receive`] runs.
    pub(crate) fn count_with(&mut self, meter: Arc<Meter>) {
        self.meter = meter;
    }

    /// Takes what is sent until at least one connection was opened and all have ended.
    pub fn receive(&mut self) -> Result<Received, QuicError> {
        deadline::wait(&self.runtime, self.settings.limit, "receiving", receive(&self.endpoint, &self.meter))
    }
}

async fn receive(endpoint: &Endpoint, meter: &Meter) -> Result<Received, QuicError> {
    let contents = Arc::new(Contents::new());
    let (mut received, mut open) = (Received::default(), JoinSet::new());
    while received.connections == 0 || !open.is_empty() {
        tokio::select! {
            // There is always a next one: the endpoint is never closed.
            Some(incoming) = endpoint.accept() => match incoming.accept() {
                Ok(connecting) => drop(open.spawn(take_connection(connecting, contents.clone(), meter.flow()))),
                Err(_) => received.refused += 1,
            },
            Some(ended) = deadline::next(&mut open), if !open.is_empty() => received.add(&ended?),
        }
    }
    Ok(received)
}

impl Received {
    fn add(&mut self, other: &Received) {
        self.connections += other.connections;
        self.refused += other.refused;
        self.streams += other.streams;
        self.wrong_streams += other.wrong_streams;
        self.bytes += other.bytes;
    }
}

async fn take_connection(
    connecting: Connecting,
    contents: Arc<Contents>,
    flow: Arc<AtomicU64>,
) -> Result<Received, QuicError> {
    let Ok(connection) = connecting.await else {
        return Ok(Received { refused: 1, ..Received::default() });
    };
    let mut received = Received { connections: 1, ..Received::default() };
    loop {
        let answer = match take_stream(&connection, &contents, &flow).await {
            Ok(answer) => answer,
            // What says that the sender has finished may be lost, as any packet.
            Err(_) if has_ended_well(&connection, &received) => return Ok(received),
            Err(error) => return Err(QuicError::Ended(connection.remote_address(), error)),
        };
        received.streams += 1;
        received.wrong_streams += u64::from(!answer.is_right);
        received.bytes += answer.bytes;
    }
}

fn has_ended_well(connection: &Connection, received: &Received) -> bool {
    match connection.close_reason() {
        Some(ConnectionError::ApplicationClosed(_)) => true,
        Some(ConnectionError::TimedOut) => received.streams > 0,
        _ => false,
    }
}

/// Takes the next stream, and answers it: on the same stream if it has two directions, else on a new one.
async fn take_stream(connection: &Connection, contents: &Contents, flow: &AtomicU64) -> Result<Answer, Cause> {
    let (mut stream, back) = tokio::select! {
        stream = connection.accept_uni() => (stream?, None),
        streams = connection.accept_bi() => {
            let (back, stream) = streams?;
            (stream, Some(back))
        }
    };
    let answer = Answer::to(&mut stream, contents, flow).await?;
    let mut back = match back {
        Some(back) => back,
        None => connection.open_uni().await?,
    };
    back.write_all(&answer.to_bytes()).await?;
    back.finish()?;
    Ok(answer)
}
