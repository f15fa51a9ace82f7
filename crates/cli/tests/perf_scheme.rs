//! `longhaul perf client --scheme`: messages with a reliability scheme, on the loopback device, contents verified.

mod perf_server;

use perf_server::{Server, number};

#[test]
fn every_scheme_over_every_link() {
    let server = Server::start(&[]);
    for scheme in ["sr:rto", "sr:nack", "ec:mds:8,2", "ec:xor:8,2"] {
        for link in [&[][..], &["--impair", "loss=1%,reorder=2%,hold=500us,duplicate=1%"]] {
            let arguments = [&["--scheme", scheme, "-s", "300000", "-n", "20", "--verify"], link].concat();
            let value = server.measure(&arguments);
            assert_eq!((&value["scheme"], &value["test"]), (&scheme.into(), &"write_bw".into()), "{value}");
            assert_eq!(value["chunk_bytes"].as_u64(), value["mtu_bytes"].as_u64().map(|mtu| 16 * mtu));
            let result = &value["results"][0];
            assert_eq!((&result["bytes"], &result["iterations"]), (&300_000.into(), &20.into()), "{result}");
            assert_eq!((&result["messages_lost"], &result["messages_verified"]), (&0.into(), &20.into()), "{result}");
            assert!(number(result, "bw_average_gbps") > 0.0 && number(result, "round_trip_us") > 0.0, "{result}");
            let packets = 300_000_u64.div_ceil(value["mtu_bytes"].as_u64().expect("an MTU")) * 20;
            let (sent, again) = (number(result, "data_packets_sent"), number(result, "data_packets_repeated"));
            assert_eq!(sent - again, packets as f64, "every packet once, and some again: {result}");
            assert_eq!(number(result, "parity_packets_sent") > 0.0, scheme.starts_with("ec"), "{result}");
            // Of a hundred packets one is lost, of 1500; whatever the scheme does about it, something it does.
            let mended = again + number(result, "chunks_recovered");
            assert!(link.is_empty() || mended > 0.0, "{result}");
        }
    }
}

#[test]
fn small_messages_and_small_packets() {
    let server = Server::start(&[]);
    for arguments in
        [&["-s", "1", "-n", "200"][..], &["-s", "70001", "-n", "50", "-m", "256"], &["-s", "4096", "-D", "1"]]
    {
        let value = server.measure(&[&["--scheme", "sr:nack", "--verify"], arguments].concat());
        let result = &value["results"][0];
        assert!(number(result, "messages_verified") > 0.0, "{result}");
        assert_eq!(result["messages_verified"], result["iterations"], "{result}");
    }
    // And the rate is kept: 20 messages of a megabyte at 1 Gbit/s take 0.16 s.
    let value = server.measure(&["--scheme", "ec:mds:4,1", "-s", "1000000", "-n", "20", "--rate", "1"]);
    assert_eq!(value["rate_limit_bits_per_second"], 1_000_000_000);
    assert!(number(&value["results"][0], "bw_average_gbps") < 1.1, "{value}");
    // Plain WRITEs are measured by the same server as before.
    server.measure(&["write_bw", "-n", "10"]);
}

#[test]
fn the_table_says_what_the_scheme_did() {
    let server = Server::start(&[]);
    let output = server.client(&["--scheme", "ec:mds:8,2", "-s", "1000000", "-n", "3", "--verify"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for words in ["ec:mds:8,2", "SDR over UC", "data packets sent", "parity packets sent", "round trip"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn what_does_not_fit_is_a_usage_error() {
    let server = Server::start(&[]);
    for (arguments, why) in [
        (&["send_bw", "--scheme", "sr:rto"][..], "only write_bw"),
        (&["--scheme", "sr:rto", "-c", "UC"], "-c"),
        (&["--scheme", "sr:rto", "-e"], "-e"),
        (&["--scheme", "sr:sometimes"], "sr:nack"),
        (&["--scheme", "ec:mds:200,100"], "ec:mds"),
    ] {
        let output = server.client(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(why), "{arguments:?}: {text}");
    }
}
