//! Clients that are started with their server: `serve … &` and a client in the next line of a script. They wait for somebody to
//! listen, about a second, and say so if nobody comes.

mod common;

use std::time::{Duration, Instant};

use common::{Server, ip, run};

/// What a client of each kind says, and its server.
fn pairs(wire: &str, own: &str, server: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (from, at) = (format!("--device {wire}:{own}"), format!("--device {wire}:{server}"));
    let iqn = "iqn.2026-11.example:disk";
    let (id, ids) = ("1:2", "--srp-id-ext 1 --srp-ioc-guid 2");
    vec![
        (
            words(&format!("iscsi login {from} {server} {iqn}")),
            words(&format!("serve {at} --iscsi {iqn}=ram:1MiB")),
        ),
        (
            words(&format!("srp info {from} {server} {id}")),
            words(&format!("serve {at} --srp disk=ram:1MiB {ids}")),
        ),
        (
            words(&format!("nvme discover {from} {server}")),
            words(&format!("serve {at} --nvme nqn.2026-11.example:disk=ram:1MiB")),
        ),
        (
            words(&format!("nvme read {from} {server} nqn.2026-11.example:disk --length 4096")),
            words(&format!("serve {at} --nvme nqn.2026-11.example:disk=ram:1MiB")),
        ),
        (words(&format!("ping {from} {server} -C 1")), words(&format!("ping --listen --persistent {at}"))),
        (words(&format!("perf write {from} {server} -D 0.1")), words(&format!("perf --listen {at}"))),
        (
            words(&format!("perf send --transport ud {from} {server} -D 0.1")),
            words(&format!("perf --listen {at}")),
        ),
    ]
}

fn texts(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn a_server_that_comes_a_moment_later_is_found() {
    for wire in ["rocev2", "iwarp"] {
        for (client, server) in pairs(wire, &ip(2), &ip(1)) {
            if wire == "iwarp" && client.contains(&"ud".to_owned()) {
                continue; // iWARP has no datagrams
            }
            let early = client.clone();
            let client = std::thread::spawn(move || run(&texts(&early)));
            std::thread::sleep(Duration::from_millis(250));
            let _server = Server::start(&texts(&server));
            client.join().expect("the client").expect(0);
        }
    }
}

/// iSCSI over TCP: a port that nobody has is refused by the kernel.
#[test]
fn a_portal_of_tcp_that_comes_a_moment_later_is_found() {
    let portal = ip(5);
    let discover = move || run(&["iscsi", "discover", &portal]);
    let early = std::thread::spawn(discover.clone());
    std::thread::sleep(Duration::from_millis(250));
    let _server = Server::start(&["serve", "--iscsi", "iqn.2026-11.example:disk=ram:1MiB", "--tcp", &ip(5)]);
    let said = early.join().expect("the client").expect(0);
    assert!(said.text().contains("iqn.2026-11.example:disk"), "{}", said.text());
    let start = Instant::now();
    let outcome = run(&["iscsi", "discover", &ip(6)]).expect(3);
    assert!(outcome.stderr.contains("it was tried for 1."), "{}", outcome.stderr);
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_server_that_never_comes_is_told_of_after_a_second() {
    for wire in ["rocev2", "iwarp"] {
        for (client, _) in pairs(wire, &ip(4), &ip(3)).into_iter().take(6) {
            let start = Instant::now();
            let outcome = run(&texts(&client)).expect(3);
            assert!(outcome.stderr.contains("it was tried for 1."), "{client:?}: {}", outcome.stderr);
            assert!(start.elapsed() >= Duration::from_secs(1), "{client:?}");
            // Refusals are answers: nobody is told that an answer is waited for.
            assert!(!outcome.stderr.contains("waiting"), "{client:?}: {}", outcome.stderr);
        }
    }
}
