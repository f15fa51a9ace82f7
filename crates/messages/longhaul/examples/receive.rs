//! Receives messages and prints what they say. Start it before `send`:
//! `cargo run -p longhaul --example receive -- [ADDRESS [DEVICE [SCHEME]]]`

use std::error::Error;

use longhaul::{Listener, Options};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:7471".to_owned());
    let device = arguments.next().unwrap_or("softnic".to_owned());
    let scheme = arguments.next().unwrap_or("sr:nack".to_owned());

    let listener = Listener::bind(&address, &device, &Options::with_scheme(&scheme)?)?;
    eprintln!("listening at {}; from other hosts, connect to {}", listener.local_address(), listener.handle());
    let connection = listener.accept().wait()?;
    for message in connection.incoming(1 << 20, 4) {
        println!("received: {}", String::from_utf8_lossy(message?.bytes()));
    }
    Ok(())
}
