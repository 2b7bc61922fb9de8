//! What must not be harmed by a mistake: files that a command was not meant to write, and users who wait for an answer.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Outcome, Scratch, Server, captures, device, ip, program, run, run_with};

const NQN: &str = "nqn.2026-11.example:disk";

#[test]
fn a_file_is_served_once() {
    let scratch = Scratch::new("once");
    let (disk, link) = (scratch.file("disk"), scratch.file("link"));
    let export = format!("{NQN}=file:{disk},size=1MiB");
    let server = Server::start(&["serve", "--device", &device(1), "--nvme", &export]);
    std::fs::hard_link(&disk, &link).unwrap();
    for name in [&disk, &link] {
        let outcome =
            run(&["serve", "--device", &device(2), "--nvme", &format!("{NQN}=file:{name}")]).expect(1);
        for word in [name.as_str(), "a file has one writer", &server.id().to_string()] {
            assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr);
        }
    }
    // Twice in one configuration is wrong before anything is opened, also by another name.
    let again = format!("{NQN}=file:{link}");
    let outcome = run(&["serve", "--device", &device(2), "--nvme", &export, "--nvme", &again]).expect(2);
    assert!(outcome.stderr.contains("are one file"), "{}", outcome.stderr);
}

#[test]
fn a_capture_overwrites_captures_only() {
    let scratch = Scratch::new("capture");
    let (letter, disk) = (scratch.file("letter"), scratch.file("disk"));
    std::fs::write(&letter, b"dear reader").unwrap();
    std::fs::write(&disk, b"").unwrap();
    let outcome = run(&["ping", &ip(3), "--device", &device(4), "--capture", &letter]).expect(2);
    for word in [&letter, "no pcap or pcapng capture"] {
        assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr);
    }
    assert_eq!(std::fs::read(&letter).unwrap(), b"dear reader");
    let export = format!("{NQN}=file:{disk},size=1MiB");
    let outcome = run(&["serve", "--device", &device(4), "--nvme", &export, "--capture", &disk]).expect(2);
    assert!(outcome.stderr.contains("a capture would overwrite"), "{}", outcome.stderr);
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 0);
}

fn limited(descriptors: u32, args: &str) -> Outcome {
    let exe = env!("CARGO_BIN_EXE_everywire");
    let line = format!("ulimit -n {descriptors}; exec '{exe}' {args}");
    // `timeout` of coreutils ends what hangs, with 124.
    let done = Command::new("timeout").args(["30", "sh", "-c", &line]).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    Outcome { code: done.status.code(), stdout: done.stdout, stderr }
}

#[test]
fn out_of_descriptors_is_an_error_that_names_the_limit() {
    let serve = format!("serve --device {} --nvme {NQN}=ram:1MiB", device(5));
    let discover = format!("nvme discover {} --device {}", ip(7), device(6));
    let demo = "demo --seconds 0.1".to_owned();
    for (args, from, to) in [(&serve, 8, 24), (&discover, 14, 22), (&demo, 17, 21)] {
        for descriptors in from..=to {
            let outcome = limited(descriptors, args);
            assert_eq!(outcome.code, Some(1), "{args}, {descriptors}: {}", outcome.stderr);
            let limit = format!("only {descriptors} file descriptors");
            let named = outcome.stderr.contains(&limit) && outcome.stderr.contains("ulimit -n");
            assert!(named, "{args}: {}", outcome.stderr);
            assert!(!outcome.stderr.contains("panicked"), "{args}: {}", outcome.stderr);
        }
    }
}

#[test]
fn decode_says_in_words_what_is_wrong_and_reads_pipes() {
    let scratch = Scratch::new("words");
    let damaged = scratch.file("ng");
    std::fs::write(&damaged, [&[0x0a, 0x0d, 0x0d, 0x0a, 0xff][..], &[0xa5; 400]].concat()).unwrap();
    for (file, word) in [("/", "it is a directory"), (&*damaged, &*damaged)] {
        let outcome = run(&["decode", file]).expect(1);
        assert!(outcome.stderr.contains(word), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("Error"), "{}", outcome.stderr);
    }
    let path = captures().join("rping.pcap");
    let whole = run(&["decode", path.to_str().unwrap()]).expect(0);
    let piped = run_with(&["decode", "-"], std::fs::read(&path).unwrap()).expect(0);
    assert_eq!(piped.text(), whole.text());
}

#[test]
fn a_configuration_ends() {
    let outcome = run(&["check", "/dev/zero"]).expect(2);
    assert!(outcome.stderr.contains("1 MiB"), "{}", outcome.stderr);
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/target.toml");
    let said = run(&["check", sample.to_str().unwrap()]).expect(0).text();
    assert!(said.contains("nqn.2026-01.org.example:disk") && said.contains("ram:256MiB"), "{said}");
    let topology = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ring.toml");
    let outcome = run(&["check", topology.to_str().unwrap()]).expect(2);
    assert!(outcome.stderr.contains("is a fabric's topology (`everywire fabric run"), "{}", outcome.stderr);
}

#[test]
fn ping_ends_as_it_is_told() {
    run(&["ping", &ip(9), "--count", "0"]).expect(2);
    let wrong = run(&["ping", "::1", "--device", &device(9)]).expect(2);
    assert!(wrong.stderr.contains("IPv4") && wrong.stderr.contains("IPv6"), "{}", wrong.stderr);
    let mut server = Server::start(&["ping", "--listen", "--persistent", "--device", &device(10)]);
    run(&["ping", &ip(10), "--device", &device(11), "-C", "2"]).expect(0);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_devices_guid_is_its_own_and_stays() {
    let guid = |n: u8| {
        let shown = program(&["devices", "--json", "--device", &device(n)]).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown["node_guid"].as_str().unwrap().to_owned()
    };
    assert_eq!(guid(12), guid(12));
    assert_ne!(guid(12), guid(13));
}
