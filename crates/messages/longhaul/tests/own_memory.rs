//! Memory that the program brings: a mapping behind a pointer, and slices that are borrowed for a scope.
#![allow(unsafe_code, reason = "maps memory, and registers it by its pointer")]

mod ends;

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ends::{device, pattern};
use longhaul::{BorrowError, Connection, ConnectionError, Endpoint, Options, Towards, TransferError};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const BYTES: usize = 1 << 20;

fn endpoint() -> Endpoint {
    let local: IpAddr = "127.0.0.1".parse().expect("an address");
    let choice = device();
    Endpoint::open(&choice.name, Towards { local, peer: local, gid_index: None }, choice.udp).expect("it opens")
}

/// An endpoint, a connection of it, and the other end.
fn ends() -> (Endpoint, Connection, Connection) {
    let (one, other) = (endpoint(), endpoint());
    let listener = other.listen("127.0.0.1:0", &Options::default()).expect("it listens");
    let connecting = one.connect(listener.local_address(), &Options::default());
    let accepted = listener.accept().wait().expect("it accepts");
    (one, connecting.wait().expect("it connects"), accepted)
}

/// Anonymous memory of the kernel's.
struct Mapping {
    pointer: NonNull<u8>,
    is_unmapped: Arc<AtomicBool>,
}

// SAFETY: it is memory that any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new() -> Self {
        let (length, protection) =
            (NonZeroUsize::new(BYTES).expect("not 0"), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        // SAFETY: anonymous memory at an address of the kernel's choice replaces nothing.
        let pointer = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) };
        Mapping { pointer: pointer.expect("there is memory").cast(), is_unmapped: Arc::default() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped in `new`, and nothing uses it after the drop.
        unsafe { munmap(self.pointer.cast(), BYTES) }.expect("it was mapped");
        self.is_unmapped.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_mapping_is_sent_from_and_received_into_and_then_unmapped() {
    let (endpoint, one, other) = ends();
    let mapping = Mapping::new();
    let (pointer, is_unmapped) = (mapping.pointer, mapping.is_unmapped.clone());
    // SAFETY: the mapping lives as long as its owner, and is used through the memory while it is registered.
    let memory = unsafe { endpoint.register_pointer(pointer, BYTES, Box::new(mapping)) }.expect("it is registered");
    memory.write(0..BYTES / 2).expect("nobody uses it").copy_from_slice(&pattern(BYTES / 2, 1));
    let receiving = other.receive(BYTES);
    one.write_from(&memory, 0..BYTES / 2).wait().expect("it is written");
    assert!(receiving.wait().expect("it is received").bytes() == pattern(BYTES / 2, 1));
    let receiving = one.receive_into(&memory, BYTES / 2..BYTES);
    other.write(pattern(BYTES / 2, 2)).wait().expect("it is written");
    assert!(receiving.wait().expect("it is received").bytes() == pattern(BYTES / 2, 2));
    // The bytes are the mapping's own.
    // SAFETY: the mapping is there, and nothing is in flight.
    assert_eq!(unsafe { pointer.add(BYTES / 2).read() }, pattern(8, 2)[0]);
    let beyond = one.write_from(&memory, 0..BYTES + 1).wait();
    let outside = matches!(
        beyond,
        Err(TransferError::Refused(ConnectionError::Borrow(BorrowError::Outside { length: BYTES, .. })))
    );
    assert!(outside, "{beyond:?}");
    // It is not a buffer that could be given away.
    let memory = memory.into_buffer().expect_err("it is a mapping");
    assert!(!is_unmapped.load(Ordering::SeqCst));
    let open = one.receive_into(&memory, 0..10);
    drop(memory);
    assert!(!is_unmapped.load(Ordering::SeqCst), "a receive is open on it");
    drop((open, one));
    let begun = Instant::now();
    while !is_unmapped.load(Ordering::SeqCst) {
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody has unmapped it");
        std::thread::yield_now();
    }
}

#[test]
fn slices_are_borrowed_for_a_scope() {
    let (endpoint, one, other) = ends();
    let (mut source, mut target) = (pattern(BYTES, 3), vec![0; BYTES]);
    let receiving = other.receive(BYTES);
    let report = endpoint.scope(&mut source, |memory| memory.write_from(&one, 0..memory.len()).wait());
    assert_eq!(report.expect("registered").expect("written").message_bytes, BYTES as u64);
    assert!(receiving.wait().expect("it is received").bytes() == source);
    let length = endpoint.scope(&mut target, |memory| {
        let written = other.write(pattern(BYTES - 10, 4));
        let length = memory.receive_into(&one, 0..BYTES).wait().expect("it is received").len();
        written.wait().expect("it is written");
        memory.write(BYTES - 1..BYTES).expect("nobody uses it")[0] = 9;
        assert_eq!(memory.read(BYTES - 1..BYTES).expect("nobody writes it")[0], 9);
        assert!(matches!(memory.read(0..BYTES + 1), Err(BorrowError::Outside { .. })));
        length
    });
    assert_eq!(length.expect("registered"), BYTES - 10);
    assert!(target[..BYTES - 10] == pattern(BYTES - 10, 4) && target[BYTES - 1] == 9);
    target.fill(0);
}

#[test]
fn leaving_a_scope_waits_for_messages_that_are_in_flight() {
    let (endpoint, one, other) = ends();
    let mut source = pattern(BYTES, 5);
    let receiving = other.receive(BYTES);
    let written = endpoint.scope(&mut source, |memory| memory.write_from(&one, 0..BYTES)).expect("registered");
    // Changed too early, this would be seen by the receiver.
    source.fill(0xff);
    assert!(receiving.wait().expect("it is received").bytes() == pattern(BYTES, 5));
    written.wait().expect("it had ended");
    assert!(!one.is_over());
}

#[test]
fn messages_that_do_not_end_with_their_scope_cost_their_connection() {
    let (endpoint, one, other) = ends();
    let mut target = vec![0; BYTES];
    let begun = Instant::now();
    endpoint.scope(&mut target, |memory| drop(memory.receive_into(&one, 0..BYTES))).expect("registered");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    target.fill(1);
    assert!(one.is_over());
    let reason = one.write("more").wait().expect_err("it has ended").to_string();
    assert!(reason.contains("scope"), "{reason}");
    assert!(other.write("nobody is there").wait().is_err());
}

#[test]
fn a_panic_inside_a_scope_ends_what_is_open_at_once() {
    let (endpoint, one, other) = ends();
    let (mut source, mut target) = (pattern(BYTES, 6), vec![0; BYTES]);
    let begun = Instant::now();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        endpoint.scope(&mut target, |memory| {
            let _open = memory.receive_into(&one, 0..BYTES);
            // Nobody receives this.
            let _unheard = endpoint.scope(&mut source, |memory| {
                let _unheard = memory.write_from(&one, 0..BYTES);
                panic!("on purpose");
            });
        })
    }));
    assert_eq!(panicked.expect_err("it panics").downcast_ref::<&str>(), Some(&"on purpose"));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    source.fill(1);
    target.fill(1);
    assert!(one.is_over());
    assert!(other.receive(BYTES).wait().is_err());
    // The endpoint is as good as before.
    let bytes = endpoint.scope(&mut target, |memory| memory.read(0..3).expect("nobody writes it").to_vec());
    assert_eq!(bytes.expect("registered"), [1, 1, 1]);
}

#[test]
fn memory_of_one_scope_is_no_use_to_another_endpoint() {
    let (_, one, _other) = ends();
    let mut bytes = [0; 100];
    let refused = endpoint().scope(&mut bytes, |memory| memory.write_from(&one, 0..100).wait()).expect("registered");
    assert!(matches!(refused, Err(TransferError::Refused(ConnectionError::ForeignMemory))), "{refused:?}");
    assert!(!one.is_over());
}
