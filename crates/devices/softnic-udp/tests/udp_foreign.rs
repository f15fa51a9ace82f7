//! Memory that is gone while it is registered, as programs that were not written for this device may have it: the access ends
//! with an error, at both ends as the specification says, and this process gets no signal.
#![allow(unsafe_code, reason = "registers memory that is not there")]

mod udp_ends;

use std::sync::Arc;

use longhaul_softnic::Config;
use longhaul_softnic_udp::{UdpConfig, UdpDevice, UdpPortChoice, foreign_memory};
use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, Mtu, ReceiveRequest, RemoteMemory, ScatterGatherEntry, SendOperation,
    SendRequest, Transport, raw,
};
use udp_ends::{End, pattern};

/// In the first page, which is never mapped.
const GONE: u64 = 0x40;
const BYTES: usize = 3 * 4096 + 5;

fn device(address: &str) -> UdpDevice {
    let mut config = Config::new(address, vec![address.parse().unwrap()], [address.len() as u8; 32]);
    config.foreign_memory = Some(foreign_memory().unwrap());
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    UdpDevice::open(config, udp).unwrap()
}

fn ends() -> (End, End) {
    let (one, two) = (device("127.0.12.1"), device("127.0.12.2"));
    let (one, two) = (
        End::new(&one, Transport::ReliableConnection, 1 << 16),
        End::new(&two, Transport::ReliableConnection, 1 << 16),
    );
    one.connect(&two, Mtu::Bytes4096);
    two.connect(&one, Mtu::Bytes4096);
    (one, two)
}

/// A region of memory that is not there.
fn gone(end: &End) -> Arc<dyn raw::MemoryRegion> {
    let memory = std::ptr::without_provenance_mut(GONE as usize);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // SAFETY: it is not valid, which is what `Config::foreign_memory` is for: nobody else uses it either.
    unsafe { end.domain.raw().register_memory(memory, BYTES, GONE, access) }.unwrap()
}

fn entry(region: &Arc<dyn raw::MemoryRegion>) -> [ScatterGatherEntry; 1] {
    [ScatterGatherEntry { address: GONE, length: BYTES as u32, local_key: region.local_key() }]
}

#[test]
fn what_is_there_arrives() {
    let (one, two) = ends();
    let bytes = pattern(3, BYTES);
    one.region.copy_in(0, &bytes);
    one.post_write(1, BYTES, &two);
    assert_eq!(one.wait().status, CompletionStatus::Success);
    let mut arrived = vec![0; BYTES];
    two.region.copy_out(0, &mut arrived);
    assert!(arrived == bytes);
    two.post_receive(2, BYTES);
    one.post_send(3, BYTES);
    assert_eq!((one.wait().status, two.wait().status), (CompletionStatus::Success, CompletionStatus::Success));
    let capabilities = two.device.verbs().attributes().unwrap().capabilities;
    assert!(
        !capabilities.contains(Capabilities::ATOMICS),
        "no call changes eight bytes in one step and reports a fault"
    );
}

#[test]
fn sending_what_is_gone_fails_here() {
    let (one, two) = ends();
    let region = gone(&one);
    let entry = entry(&region);
    one.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Write(two.region.remote(0)), &entry)]).unwrap();
    assert_eq!(one.wait().status, CompletionStatus::LocalProtectionError);
}

#[test]
fn writing_to_what_is_gone_is_refused_there() {
    let (one, two) = ends();
    let region = gone(&two);
    let remote = RemoteMemory { address: GONE, key: region.remote_key() };
    let entry = [one.region.entry(0..BYTES)];
    one.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Write(remote), &entry)]).unwrap();
    assert_eq!(one.wait().status, CompletionStatus::RemoteAccessError);
}

#[test]
fn a_receive_into_what_is_gone_fails_at_both_ends() {
    let (one, two) = ends();
    let region = gone(&two);
    let entry = entry(&region);
    two.queue_pair.post_receive(&[ReceiveRequest { id: 1, local: &entry }]).unwrap();
    one.post_send(2, BYTES);
    assert_eq!(two.wait().status, CompletionStatus::LocalProtectionError);
    assert_eq!(one.wait().status, CompletionStatus::RemoteOperationError);
}
