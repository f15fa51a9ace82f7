//! Between two ends an address translator that changes addresses and ports, as home routers and clouds do.

use crate::udp_ends;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_verbs::{
    Access, CompletionStatus, Gid, Mtu, PathAttributes, QueuePairAttributes, Transport, WorkCompletion,
};
use udp_ends::{End, PSN, device, pattern};

/// Hands datagrams on in both directions, each under an address of its own.
struct Translator {
    /// What the inner end sends to, and hears from.
    inner: SocketAddr,
    /// What the outer end sends to, and hears from.
    outer: SocketAddr,
    is_over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Translator {
    fn between(inner_end: SocketAddr, outer_end: SocketAddr) -> Translator {
        let bind = |address: &str| UdpSocket::bind((address, 0)).unwrap();
        let (inner, outer) = (bind("127.0.0.21"), bind("127.0.0.22"));
        let addresses = (inner.local_addr().unwrap(), outer.local_addr().unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let hand_on = |from: &UdpSocket, through: &UdpSocket, to: SocketAddr| {
            let (from, through, is_over) = (from.try_clone().unwrap(), through.try_clone().unwrap(), is_over.clone());
            from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(bytes) = from.recv(&mut buffer) {
                        through.send_to(&buffer[..bytes], to).unwrap();
                    }
                }
            })
        };
        let threads = vec![hand_on(&inner, &outer, outer_end), hand_on(&outer, &inner, inner_end)];
        Translator { inner: addresses.0, outer: addresses.1, is_over, threads }
    }
}

impl Drop for Translator {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn connect(end: &End, peer: &End, seen_at: SocketAddr) {
    let mut path = PathAttributes::to(Gid::from_ip(seen_at.ip()));
    path.udp_port = seen_at.port();
    let number = peer.queue_pair.number();
    let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, number, PSN).reliable_receive(0, 12);
    let send = QueuePairAttributes::ready_to_send(PSN).reliable_send(14, 7, 7, 0);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    end.queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
    end.queue_pair.modify(&receive).unwrap();
    end.queue_pair.modify(&send).unwrap();
}

/// A write through a translator: its completion, and what arrived.
fn write_through_translator(agree: bool) -> (WorkCompletion, u64, bool) {
    const BYTES: usize = 300_000;
    let (inner_device, outer_device) = (device("127.0.0.1"), device("127.0.0.2"));
    let inner = End::new(&inner_device, Transport::ReliableConnection, BYTES);
    let outer = End::new(&outer_device, Transport::ReliableConnection, BYTES);
    let listens = |end: &End| SocketAddr::new(end.address, end.device.udp_port());
    let translator = Translator::between(listens(&inner), listens(&outer));
    connect(&inner, &outer, translator.inner);
    connect(&outer, &inner, translator.outer);
    if agree {
        inner_device.set_translated(translator.inner.ip());
        outer_device.set_translated(translator.outer.ip());
    }
    let bytes = pattern(5, BYTES);
    inner.region.copy_in(0, &bytes);
    inner.post_write(1, BYTES, &outer);
    let completion = inner.wait();
    let is_whole = outer.region.to_vec(0..BYTES) == bytes;
    (completion, outer.counter("rx_icrc_encapsulated"), is_whole)
}

#[test]
fn ends_that_agreed_get_through() {
    let (completion, icrc_errors, is_whole) = write_through_translator(true);
    assert_eq!((completion.status, icrc_errors, is_whole), (CompletionStatus::Success, 0, true));
}

#[test]
fn ends_that_did_not_agree_do_not() {
    let (completion, icrc_errors, is_whole) = write_through_translator(false);
    assert_eq!(completion.status, CompletionStatus::RetryExceededError);
    assert!(icrc_errors > 0 && !is_whole, "{icrc_errors} ICRC errors");
}
