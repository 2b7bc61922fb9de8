//! `everywire fabric`: a fabric that is just starting, ends under its programs, or comes back.

mod common;

use std::time::Duration;

use common::{Server, run};

fn ring(name: &str) -> (String, [String; 5]) {
    let name = format!("{name}-{}", std::process::id());
    let topology = format!("{}/../../examples/ring.toml", env!("CARGO_MANIFEST_DIR"));
    let args = ["fabric", "run", &topology, "--name", &name].map(str::to_owned);
    (name, args)
}

fn start(args: &[String; 5]) -> Server {
    Server::start_until(&args.each_ref().map(String::as_str), "ready")
}

/// `everywire fabric run X & everywire fabric show X`: the second may be first.
#[test]
fn whoever_asks_for_a_fabric_that_starts_waits_for_it() {
    let (name, args) = ring("starting");
    let starter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        start(&args)
    });
    assert!(run(&["fabric", "show", &name]).expect(0).text().contains("h12"));
    run(&["fabric", "link", "down", &name, "s1/1"]).expect(0);
    drop(starter.join().expect("a fabric"));
}
