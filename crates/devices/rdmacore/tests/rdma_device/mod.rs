//! The device that the tests run on, and a connection with itself.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use longhaul_rdmacore::RdmaDevice;
use longhaul_verbs::{
    Access, CompletionQueue, Device, GidType, MemoryRegion, Mtu, PathAttributes, ProtectionDomain, QueuePair,
    QueuePairAttributes, QueuePairOptions, QueuePairState, Transport, WorkCompletion,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// For things that take microseconds on hardware, and much longer in an emulated guest.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The device named by `LONGHAUL_RDMA_DEVICE`; `None`, said loudly, when there is none.
pub(crate) fn device() -> Option<RdmaDevice> {
    let Ok(name) = std::env::var("LONGHAUL_RDMA_DEVICE") else {
        eprintln!("SKIPPED: LONGHAUL_RDMA_DEVICE is not set; set it to a device that libibverbs knows (rxe0)");
        return None;
    };
    Some(RdmaDevice::open(&name).unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error))))
}

/// An address of the device that peers can use.
pub(crate) fn own_address(device: &Device) -> IpAddr {
    let length = device.port_attributes(1).unwrap().gid_table_length;
    let rows = (0..length).map(|index| device.gid(1, index).unwrap());
    let mut usable = rows.filter(|row| row.gid_type == GidType::RoceV2).map(|row| row.gid.to_ip());
    usable.find(|address| address.is_ipv4()).expect("the device's interface has an IPv4 address")
}

/// Whether the descriptor becomes readable within that time.
pub(crate) fn is_readable(descriptor: BorrowedFd<'_>, within: Duration) -> bool {
    let timeout = PollTimeout::try_from(within).unwrap();
    let mut descriptors = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
    poll(&mut descriptors, timeout).unwrap() == 1
}

/// The next completion.
pub(crate) fn completion(queue: &CompletionQueue) -> WorkCompletion {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(completion) = queue.poll_one().unwrap() {
            return completion;
        }
        assert!(Instant::now() < end, "no completion within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A reliable connection of a device with itself.
pub(crate) struct Loop {
    pub(crate) domain: ProtectionDomain,
    pub(crate) ends: [QueuePair; 2],
    pub(crate) memory: MemoryRegion,
}

impl Loop {
    pub(crate) fn new(device: &Device, queues: [&CompletionQueue; 2], options: &QueuePairOptions) -> Loop {
        Loop::in_domain(device, device.allocate_protection_domain().unwrap(), queues, options)
    }

    pub(crate) fn in_domain(
        device: &Device,
        domain: ProtectionDomain,
        queues: [&CompletionQueue; 2],
        options: &QueuePairOptions,
    ) -> Loop {
        let make = |queue| domain.create_queue_pair(Transport::ReliableConnection, queue, queue, options).unwrap();
        let ends = queues.map(make);
        let address = own_address(device);
        let choice = device.choose_gid(Some(address), address).unwrap();
        for (end, peer) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            connect(end, peer, &choice);
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = domain.register_zeroed(8192, access).unwrap();
        Loop { domain, ends, memory }
    }
}

fn connect(end: &QueuePair, peer: &QueuePair, choice: &longhaul_verbs::GidChoice) {
    end.modify(&QueuePairAttributes {
        state: Some(QueuePairState::Initialized),
        partition_key_index: Some(0),
        port: Some(choice.port),
        access: Some(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC),
        ..Default::default()
    })
    .unwrap();
    end.modify(&QueuePairAttributes {
        state: Some(QueuePairState::ReadyToReceive),
        path: Some(PathAttributes {
            source_gid_index: u8::try_from(choice.index).unwrap(),
            port: choice.port,
            ..PathAttributes::to(choice.gid)
        }),
        path_mtu: Some(Mtu::Bytes1024),
        destination_queue_pair: Some(peer.number()),
        receive_psn: Some(1000),
        max_destination_read_atomic: Some(1),
        min_receiver_not_ready_timer: Some(12),
        ..Default::default()
    })
    .unwrap();
    end.modify(&QueuePairAttributes {
        state: Some(QueuePairState::ReadyToSend),
        timeout: Some(14),
        retry_count: Some(7),
        receiver_not_ready_retry: Some(7),
        send_psn: Some(1000),
        max_read_atomic: Some(1),
        ..Default::default()
    })
    .unwrap();
}
