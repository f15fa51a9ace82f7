//! Captures, as other programs read them.

use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex};

use longhaul_impair::{Loss, Profile};
use longhaul_netsim::capture::{Capture, CaptureError, CaptureSummary};
use longhaul_netsim::{Direction, Frame, Node, NodeIo, Simulation};
use longhaul_time::{Duration, Instant};
use pcap_file::DataLink;
use pcap_file::pcapng::{Block, PcapNgReader};

struct Sink;

impl Node for Sink {
    fn handle(&mut self, _link_port: usize, frame: Frame, _now: Instant, io: &mut NodeIo<'_>) {
        io.recycle(frame);
    }
    fn poll(&mut self, _now: Instant, _io: &mut NodeIo<'_>) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// A file in memory that can be read after the simulation is done with it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// IPv4, UDP to port 4791, with `elided` bytes that the lengths count and the frame does not hold.
fn datagram(payload: &[u8], elided: u16) -> Frame {
    let udp_bytes = 8 + payload.len() as u16 + elided;
    let total_bytes = 20 + udp_bytes;
    let mut bytes = vec![0x45, 0];
    bytes.extend_from_slice(&total_bytes.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend_from_slice(&[0xc0, 0x00, 0x12, 0xb7]);
    bytes.extend_from_slice(&udp_bytes.to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(payload);
    Frame { bytes, elided_bytes: u32::from(elided) }
}

/// Sends three datagrams, of which the second is lost, and captures at three places.
fn captured(limit: impl FnOnce(Capture) -> Capture) -> (Vec<u8>, CaptureSummary) {
    let file = Shared::default();
    let mut simulation = Simulation::new(1);
    let left = simulation.add_node(Sink);
    let right = simulation.add_node(Sink);
    let good = Profile::default().with_propagation_delay(Duration::from_nanos(1_234_567));
    let broken = good.clone().with_loss(Loss::Independent { probability: 1.0 });
    let link = simulation.connect(left.port(0), right.port(0), good.clone(), good.clone()).expect("free ports");
    assert!(matches!(simulation.capture_node(left, "early"), Err(CaptureError::NotStarted)));
    simulation.start_capture(limit(Capture::new(file.clone()).expect("memory takes it")));
    simulation.capture_node(left, "left").expect("started");
    simulation.capture_node(right, "right").expect("started");
    simulation.capture_link(link, Direction::Forward, "link").expect("started");
    for (profile, frame) in
        [(good.clone(), datagram(b"one", 0)), (broken, datagram(b"lost", 0)), (good, datagram(&[7; 24], 1000))]
    {
        simulation.set_profile(link, Direction::Forward, profile).expect("a good profile");
        simulation.drive(left, |_, _, io| io.send(0, frame));
        simulation.run_until(simulation.now() + Duration::from_nanos(500));
    }
    simulation.run_until(Instant::FAR_FUTURE);
    let summary = simulation.finish_capture().expect("memory takes it");
    let bytes = file.0.lock().expect("not poisoned").clone();
    (bytes, summary)
}

#[test]
fn a_capture_reads_back_with_virtual_time_and_true_lengths() {
    let (bytes, summary) = captured(|capture| capture);
    assert_eq!(summary, CaptureSummary { frames_written: 8, frames_left_out: 0 });
    let mut reader = PcapNgReader::new(&bytes[..]).expect("a section header");
    let mut packets = Vec::new();
    let mut interfaces = 0;
    while let Some(block) = reader.next_block() {
        match block.expect("a good block") {
            Block::InterfaceDescription(interface) => {
                assert_eq!(interface.linktype, DataLink::RAW);
                interfaces += 1;
            }
            Block::EnhancedPacket(packet) => packets.push((
                packet.interface_id,
                packet.timestamp.as_nanos() as u64,
                packet.data.len(),
                packet.original_len,
            )),
            other => panic!("expected interfaces and packets, got {other:?}"),
        }
    }
    assert_eq!(interfaces, 3);
    let expected = [
        (0, 0, 31, 31),
        (2, 0, 31, 31),
        (0, 500, 32, 32),
        (2, 500, 32, 32),
        (0, 1_000, 52, 1052),
        (2, 1_000, 52, 1052),
        (1, 1_234_567, 31, 31),
        (1, 1_235_567, 52, 1052),
    ];
    assert_eq!(packets, expected);
}

#[test]
fn a_capture_stops_at_its_limit_and_says_so() {
    let (_, summary) = captured(|capture| capture.with_file_bytes_max(150));
    assert_eq!(summary.frames_written + summary.frames_left_out, 8);
    assert!((1..4).contains(&summary.frames_written), "{summary:?}");
}

/// A disk that is full after this many bytes.
struct FullAfter(usize);

impl Write for FullAfter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_does_not_stop_the_simulation_and_is_reported_at_the_end() {
    let mut simulation = Simulation::new(1);
    let left = simulation.add_node(Sink);
    let right = simulation.add_node(Sink);
    let link =
        simulation.connect(left.port(0), right.port(0), Profile::default(), Profile::default()).expect("free ports");
    simulation.start_capture(Capture::new(FullAfter(200)).expect("room for a header"));
    simulation.capture_link(link, Direction::Forward, "link").expect("started");
    for _ in 0..10 {
        simulation.drive(left, |_, _, io| io.send(0, datagram(b"hello", 0)));
    }
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(simulation.link_counters(link, Direction::Forward).delivered, 10);
    assert!(matches!(simulation.finish_capture(), Err(CaptureError::Write(_))));
}

#[test]
fn tshark_reads_a_capture() {
    let is_installed = Command::new("tshark").arg("--version").output().is_ok();
    if !is_installed {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "tshark is needed to test captures; install it");
        eprintln!("SKIPPED tshark_reads_a_capture: tshark is not installed");
        return;
    }
    let (bytes, _) = captured(|capture| capture);
    let path = std::env::temp_dir().join(format!("longhaul-netsim-capture-{}.pcapng", std::process::id()));
    std::fs::write(&path, bytes).expect("a temporary file");
    let fields = ["frame.time_epoch", "frame.interface_name", "frame.len", "frame.cap_len", "ip.dst", "udp.dstport"];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=,"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark runs");
    std::fs::remove_file(&path).expect("the file is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 8, "{text}");
    // Versions of tshark print the epoch as seconds or as a date; the nanoseconds are there in both.
    assert!(lines[0].contains(".000000000") && lines[0].ends_with(",left,31,31,10.0.0.2,4791"), "{text}");
    assert!(lines[7].contains(".001235567") && lines[7].ends_with(",right,1052,52,10.0.0.2,4791"), "{text}");
}
