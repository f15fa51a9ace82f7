//! Messages and forward error correction in the device do not go together, and every way to ask for both says so.

use longhaul::softnic::UdpPortChoice;
use longhaul::{Connecting, DeviceChoice, Endpoint, HandshakeError, Listener, Meeting, Options, Towards, with_sources};

fn choice() -> DeviceChoice {
    let mut choice: DeviceChoice = "softnic".parse().expect("a device");
    choice.udp.udp_port = UdpPortChoice::Free;
    choice.udp.fec = Some("lowar:32,1".parse().expect("a code"));
    choice
}

fn endpoint(choice: &DeviceChoice) -> Endpoint {
    let local = "127.0.0.1".parse().expect("an address");
    let towards = Towards { local, peer: local, gid_index: None };
    Endpoint::open(&choice.name, towards, choice.udp.clone()).expect("it opens")
}

#[test]
fn messages_are_refused_with_the_reason() {
    let options = Options::default();
    let listener = Listener::bind("127.0.0.1:0", "softnic", &options).expect("it listens");
    let with = endpoint(&choice());
    let refusals = [
        with_sources(&Listener::bind("127.0.0.1:0", choice(), &options).expect_err("a device with it")),
        with_sources(&with.listen("127.0.0.1:0", &options).expect_err("one that is open")),
        with_sources(&longhaul::connect(listener.local_address(), choice(), &options).wait().expect_err("connecting")),
        with_sources(&with.connect(listener.local_address(), &options).wait().expect_err("from one that is open")),
        with_sources(&Connecting::new(&with, &options, &Meeting::default()).err().expect("over another carrier")),
    ];
    for refusal in refusals {
        assert!(refusal.contains("lowar:32,1") && refusal.contains("sent twice"), "{refusal}");
        assert!(refusal.contains("ec:mds:32,8") && refusal.contains("protect_queue_pair"), "{refusal}");
    }
    assert_eq!(listener.refused_count(), 0, "nobody asked the listener");
}

#[test]
fn an_accepting_end_over_another_carrier_refuses_too() {
    let options = Options::default();
    let mut plain = choice();
    plain.udp.fec = None;
    let connecting = Connecting::new(&endpoint(&plain), &options, &Meeting::default()).expect("a hello");
    let with = endpoint(&choice());
    let accepted = longhaul::Accepting::on_hello(&with, &options, &Meeting::default(), false, connecting.hello());
    assert!(matches!(accepted.err(), Some(HandshakeError::Fec(_))));
}
