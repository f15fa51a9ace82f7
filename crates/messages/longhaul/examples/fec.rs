//! Forward error correction below queue pairs of your own: RC over a network that loses every fiftieth packet.
//! `cargo run -p longhaul --example fec -- lowar:mds:32,4` (or `auto`, which follows the link)

use std::error::Error;
use std::net::IpAddr;

use longhaul::softnic::{Fec, FecPeer, Impair, Loss, Profile, Protection, UdpConfig, UdpPortChoice};
use longhaul::verbs::{
    Access, CompletionQueue, CompletionStatus, Gid, MemoryRegion, Mtu, QueuePair, QueuePairAttributes, QueuePairNumber,
    QueuePairOptions, RemoteMemory, SendOperation, SendRequest, Transport,
};
use longhaul::{Endpoint, Towards};

const BYTES: usize = 16 << 20;
const FIRST_PSN: u32 = 1;

/// One end. Two programs, each with one of them, are the same: they send each other their [`End::info`].
struct End {
    endpoint: Endpoint,
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

/// What an end has to know of the other, as it was sent.
struct Info {
    udp_port: u16,
    memory: RemoteMemory,
    peer: FecPeer,
}

impl Info {
    fn parse(text: &str) -> Result<Self, Box<dyn Error>> {
        let fields: Vec<&str> = text.split(' ').collect();
        let [address, udp_port, number, memory, key, fec] = fields[..] else {
            return Err("not connection info".into());
        };
        let fec: Option<Fec> = if fec == "none" { None } else { Some(fec.parse()?) };
        Ok(Info {
            udp_port: udp_port.parse()?,
            memory: RemoteMemory { address: memory.parse()?, key: key.parse()? },
            peer: FecPeer { address: address.parse()?, queue_pair: QueuePairNumber::new(number.parse()?), fec },
        })
    }
}

impl End {
    fn open(local: IpAddr, peer: IpAddr, fec: Option<Fec>) -> Result<Self, Box<dyn Error>> {
        let mut udp = UdpConfig::default();
        udp.fec = fec;
        udp.udp_port = UdpPortChoice::Free;
        // For this demonstration: the loss of a bad network.
        let profile = Profile::default().with_loss(Loss::Independent { probability: 0.02 });
        udp.impair = Some(Impair { profile, seed: 1 });
        let endpoint = Endpoint::open(&"softnic".parse()?, Towards { local, peer, gid_index: None }, udp)?;

        let domain = endpoint.device().allocate_protection_domain()?;
        let completions = endpoint.device().create_completion_queue(16)?;
        let options = QueuePairOptions::default();
        let queue_pair =
            domain.create_queue_pair(Transport::ReliableConnection, &completions, &completions, &options)?;
        let region = domain.register_zeroed(BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(End { endpoint, completions, queue_pair, region })
    }

    fn info(&self) -> String {
        let (address, udp_port) = (self.endpoint.address(), self.endpoint.udp_port());
        let number = self.queue_pair.number().value();
        let (memory, key) = (self.region.address(), self.region.remote_key());
        let fec = self.endpoint.softnic().and_then(|softnic| softnic.fec());
        let fec = fec.map_or("none".to_owned(), |fec| fec.to_string());
        format!("{address} {udp_port} {number} {memory} {key} {fec}")
    }

    /// Protect the queue pair, then connect it: from then on the peer may send.
    fn connect(&self, info: &Info) -> Result<Option<Protection>, Box<dyn Error>> {
        let protection = match self.endpoint.softnic() {
            Some(softnic) if softnic.fec().is_some() => Some(softnic.protect_queue_pair(&self.queue_pair, &info.peer)?),
            _ => None,
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        self.queue_pair.modify(&QueuePairAttributes::init_connected(access))?;
        let path = self.endpoint.path_to(Gid::from_ip(info.peer.address), info.udp_port);
        let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes1024, info.peer.queue_pair, FIRST_PSN);
        self.queue_pair.modify(&receive.reliable_receive(0, 12))?;
        self.queue_pair.modify(&QueuePairAttributes::ready_to_send(FIRST_PSN).reliable_send(14, 7, 7, 0))?;
        Ok(protection)
    }

    fn write(&self, to: RemoteMemory) -> Result<(), Box<dyn Error>> {
        let all = [self.region.entry(0..BYTES)];
        self.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Write(to), &all)])?;
        loop {
            match self.completions.poll_one()? {
                None => std::thread::yield_now(),
                Some(completion) if completion.status == CompletionStatus::Success => return Ok(()),
                Some(completion) => return Err(completion.status.to_string().into()),
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let fec = std::env::args().nth(1).unwrap_or("lowar:mds:32,4".to_owned());
    let fec: Option<Fec> = if fec == "none" { None } else { Some(fec.parse()?) };
    let (one, two) = ("127.0.0.1".parse()?, "127.0.0.2".parse()?);
    let (sender, receiver) = (End::open(one, two, fec)?, End::open(two, one, fec)?);

    // Each of the two lines goes to the other program, the way your programs find each other.
    let (to_receiver, to_sender) = (Info::parse(&sender.info())?, Info::parse(&receiver.info())?);
    let protections = [sender.connect(&to_sender)?, receiver.connect(&to_receiver)?];

    let pattern: Vec<u8> = (0..BYTES).map(|place| (place ^ (place >> 8)) as u8).collect();
    sender.region.copy_in(0, &pattern);
    sender.write(to_sender.memory)?;
    assert!(receiver.region.to_vec(0..BYTES) == pattern, "the bytes differ");

    let counters = receiver.endpoint.softnic().and_then(|softnic| softnic.fec_counters());
    let restored = counters.map_or(0, |(_, received)| received.restored);
    println!("{} MiB arrived; {restored} lost packets were restored", BYTES >> 20);
    // As long as the queue pairs are connected.
    drop(protections);
    Ok(())
}
