//! Prints what raw UDP does on this machine: `cargo run --release -p everywire-net --example baseline`.

use std::time::Duration;

use everywire_net::baseline::{BaselineOptions, Client, with_thread};

fn main() -> std::io::Result<()> {
    let (a, b) = ([127, 0, 0, 91].into(), [127, 0, 0, 92].into());
    let base = BaselineOptions { duration: Duration::from_secs(1), ..BaselineOptions::default() };
    for window in [32, 64, 128, 256] {
        let options = BaselineOptions { window, ..base };
        println!("WRITE 64 KiB, window {window}: {:?}", with_thread(a, b, &options, Client::bandwidth)?);
    }
    let options = BaselineOptions { size: 64, ..base };
    println!("ping-pong 64 B: {:?}", with_thread(a, b, &options, Client::ping_pong)?);
    for depth in [1, 32] {
        let options = BaselineOptions { size: 4096, depth, ..base };
        println!("READ 4 KiB, depth {depth}: {:?}", with_thread(a, b, &options, Client::read_loop)?);
    }
    Ok(())
}
