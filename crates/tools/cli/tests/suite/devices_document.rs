//! docs/DEVICES.md says what the devices do, not what they once did.
//!
//! Its tables are generated: softnic's columns from devices that are opened here, those of others from the reviewed
//! tables in docs/devices, which the lab holds against the live device (`longhaul conformance --check-table`), and the
//! departures from the suite's own table.
//! `LONGHAUL_WRITE_DOCUMENT=1 cargo test -p longhaul-cli --test suite devices_document` writes them anew.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use longhaul_conformance::{Environment, KNOWN_DEPARTURES, RealTime, Shown, VirtualTime};
use longhaul_softnic_udp::{UdpConfig, UdpPortChoice};
use longhaul_verbs::{Capabilities, Device};
use serde_json::Value;

/// What each flag means to somebody who reads the table.
const MEANINGS: &[(Capabilities, &str)] = &[
    (Capabilities::RELIABLE_CONNECTION, "RC queue pairs"),
    (Capabilities::UNRELIABLE_CONNECTION, "UC queue pairs"),
    (Capabilities::UNRELIABLE_DATAGRAM, "UD queue pairs"),
    (Capabilities::READ, "RDMA READ"),
    (Capabilities::ATOMICS, "compare-and-swap, fetch-and-add"),
    (Capabilities::INVALIDATE, "SEND with invalidate, local invalidation"),
    (Capabilities::SHARED_RECEIVE_QUEUE, "shared receive queues"),
    (Capabilities::WINDOW_TYPE_1, "type 1 memory windows"),
    (Capabilities::WINDOW_TYPE_2A, "type 2A memory windows"),
    (Capabilities::WINDOW_TYPE_2B, "type 2B memory windows"),
    (Capabilities::NULL_REGION, "a region that takes writes and keeps nothing"),
    (Capabilities::MULTICAST, "UD multicast"),
    (Capabilities::WRITE_BURST, "many small WRITEs in one call, natively"),
    (Capabilities::COMPLETION_CHANNEL, "completion channels"),
    (Capabilities::EVENT_DESCRIPTORS, "file descriptors to sleep on"),
    (Capabilities::RESIZE_COMPLETION_QUEUE, "resizing completion queues"),
    (Capabilities::COMPLETION_MODERATION, "moderated completion events"),
    (Capabilities::ZERO_BASED, "regions whose addresses begin at zero"),
    (Capabilities::DMA_BUF, "regions over dma-buf memory"),
    (Capabilities::REREGISTER, "registering a region again"),
    (Capabilities::RATE_LIMIT, "a rate limit per queue pair"),
    (Capabilities::SEND_QUEUE_DRAIN, "draining the send queue (SQD), with an event"),
    (Capabilities::FREE_UDP_PORT, "peers at another UDP port than 4791"),
    (Capabilities::SLOTTED_REGION, "one key over many slots (SDR's root key)"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// A column of the table.
struct Column {
    title: &'static str,
    capabilities: Capabilities,
    limits: Option<Value>,
}

fn live(title: &'static str, device: &Device) -> Column {
    Column { title, capabilities: device.attributes().expect("softnic knows itself").capabilities, limits: None }
}

fn reviewed(title: &'static str, file: &str) -> Column {
    let text = std::fs::read_to_string(repository().join("docs/devices").join(file)).expect("a table of the device");
    let table: Value = serde_json::from_str(&text).expect("a table is JSON");
    let names = table["capabilities"].as_array().expect("a list of capabilities");
    let flag = |name: &Value| {
        let name = name.as_str().expect("a name");
        Capabilities::from_name(name).unwrap_or_else(|| panic!("{file}: there is no capability {name}"))
    };
    Column { title, capabilities: names.iter().map(flag).collect(), limits: Some(table["limits"].clone()) }
}

fn columns() -> [Column; 3] {
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    let loopback = RealTime::open_one("127.0.0.1".parse().expect("an address"), &udp).expect("loopback has sockets");
    [
        live("softnic", loopback.devices()[0]),
        live("softnic, simulated", VirtualTime::new(1).devices()[0]),
        reviewed("Soft-RoCE (rxe)", "rxe.json"),
    ]
}

fn capabilities_table(columns: &[Column]) -> String {
    let mut text = String::from("| capability | what it is |");
    for column in columns {
        // Writing to a string does not fail, here and below.
        let _ = write!(text, " {} |", column.title);
    }
    let _ = writeln!(text, " hardware RNICs |\n|{}", "---|".repeat(columns.len() + 3));
    for (flag, meaning) in MEANINGS {
        let names: Vec<&str> = flag.iter_names().map(|(name, _)| name).collect();
        let _ = write!(text, "| `{}` | {meaning} |", names.join(" "));
        for column in columns {
            let _ = write!(text, " {} |", if column.capabilities.contains(*flag) { "yes" } else { "no" });
        }
        let _ = writeln!(text, " not yet run |");
    }
    text
}

fn limits_table(columns: &[Column]) -> String {
    let mut text = String::from("| limit | Soft-RoCE (rxe) |\n|---|---|\n");
    let limits = columns.iter().find_map(|column| column.limits.as_ref()).expect("a reviewed table");
    for (name, value) in limits.as_object().expect("limits by name") {
        let _ = writeln!(text, "| `{name}` | {value} |");
    }
    text
}

fn departures_table(driver: &str) -> String {
    let known = KNOWN_DEPARTURES.iter().filter(|departure| departure.driver == driver);
    let mut text = String::from("| tests | what it does instead |\n|---|---|\n");
    for departure in known {
        let not_run = match departure.shown {
            Shown::Always => "",
            Shown::Sometimes => " (now and then)",
            Shown::NotRun => " (not run)",
        };
        let _ = writeln!(text, "| `{}`{not_run} | {} |", departure.tests.join("` `"), departure.reason);
    }
    text
}

/// Replaces what stands between the marks of a table.
fn with_table(document: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: generated -->\n"), format!("<!-- {name}: end -->\n"));
    let (head, rest) = document.split_once(&begin).unwrap_or_else(|| panic!("docs/DEVICES.md has no mark {begin}"));
    let (_, tail) = rest.split_once(&end).unwrap_or_else(|| panic!("docs/DEVICES.md has no mark {end}"));
    format!("{head}{begin}\n{table}\n{end}{tail}")
}

#[test]
fn every_capability_has_a_meaning() {
    let all: Capabilities = MEANINGS.iter().map(|(flag, _)| *flag).collect();
    assert_eq!(all, Capabilities::all());
}

#[test]
fn the_document_is_up_to_date() {
    let file = repository().join("docs/DEVICES.md");
    let document = std::fs::read_to_string(&file).expect("docs/DEVICES.md");
    let columns = columns();
    let mut wanted = with_table(&document, "capabilities", &capabilities_table(&columns));
    wanted = with_table(&wanted, "limits", &limits_table(&columns));
    wanted = with_table(&wanted, "departures of rxe", &departures_table("rxe"));
    if std::env::var_os("LONGHAUL_WRITE_DOCUMENT").is_some() {
        std::fs::write(&file, &wanted).expect("docs/DEVICES.md can be written");
        return;
    }
    assert!(
        document == wanted,
        "docs/DEVICES.md is not what the devices say; LONGHAUL_WRITE_DOCUMENT=1 cargo test -p longhaul-cli --test suite \
         devices_document writes its tables anew; they would be:\n{wanted}"
    );
}
