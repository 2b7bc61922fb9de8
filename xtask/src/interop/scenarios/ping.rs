//! `everywire ping` against Linux's rping, both directions and both address families. rping's own `-V` compares
//! every byte of every round; ours does the same and its exit code says so.

use std::time::Duration;

use super::{Case, EVERY_LINK, over_siw};
use crate::interop::bench::Bench;
use crate::interop::wire::Siw;

const LIMIT: Duration = Duration::from_secs(120);
const ROUNDS: &str = "20";

pub fn cases() -> Vec<Case> {
    let client = || Case::new("ping-client", "everywire ping as the client of Linux's rping", client);
    let server = || Case::new("ping-server", "Linux's rping as the client of everywire ping", server);
    let raw_client = || Case::new("ping-raw-client", "ping-client on raw Ethernet", raw_client);
    let raw_server = || Case::new("ping-raw-server", "ping-server on raw Ethernet", raw_server);
    let roce = vec![
        client().in_sample(),
        client().v6().in_sample(),
        server().in_sample(),
        server().v6().in_sample(),
        raw_client().in_sample(),
        raw_client().v6(),
        raw_server(),
        raw_server().v6().in_sample(),
    ];
    let siw = [client(), server()].into_iter().flat_map(|case| over_siw(&case, &EVERY_LINK));
    let asked = [client(), server()].into_iter().flat_map(|case| Siw::ASKED.map(|siw| case.clone().siw(siw)));
    // The device as it comes is what everybody starts with.
    let asked =
        asked.map(|case| if case.name == "siw-offered-ping-client" { case.in_sample() } else { case });
    roce.into_iter().chain(siw).chain(asked).collect()
}

fn client(bench: &mut Bench) -> Result<(), String> {
    let device = bench.device();
    client_on(bench, &device)
}

fn server(bench: &mut Bench) -> Result<(), String> {
    let device = bench.device();
    server_on(bench, &device)
}

fn raw_client(bench: &mut Bench) -> Result<(), String> {
    let device = bench.raw_device();
    client_on(bench, &device)
}

fn raw_server(bench: &mut Bench) -> Result<(), String> {
    let device = bench.raw_device();
    server_on(bench, &device)
}

fn client_on(bench: &mut Bench, device: &str) -> Result<(), String> {
    let address = bench.a_address().to_string();
    let job = bench.a.start(&format!("timeout 100 rping -s -a {address} -C {ROUNDS} -V"))?;
    // A client that comes before the server listens is refused, as Linux's is: try again.
    let mut last = String::new();
    for _ in 0..20 {
        let ping = bench.everywire("ping", &["ping", "--device", device, "--count", ROUNDS, &address])?;
        let (code, output) = ping.end(LIMIT);
        if code == Some(0) {
            let done = bench.a.wait(job, LIMIT)?;
            return if done.code == 0 {
                Ok(())
            } else {
                Err(format!("rping's server: exit {}: {}", done.code, done.output))
            };
        }
        last = output;
        if !["invalid service ID", "refused"].iter().any(|early| last.contains(early)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    Err(format!("everywire ping failed:\n{last}\nrping's server said:\n{}", bench.a.output(&job)))
}

fn server_on(bench: &mut Bench, device: &str) -> Result<(), String> {
    let address = bench.host_address();
    let mut ping = bench.everywire("ping", &["ping", "--device", device, "--count", ROUNDS, "--listen"])?;
    ping.wait_for("listening", LIMIT)?;
    let client = format!("timeout 60 rping -c -a {address} -C {ROUNDS} -V");
    let outcome = bench.a.ok_within(&client, LIMIT);
    let (code, output) = ping.end(if outcome.is_ok() { LIMIT } else { Duration::ZERO });
    outcome.map_err(|why| format!("{why}\neverywire ping said:\n{output}"))?;
    if code == Some(0) { Ok(()) } else { Err(format!("everywire ping: exit {code:?}:\n{output}")) }
}
