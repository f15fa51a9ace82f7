//! A peer that says whatever the test wants: a plain queue pair in the place of an end's control queue pair.

use longhaul_sdr::control::{ControlFrame, FrameWriter, Header, Record};
use longhaul_sdr::info::QueuePairInfo;
use longhaul_time::Duration;
use longhaul_verbs::{
    Access, CompletionOperation, CompletionQueue, MemoryRegion, Mtu, PathAttributes, QueuePair,
    QueuePairAttributes as VerbsAttributes, QueuePairLimits, QueuePairOptions, ReceiveRequest, SendOperation,
    SendRequest, Transport, WorkCompletion,
};

use super::{End, Ends, Options};

const FRAME: usize = 1024;
const RECEIVES: usize = 64;

/// The end under test and the network are those of `ends`; its sender is not polled.
pub(crate) struct RawPeer {
    pub(crate) ends: Ends,
    queue_pair: QueuePair,
    completions: CompletionQueue,
    region: MemoryRegion,
    /// What the end under test calls itself.
    pub(crate) info: QueuePairInfo,
    /// Of all records of schemes that were [heard](RawPeer::heard).
    pub(crate) scheme_bytes: usize,
}

impl RawPeer {
    pub(crate) fn new(options: Options, change: impl Fn(&mut longhaul_sdr::QueuePairAttributes)) -> Self {
        let ends = Ends::unconnected(options, change);
        let device = ends.world.device(0);
        let domain = device.allocate_protection_domain().unwrap();
        let completions = device.create_completion_queue(256).unwrap();
        let limits = QueuePairLimits {
            send_requests: 64,
            receive_requests: RECEIVES as u32,
            send_entries: 1,
            receive_entries: 1,
            inline_bytes: 0,
        };
        let options = QueuePairOptions { limits, signal_all: true, shared_receive_queue: None };
        let transport = Transport::UnreliableConnection;
        let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options).unwrap();
        let region = domain.register_zeroed((RECEIVES + 1) * FRAME, Access::LOCAL_WRITE).unwrap();
        let info = ends.receiver.queue_pair.info();
        queue_pair.modify(&VerbsAttributes::init_connected(Access::empty())).unwrap();
        let path = PathAttributes { udp_port: info.udp_port, ..PathAttributes::to(info.gid) };
        let (number, psn) = info.control;
        queue_pair.modify(&VerbsAttributes::ready_to_receive(path, Mtu::Bytes1024, number, psn)).unwrap();
        queue_pair.modify(&VerbsAttributes::ready_to_send(0)).unwrap();
        for place in 0..RECEIVES {
            post_receive(&queue_pair, &region, place);
        }
        let mut own = QueuePairInfo { control: (queue_pair.number(), 0), ..ends.sender.queue_pair.info() };
        own.source_ports.clear();
        ends.receiver.queue_pair.connect(&own).unwrap();
        RawPeer { ends, queue_pair, completions, region, info, scheme_bytes: 0 }
    }

    pub(crate) fn end(&self) -> &End {
        &self.ends.receiver
    }

    /// A header that the end under test takes for its peer's.
    pub(crate) fn header(&self) -> Header {
        Header {
            receiver: self.info.receiver,
            sent_at: self.ends.world.now().as_nanos(),
            window: 64,
            ..Header::default()
        }
    }

    pub(crate) fn say(&mut self, header: &Header, records: &[Record<'_>]) {
        self.say_unpolled(header, records);
        self.run_for(Duration::from_micros(100));
    }

    /// The same, but time does not pass.
    pub(crate) fn say_unpolled(&mut self, header: &Header, records: &[Record<'_>]) {
        let mut bytes = [0; FRAME];
        let mut writer = FrameWriter::new(&mut bytes, header).unwrap();
        assert!(records.iter().all(|record| writer.push(record)));
        let length = writer.finish();
        self.post(&bytes[..length]);
    }

    /// Send bytes and let them arrive.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.post(bytes);
        self.run_for(Duration::from_micros(100));
    }

    fn post(&mut self, bytes: &[u8]) {
        let start = RECEIVES * FRAME;
        self.region.copy_in(start, bytes);
        let local = [self.region.entry(start..start + bytes.len())];
        self.queue_pair.post_send(&[SendRequest::new(u64::MAX, SendOperation::Send, &local)]).unwrap();
    }

    /// Headers that have come, and how many clear-to-sends each brought.
    pub(crate) fn heard(&mut self) -> Vec<(Header, usize)> {
        let mut headers = Vec::new();
        let mut taken = [WorkCompletion::default(); 16];
        loop {
            let count = self.completions.poll(&mut taken).unwrap();
            for completion in taken[..count].iter().filter(|taken| taken.operation == CompletionOperation::Receive) {
                let place = completion.id as usize;
                let mut bytes = vec![0; completion.byte_count as usize];
                self.region.copy_out(place * FRAME, &mut bytes);
                post_receive(&self.queue_pair, &self.region, place);
                let frame = ControlFrame::new_checked(&bytes).unwrap();
                let clears = frame.records().filter(|record| matches!(record, Ok(Record::ClearToSend(_)))).count();
                let scheme_bytes = frame.records().map(|record| match record {
                    Ok(Record::Scheme(bytes)) => bytes.len(),
                    _ => 0,
                });
                self.scheme_bytes += scheme_bytes.sum::<usize>();
                headers.push((Header::parse(&frame), clears));
            }
            if count == 0 {
                return headers;
            }
        }
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        self.ends.run_receiver_for(duration);
    }
}

fn post_receive(queue_pair: &QueuePair, region: &MemoryRegion, place: usize) {
    let local = [region.entry(place * FRAME..(place + 1) * FRAME)];
    queue_pair.post_receive(&[ReceiveRequest { id: place as u64, local: &local }]).unwrap();
}
