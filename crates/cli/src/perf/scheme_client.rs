//! `longhaul perf client --scheme`: bandwidth of messages with a reliability scheme, against a server.

use longhaul_reliable::NamedScheme;
use longhaul_sdr::info::QueuePairInfo;
use longhaul_verbs::Mtu;
use serde_json::{Value, json};

use super::client::{answer, first_answer, spinner, unexpected};
use super::control::{Control, Plan, Reply, Request, SchemeContact, SchemePlan, VERSION};
use super::options::ClientArguments;
use super::scheme_end::{SchemeEnd, SchemeOptions};
use super::scheme_stream::{SchemeSender, SchemeTotals};
use super::session::{Side, buffer_bytes, open_device, rate};
use super::stream::{Bound, Run};
use super::table::{self, BandwidthLine};
use crate::opened_device::Towards;
use crate::stop::Stop;

/// Measures with the server at the other end of a connection.
pub(super) fn run(
    arguments: &ClientArguments,
    scheme: NamedScheme,
    mut plan: Plan,
    control: &mut Control,
    towards: Towards,
) -> Result<(), Stop> {
    let buffer_bytes = buffer_bytes(&plan)?;
    let mtu_max = arguments.mtu.unwrap_or(Mtu::Bytes4096);
    let (device, mtu) = open_device(Side::Client, &arguments.end, &plan, towards, mtu_max)?;
    plan.scheme = Some(SchemePlan { name: scheme.to_string(), mtu_bytes: mtu.byte_count() });
    let (client, server) = (towards.local, towards.peer);
    control.send(&Request::Hello { version: VERSION, client, server, plan: plan.clone() })?;
    let theirs = match first_answer(control)? {
        Reply::SchemeContact { contact, .. } => contact,
        other => return Err(unexpected("the contact of an SDR queue pair", &other)),
    };
    let info = QueuePairInfo::from_bytes(&theirs.info);
    let mtu = info.map_err(|error| Stop::failed("the server's contact cannot be read", error))?.mtu;
    let message_bytes_max = plan.message_bytes_max;
    let rate_bits_per_second = rate(&arguments.end, &plan, towards)?;
    let end = SchemeEnd::create(
        &device,
        &SchemeOptions { scheme, timeout_min: None, mtu, buffer_bytes, message_bytes_max, rate_bits_per_second },
    )?;
    let ours = end.contact();
    control.send(&Request::SchemeContact(ours.clone()))?;
    end.connect(&theirs.info)?;
    match answer(control)? {
        Reply::Ready => {}
        other => return Err(unexpected("that it is ready", &other)),
    }
    let heading = Heading { scheme, plan: &plan, mtu, chunk_bytes: end.chunk_bytes(), ours: &ours, theirs: &theirs };
    if !arguments.end.json {
        print!("{}", heading.to_text(arguments));
    }
    let size = plan.message_bytes_max;
    let mut sender = SchemeSender::new(end, size);
    let progress = spinner(arguments, size, (0, 1));
    let result = measure(arguments, &plan, control, &mut sender, size);
    progress.finish_and_clear();
    let (line, mismatch) = result?;
    match arguments.end.json {
        true => println!("{}", heading.to_json(&line)),
        false => print!("{}{}", line.to_row(arguments.report_gbits), table::footing()),
    }
    match mismatch {
        Some(mismatch) => Err(Stop::Failed(format!("contents are not what was sent: {mismatch}"))),
        None => Ok(()),
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
            Some(seconds) => Bound::Time(std::time::Duration::from_secs(u64::from(seconds))),
            None => Bound::Messages(arguments.iterations()),
        },
        verify_seed: plan.verify_seed,
    };
    control.send(&Request::Run(run))?;
    match answer(control)? {
        Reply::Running => {}
        other => return Err(unexpected("that it runs", &other)),
    }
    let (sent, totals) = sender.run(&run, &|| control.is_gone())?;
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
    Ok((SchemeLine { bandwidth, sender: totals, receiver }, received.mismatch))
}

/// What is known before the result.
struct Heading<'a> {
    scheme: NamedScheme,
    plan: &'a Plan,
    mtu: Mtu,
    chunk_bytes: u32,
    ours: &'a SchemeContact,
    theirs: &'a SchemeContact,
}

impl Heading<'_> {
    fn rate(&self) -> Option<u64> {
        self.plan.rate_towards(self.theirs.address)
    }

    fn to_text(&self, arguments: &ClientArguments) -> String {
        let rate = table::rate_text(self.rate());
        let mut text = format!("{}                    RDMA_Write BW Test with {}\n", table::RULE, self.scheme);
        let mut pair = |left: (&str, String), right: (&str, String)| {
            text += &format!(" {:<16}: {:<18} {:<16}: {}\n", left.0, left.1, right.0, right.1);
        };
        pair(("Scheme", self.scheme.to_string()), ("Connection type", "SDR over UC".to_owned()));
        pair(("Mtu", format!("{}[B]", self.mtu.byte_count())), ("Chunk", format!("{}[B]", self.chunk_bytes)));
        pair(("Rate limit", rate), ("Verify contents", if arguments.verify { "ON" } else { "OFF" }.to_owned()));
        for (whose, contact) in [("Client device", self.ours), ("Server device", self.theirs)] {
            text +=
                &format!(" {whose:<16}: {} at {}, UDP port {}\n", contact.device, contact.address, contact.udp_port);
        }
        text + table::RULE + &table::bandwidth_columns(arguments.report_gbits)
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
            "mtu_bytes": self.mtu.byte_count(),
            "chunk_bytes": self.chunk_bytes,
            "rate_limit_bits_per_second": self.rate(),
            "local": { "address": ours.address, "udp_port": ours.udp_port },
            "remote": { "address": theirs.address, "udp_port": theirs.udp_port },
            "verified": plan.verify_seed.is_some(),
            "results": [line.to_json()],
        })
    }
}

/// What came of it.
struct SchemeLine {
    bandwidth: BandwidthLine,
    sender: SchemeTotals,
    receiver: SchemeTotals,
}

impl SchemeLine {
    fn round_trip_us(&self) -> Option<f64> {
        self.sender.round_trip.map(|round_trip| round_trip.as_secs_f64() * 1e6)
    }

    fn to_row(&self, report_gbits: bool) -> String {
        let SchemeLine { sender, receiver, .. } = self;
        let mut text = self.bandwidth.to_row(report_gbits);
        let mut line = |words: String| text += &format!(" {:<10} {words}\n", "");
        line(format!(
            "{} data packets sent, {} of them again; {} came more than once",
            sender.data_packets_sent, sender.data_packets_repeated, receiver.duplicate_packets
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
        text
    }

    fn to_json(&self) -> Value {
        let SchemeLine { bandwidth, sender, receiver } = self;
        let mut value = bandwidth.to_json();
        for (name, count) in [
            ("data_packets_sent", sender.data_packets_sent),
            ("data_packets_repeated", sender.data_packets_repeated),
            ("parity_packets_sent", sender.parity_packets_sent),
            ("duplicate_packets", receiver.duplicate_packets),
            ("parity_chunks_used", receiver.parity_chunks_used),
            ("parity_chunks_wasted", receiver.parity_chunks_wasted),
            ("chunks_recovered", receiver.chunks_recovered),
            ("sender_fallbacks", sender.fallbacks),
            ("receiver_fallbacks", receiver.fallbacks),
            ("feedback_records_sent", receiver.feedback_records),
            ("feedback_records_received", sender.feedback_records),
        ] {
            value[name] = json!(count);
        }
        value["round_trip_us"] = json!(self.round_trip_us());
        value
    }
}
