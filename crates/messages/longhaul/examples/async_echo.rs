//! Both ends in one asynchronous program, on tokio; any other executor does as well.
//! `cargo run -p longhaul --example async_echo`

use std::error::Error;

use longhaul::{Listener, Options, connect};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::default();
    let listener = Listener::bind("127.0.0.1:0", "softnic", &options)?;
    let connecting = connect(listener.local_address(), "softnic", &options);
    let accepted = listener.accept().await?;
    let connection = connecting.await?;

    tokio::spawn(async move {
        while let Ok(message) = accepted.receive(1 << 20).await {
            if accepted.write(message.bytes()).await.is_err() {
                break;
            }
        }
    });

    for text in ["one", "two", "three"] {
        // Both are in progress; either may finish first.
        let (echoed, written) = tokio::join!(connection.receive(1 << 20), connection.write(text));
        written?;
        println!("echoed: {}", String::from_utf8_lossy(echoed?.bytes()));
    }
    Ok(())
}
