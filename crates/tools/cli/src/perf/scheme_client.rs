//! `longhaul perf client --scheme`: bandwidth and completion times of messages with a reliability scheme, against a
//! server.

use std::time::Duration;

use longhaul_reliable::NamedScheme;
use longhaul_verbs::Mtu;
use serde_json::{Value, json};

use super::checksum::ChecksumCost;
use super::client::{answer, first_answer, spinner, unexpected};
use super::control::{Control, Plan, Reply, Request, SchemeContact, SchemePlan, VERSION};
use super::histogram::Histogram;
use super::options::ClientArguments;
use super::scheme_end::{SchemeEnd, SchemeOptions};
use super::scheme_stream::{SchemeSender, SchemeSent, SchemeTotals};
use super::session::{Side, buffer_bytes, open_device, rate};
use super::stream::{Bound, Run};
use super::table::{self, BandwidthLine};
use crate::opened_device::Towards;
use crate::stop::{Stop, with_error};

/// How long the server may take to say why it has ended a connection.
const REASON_PATIENCE: Duration = Duration::from_millis(250);

/// Measures with the server at the other end of a connection.
pub(super) fn run(
    arguments: &ClientArguments,
    scheme: NamedScheme,
    mut plan: Plan,
    control: &mut Control,
    towards: Towards,
) -> Result<(), Stop> {
    let mtu_max = arguments.mtu.unwrap_or(Mtu::Bytes4096);
    let (device, mtu) = open_device(Side::Client, &arguments.end, &plan, towards, mtu_max)?;
    let (chunk_bytes, depth) = (arguments.chunk, arguments.scheme_depth());
    if let Some(chunk_bytes) = chunk_bytes.filter(|bytes| !bytes.is_multiple_of(mtu.byte_count())) {
        let mtu_bytes = mtu.byte_count();
        let text = format!(
            "--chunk {chunk_bytes} is not a multiple of {mtu_bytes}, the MTU of this path: use a multiple, or a smaller MTU with -m"
        );
        return Err(Stop::Usage(text));
    }
    plan.scheme = Some(SchemePlan { name: scheme.to_string(), chunk_bytes, depth });
    let buffer_bytes = buffer_bytes(&plan)?;
    let (client, server) = (towards.local, towards.peer);
    control.send(&Request::Hello { version: VERSION, client, server, plan: plan.clone() })?;
    let theirs = match first_answer(control)? {
        Reply::SchemeContact { contact, .. } => contact,
        other => return Err(unexpected("where it listens", &other)),
    };
    let Some(listener) = &theirs.listener else {
        return Err(Stop::Failed(
            "the server did not say where it listens: use the same release at both ends".to_owned(),
        ));
    };
    let ours = SchemeContact::new(&device, None);
    control.send(&Request::SchemeContact(ours.clone()))?;
    let options = SchemeOptions {
        scheme,
        mtu,
        chunk_bytes,
        rate_bits_per_second: rate(&arguments.end, &plan, towards)?,
        checksum: arguments.checksum,
    };
    let end = SchemeEnd::connect(device.endpoint(), listener, &options, buffer_bytes);
    let end = end.map_err(|stop| or_the_servers_reason(stop, control))?;
    match answer(control)? {
        Reply::Ready => {}
        other => return Err(unexpected("that it is ready", &other)),
    }
    // As agreed: the server's path may carry less.
    let mtu_bytes = end.connection.mtu_bytes().unwrap_or_else(|| mtu.byte_count());
    let size = plan.message_bytes_max;
    let chunk_bytes = end.connection.chunk_bytes().unwrap_or(mtu_bytes);
    // Latency is that of one message at a time.
    let depth = if plan.test.is_latency() { Some(1) } else { depth };
    let mut sender = SchemeSender::new(end, size, depth);
    let depth = sender.depth();
    let checksum = arguments.checksum;
    let heading =
        Heading { scheme, plan: &plan, mtu_bytes, chunk_bytes, depth, checksum, ours: &ours, theirs: &theirs };
    if !arguments.end.json {
        print!("{}", heading.to_text(arguments));
    }
    let progress = spinner(arguments, size, (0, 1));
    let result = measure(arguments, &plan, control, &mut sender, size);
    progress.finish_and_clear();
    let (line, mismatch) = result?;
    let mut value = heading.to_json(&line);
    value["impairment"] = device.impairment_json();
    let wrong = mismatch.as_deref().map(table::wrong_contents).or(device.finish().err().map(Stop::shown));
    match arguments.end.json {
        true => println!("{}", with_error(value, wrong.as_ref())),
        false => print!("{}{}", line.to_row(arguments.report_gbits), table::footing()),
    }
    wrong.map_or(Ok(()), Err)
}

/// What went wrong, or the reason that the server gives for it: when that ends, so does the connection.
fn or_the_servers_reason(stop: Stop, control: &Control) -> Stop {
    match control.receive(REASON_PATIENCE) {
        Ok(Reply::Refused { reason, .. }) => Stop::Failed(format!("the server: {reason}")),
        Err(gone) if control.is_gone() => gone,
        Ok(_) | Err(_) => stop,
    }
}

fn measure(
    arguments: &ClientArguments,
    plan: &Plan,
    control: &mut Control,
    sender: &mut SchemeSender,
    size: u32,
) -> Result<(SchemeLine, Option<String>), Stop> {
    let run = Run {
        operation: plan.operation,
        message_bytes: size,
        bound: match arguments.duration {
            Some(seconds) => Bound::Time(Duration::from_secs(u64::from(seconds))),
            None => Bound::Messages(arguments.iterations()),
        },
        verify_seed: plan.verify_seed,
    };
    control.send(&Request::Run(run))?;
    match answer(control)? {
        Reply::Running => {}
        other => return Err(unexpected("that it runs", &other)),
    }
    let sent = sender.run(&run).map_err(|stop| or_the_servers_reason(stop, control))?;
    let SchemeSent { sent, totals, completion } = sent;
    control.send(&Request::Stop { first: 0, count: sent.messages })?;
    let (received, receiver) = match answer(control)? {
        Reply::SchemeReceived(received, totals) => (received, totals),
        other => return Err(unexpected("what it has received", &other)),
    };
    let bandwidth = BandwidthLine {
        bytes: size,
        iterations: sent.messages,
        arrived: received.messages,
        seconds: sent.elapsed.as_secs_f64(),
        peak_messages_per_second: sent.peak_messages_per_second,
        verified: received.verified_messages,
    };
    let checksum = arguments.checksum.then(|| {
        let run_ns_per_message = bandwidth.seconds * 1e9 / (sent.messages.max(1) as f64);
        ChecksumCost::measure(&sender.end.memory, &sender.free_places(), size, run_ns_per_message)
    });
    let checksum = checksum.transpose()?;
    let is_latency = plan.test.is_latency();
    Ok((SchemeLine { is_latency, bandwidth, completion, sender: totals, receiver, checksum }, received.mismatch))
}

/// What is known before the result.
struct Heading<'a> {
    scheme: NamedScheme,
    plan: &'a Plan,
    mtu_bytes: u32,
    chunk_bytes: u32,
    /// Messages in flight.
    depth: usize,
    checksum: bool,
    ours: &'a SchemeContact,
    theirs: &'a SchemeContact,
}

impl Heading<'_> {
    fn rate(&self) -> Option<u64> {
        self.plan.rate_towards(self.theirs.address)
    }

    fn to_text(&self, arguments: &ClientArguments) -> String {
        let rate = table::rate_text(self.rate());
        let is_latency = self.plan.test.is_latency();
        let kind = if is_latency { "Completion" } else { "BW" };
        let mut text = format!("{}                    RDMA_Write {kind} Test with {}\n", table::RULE, self.scheme);
        let mut pair = |left: (&str, String), right: (&str, String)| {
            text += &format!(" {:<16}: {:<18} {:<16}: {}\n", left.0, left.1, right.0, right.1);
        };
        pair(("Scheme", self.scheme.to_string()), ("Connection type", "SDR over UC".to_owned()));
        pair(("Mtu", format!("{}[B]", self.mtu_bytes)), ("Chunk", format!("{}[B]", self.chunk_bytes)));
        pair(("In flight", format!("{} messages", self.depth)), ("Rate limit", rate));
        pair(
            ("Message", format!("{}[B]", self.plan.message_bytes_max)),
            ("Verify contents", if arguments.verify { "ON" } else { "OFF" }.to_owned()),
        );
        if self.checksum {
            text += &format!(" {:<16}: XXH3, 64 bits, verified by the server\n", "Checksum");
        }
        for (whose, contact) in [("Client device", self.ours), ("Server device", self.theirs)] {
            text +=
                &format!(" {whose:<16}: {} at {}, UDP port {}\n", contact.device, contact.address, contact.udp_port);
        }
        text += table::RULE;
        if !is_latency {
            text += &table::bandwidth_columns(arguments.report_gbits);
        }
        text
    }

    fn to_json(&self, line: &SchemeLine) -> Value {
        let Heading { plan, ours, theirs, .. } = self;
        json!({
            "schema": 1,
            "test": plan.test.name(),
            "operation": plan.operation.name(),
            "scheme": self.scheme.to_string(),
            "client_device": ours.device,
            "server_device": theirs.device,
            "connection": plan.connection.transport().abbreviation(),
            "mtu_bytes": self.mtu_bytes,
            "chunk_bytes": self.chunk_bytes,
            "messages_in_flight": self.depth,
            "rate_limit_bits_per_second": self.rate(),
            "local": { "address": ours.address, "udp_port": ours.udp_port },
            "remote": { "address": theirs.address, "udp_port": theirs.udp_port },
            "verified": plan.verify_seed.is_some(),
            "checksum": self.checksum,
            // There is one size, so its most important values are here as well.
            "completion_us": line.completion_json(),
            "repeated": line.repeated(),
            "duplicates": line.duplicates(),
            "results": [line.to_json()],
        })
    }
}

/// The result.
struct SchemeLine {
    is_latency: bool,
    /// From handing a message over to its being reported as done.
    completion: Histogram,
    bandwidth: BandwidthLine,
    sender: SchemeTotals,
    receiver: SchemeTotals,
    checksum: Option<ChecksumCost>,
}

impl SchemeLine {
    fn round_trip_us(&self) -> Option<f64> {
        self.sender.round_trip.map(|round_trip| round_trip.as_secs_f64() * 1e6)
    }

    /// How long each end did not look at anything at most: without a processor, or busy with what it had taken. A
    /// message in flight then takes as long.
    fn longest_pauses_us(&self) -> [f64; 2] {
        [self.sender, self.receiver].map(|totals| totals.longest_pause.as_secs_f64() * 1e6)
    }

    /// Data packets that were sent again.
    fn repeated(&self) -> u64 {
        self.sender.data_packets_repeated
    }

    /// Packets that the receiver had already. One that comes after its message has ended is one too, unless there is
    /// parity, which is often still in flight when the data is complete and cannot be distinguished from data then:
    /// `late_packets` has both.
    fn duplicates(&self) -> u64 {
        let has_parity = self.sender.parity_packets_sent > 0;
        self.receiver.duplicate_packets + if has_parity { 0 } else { self.receiver.late_packets }
    }

    fn completion_json(&self) -> Value {
        let completion = &self.completion;
        json!({
            "p50": completion.percentile(50.0),
            "p99": completion.percentile(99.0),
            "p999": completion.percentile(99.9),
            "max": completion.longest(),
        })
    }

    fn to_row(&self, report_gbits: bool) -> String {
        let SchemeLine { sender, receiver, completion, .. } = self;
        let mut text = if self.is_latency { String::new() } else { self.bandwidth.to_row(report_gbits) };
        let mut line = |words: String| text += &format!(" {:<10} {words}\n", "");
        line(format!("completion of {} messages, from handing over to done:", completion.count()));
        line(format!(
            "min {:.1}, mean {:.1}, p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} µs",
            completion.least(),
            completion.mean(),
            completion.percentile(50.0),
            completion.percentile(99.0),
            completion.percentile(99.9),
            completion.longest()
        ));
        line(format!(
            "{} data packets sent, {} of them repeats; {} duplicates arrived",
            sender.data_packets_sent,
            self.repeated(),
            self.duplicates()
        ));
        if sender.parity_packets_sent > 0 {
            line(format!(
                "{} parity packets sent; {} chunks computed from {} of parity, {} of parity not needed",
                sender.parity_packets_sent,
                receiver.chunks_recovered,
                receiver.parity_chunks_used,
                receiver.parity_chunks_wasted
            ));
        }
        let round_trip = self.round_trip_us().map_or_else(|| "not measured".to_owned(), |time| format!("{time:.1} µs"));
        line(format!(
            "fell back {} times at the sender, {} at the receiver; round trip {round_trip}",
            sender.fallbacks, receiver.fallbacks
        ));
        let [client, server] = self.longest_pauses_us().map(|us| us / 1e3);
        line(format!("longest time for which an end stood still: client {client:.1} ms, server {server:.1} ms"));
        if let Some(checksum) = self.checksum {
            line(format!("checksums of {} bytes verified by the server, none differed", receiver.checksummed_bytes));
            checksum.to_text().into_iter().for_each(line);
        }
        text
    }

    fn to_json(&self) -> Value {
        let SchemeLine { bandwidth, sender, receiver, completion, .. } = self;
        let mut value = bandwidth.to_json();
        value["completion_us"] = self.completion_json();
        value["completion_us"]["min"] = json!(completion.least());
        value["completion_us"]["mean"] = json!(completion.mean());
        for (name, count) in [
            ("repeated", self.repeated()),
            ("duplicates", self.duplicates()),
            ("data_packets_sent", sender.data_packets_sent),
            ("data_packets_repeated", sender.data_packets_repeated),
            ("parity_packets_sent", sender.parity_packets_sent),
            ("duplicate_packets", receiver.duplicate_packets),
            ("late_packets", receiver.late_packets),
            ("parity_chunks_used", receiver.parity_chunks_used),
            ("parity_chunks_wasted", receiver.parity_chunks_wasted),
            ("chunks_recovered", receiver.chunks_recovered),
            ("sender_fallbacks", sender.fallbacks),
            ("receiver_fallbacks", receiver.fallbacks),
            ("feedback_records_sent", receiver.feedback_records),
            ("feedback_records_received", sender.feedback_records),
            ("checksummed_bytes_sent", sender.checksummed_bytes),
            ("checksummed_bytes_verified", receiver.checksummed_bytes),
        ] {
            value[name] = json!(count);
        }
        value["round_trip_us"] = json!(self.round_trip_us());
        let [client, server] = self.longest_pauses_us();
        value["longest_pause_us"] = json!({ "client": client, "server": server });
        ChecksumCost::add_to(self.checksum.as_ref(), &mut value);
        value
    }
}
