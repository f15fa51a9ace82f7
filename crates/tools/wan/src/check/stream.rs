//! One TCP connection, as fast as it can.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use longhaul_link::namespaces::{Namespaces, Side};

use super::report::CheckError;

const BUFFER_BYTES: usize = 256 << 10;
/// Nobody waits longer for the other end.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn bits_per_second(namespaces: &Namespaces, duration: Duration) -> Result<f64, CheckError> {
    let failed = |what| move |error: io::Error| CheckError::End(what, error);
    let right = Side::Right.address();
    let listener = namespaces.within(Side::Right, || TcpListener::bind((right, 0)))?.map_err(failed("listen"))?;
    let address = listener.local_addr().map_err(failed("listen"))?;
    let stream = namespaces.within(Side::Left, || TcpStream::connect_timeout(&address, PATIENCE))?;
    let mut stream = stream.map_err(failed("connect"))?;
    let (accepted, _) = listener.accept().map_err(failed("accept"))?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed("send"))?;
    accepted.set_read_timeout(Some(PATIENCE)).map_err(failed("receive"))?;
    let receiver = std::thread::spawn(move || receive(accepted));
    let (buffer, begun) = (vec![0; BUFFER_BYTES], Instant::now());
    while begun.elapsed() < duration {
        stream.write_all(&buffer).map_err(failed("send"))?;
    }
    drop(stream);
    let received = receiver.join().map_err(|_| CheckError::Nothing)?.map_err(failed("receive"))?;
    Ok(8.0 * received as f64 / begun.elapsed().as_secs_f64())
}

fn receive(mut stream: TcpStream) -> io::Result<u64> {
    let (mut buffer, mut received) = (vec![0; BUFFER_BYTES], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(received),
            count => received += count as u64,
        }
    }
}
