//! Sends messages to where `receive` listens:
//! `cargo run -p longhaul --example send -- [ADDRESS [DEVICE [SCHEME]]]`

use std::error::Error;

use longhaul::{Options, connect};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:7471".to_owned());
    let device = arguments.next().unwrap_or("softnic".to_owned());
    let scheme = arguments.next().unwrap_or("sr:nack".to_owned());

    let connection = connect(&address, &device, &Options::with_scheme(&scheme)?).wait()?;
    for text in ["hello", "this was sent in packets", "and arrived in order"] {
        let report = connection.write(text).wait()?;
        println!("sent {} bytes in {:?}", report.message_bytes, report.duration);
    }
    Ok(())
}
