//! A reliability scheme of one's own: everything is sent twice; what is missing then is asked for, and sent twice
//! again. `cargo run -p longhaul --example own_scheme`

use std::error::Error;
use std::sync::Arc;

use longhaul::scheme::{Duration, Instant, MessageShape, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, SendIo};
use longhaul::softnic::{Impair, Loss, Profile};
use longhaul::{DeviceChoice, Listener, Options, connect};

struct Twice;

impl Scheme for Twice {
    fn name(&self) -> String {
        "twice".to_owned()
    }

    fn sender(&self, _: &MessageShape) -> Box<dyn SendHalf> {
        Box::new(Sender { has_begun: false })
    }

    fn receiver(&self, _: &MessageShape) -> Box<dyn ReceiveHalf> {
        Box::new(Receiver { seen: None, asks_at: None })
    }
}

struct Sender {
    has_begun: bool,
}

impl SendHalf for Sender {
    fn poll(&mut self, io: &mut SendIo<'_>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let all = 0..io.shape().chunk_count();
            io.send_chunks(all.clone());
            io.send_chunks(all);
        }
    }

    fn on_feedback(&mut self, missing: &[u8], io: &mut SendIo<'_>) {
        // What still waits to leave may be what is missing. A receiver repeats its question until something arrives; sending
        // for each of them would fill the queue without bound.
        if io.left_data_bytes() < io.queued_data_bytes() {
            return;
        }
        for chunk in missing.chunks_exact(4).filter_map(|bytes| bytes.try_into().ok().map(u32::from_be_bytes)) {
            io.send_chunks(chunk..chunk + 1);
            io.send_chunks(chunk..chunk + 1);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

struct Receiver {
    seen: Option<u32>,
    asks_at: Option<Instant>,
}

impl ReceiveHalf for Receiver {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        let arrived = io.data();
        if arrived.is_complete() {
            return Progress::Finished;
        }
        // Ask when nothing has come for a while.
        let (seen, pause) = (arrived.whole_count(), 2 * io.round_trip() + Duration::from_micros(100));
        if self.seen != Some(seen) {
            (self.seen, self.asks_at) = (Some(seen), Some(io.now() + pause));
        }
        if self.asks_at.is_some_and(|at| at <= io.now()) {
            let most = io.feedback_bytes_max() / 4;
            io.send_feedback(arrived.missing().flatten().take(most).flat_map(u32::to_be_bytes).collect());
            self.asks_at = Some(io.now() + pause);
        }
        Progress::Waiting
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.asks_at
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    options.scheme = Arc::new(Twice);
    options.chunk_bytes = Some(4096);
    let listener = Listener::bind("127.0.0.1:0", "softnic", &options)?;
    // A network that loses every tenth packet.
    let mut device: DeviceChoice = "softnic".parse()?;
    let profile = Profile { loss: Loss::Independent { probability: 0.1 }, ..Profile::default() };
    device.udp.impair = Some(Impair { profile, seed: 1 });
    let connecting = connect(listener.local_address(), device, &options);
    let (accepted, connection) = (listener.accept().wait()?, connecting.wait()?);

    let receiving = accepted.receive(1 << 20);
    let report = connection.write(vec![7; 1 << 20]).wait()?;
    let message = receiving.wait()?;
    assert!(message.missing().is_empty() && message.bytes().iter().all(|byte| *byte == 7));
    println!("{}: {} packets for 256, all bytes arrived", connection.scheme(), report.data_packets_sent);
    Ok(())
}
