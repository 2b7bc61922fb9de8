//! `everywire serve --iscsi` and `everywire iscsi --device`: iSER between two processes, over UDP and over TCP sockets, and the
//! same logical unit over iSCSI's own TCP.

mod common;

use std::process::Command;

use common::{Scratch, Server, device, ip, run, run_with};
use everywire_testkit::skipped;

const NAME: &str = "iqn.2026-11.example:disk";

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn over_rdma_and_over_tcp() {
    for (wire, at) in [("rocev2", 1), ("iwarp", 4)] {
        let (here, there) = (format!("{wire}:{}", ip(at + 1)), format!("{wire}:{}", ip(at)));
        let (export, tcp) = (format!("{NAME}=ram:16MiB"), ip(at + 2));
        let mut server =
            Server::start_until(&["serve", "--device", &there, "--iscsi", &export, "--tcp", &tcp], "iSER");
        let portal = ip(at);
        // Each kind of portal is shown to those who come by it.
        let found = run(&["iscsi", "discover", "--device", &here, &portal]).expect(0);
        assert_eq!(found.text().lines().next(), Some(&*format!("{portal}:3260,1 {NAME}")));
        let found = run(&["iscsi", "discover", &tcp]).expect(0);
        assert_eq!(found.text().lines().next(), Some(&*format!("{tcp}:3260,1 {NAME}")));
        let image = bytes((3 << 20) + 512);
        let write = ["iscsi", "write", "--device", &here, &portal, "--offset", "1MiB"];
        run_with(&write, image.clone()).expect(0);
        let read = ["--offset", "1MiB", "--length", "3146240"];
        let by_rdma = [&["iscsi", "read", "--device", &here, &portal, NAME][..], &read].concat();
        assert!(run(&by_rdma).expect(0).stdout == image, "{wire}: other bytes by iSER");
        let by_tcp = [&["iscsi", "read", &tcp, NAME][..], &read].concat();
        assert!(run(&by_tcp).expect(0).stdout == image, "{wire}: other bytes by TCP");
        let info = run(&["iscsi", "login", "--device", &here, &portal, "--json"]).expect(0).json();
        assert_eq!((&info["blocks"], &info["block_size"]), (&32768.into(), &512.into()));
        let bench = ["iscsi", "bench", &portal, "--device", &here, "--seconds", "0.3", "--json"];
        let measured = run(&bench).expect(0).json();
        assert!(measured["iops"].as_f64().is_some_and(|iops| iops > 100.0), "{measured}");
        assert_eq!(measured["reconnects"], 0);
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// All four ImmediateData × InitialR2T combinations, on RDMA and on TCP, whichever end decides (RFC 7143 §13.10, §13.11).
#[test]
fn data_asked_for_or_not() {
    let scratch = Scratch::new("iser-unasked");
    let config = scratch.file("target.toml");
    let image = bytes(300_032);
    for (wire, at) in [("rocev2", 13), ("iwarp", 16)] {
        let (here, portal, tcp) = (format!("{wire}:{}", ip(at + 1)), ip(at), ip(at + 2));
        for target in
            ["initial_r2t = false", "initial_r2t = false\nimmediate_data = false", "initial_r2t = true"]
        {
            let text = format!(
                "devices = [\"{wire}:{portal}\"]\n[iscsi]\nportals = [\"{tcp}\"]\n{target}\n\
                 [[iscsi.target]]\nname = \"{NAME}\"\n[[iscsi.target.lun]]\nbackend = \"ram:16MiB\"\n"
            );
            std::fs::write(&config, text).expect("a file");
            let mut server = Server::start_until(&["serve", &config], "iSER");
            for flags in [
                &[][..],
                &["--no-immediate-data"],
                &["--initial-r2t"],
                &["--no-immediate-data", "--initial-r2t"],
            ] {
                for to in [&["--device", &here, &portal][..], &[&tcp]] {
                    let write = [&["iscsi", "write"], to, &[NAME, "--offset", "512"], flags].concat();
                    run_with(&write, image.clone()).expect(0);
                    let read =
                        [&["iscsi", "read"], to, &[NAME, "--offset", "512", "--length", "300032"]].concat();
                    assert!(run(&read).expect(0).stdout == image, "{target}: {to:?} {flags:?}: other bytes");
                }
            }
            server.signal("TERM");
            assert_eq!(server.wait().code(), Some(0));
        }
    }
}

/// Nobody there, and a capture of nothing.
#[test]
fn mistakes_are_told() {
    let (here, nobody) = (format!("rocev2:{}", ip(8)), ip(9));
    let said = run(&["iscsi", "login", "--device", &here, &nobody, NAME]);
    assert!(said.stderr.contains(&nobody), "{}", said.stderr);
    assert_ne!(said.code, Some(0));
    let said = run(&["iscsi", "login", "--capture", "/nowhere", &nobody, NAME]).expect(2);
    assert!(said.stderr.contains("--device"), "{}", said.stderr);
}

/// QEMU's NBD client on a logical unit that is reached by iSER: written, zeroed, trimmed, read, and found there by others.
#[test]
fn attached_as_a_disk() {
    let scratch = Scratch::new("iser-nbd");
    let (socket, export) = (scratch.file("s"), format!("{NAME}=ram:64MiB"));
    let (here, there, other) = (device(10), device(11), device(12));
    let _target = Server::start_until(&["serve", "--device", &there, "--iscsi", &export], "iSER");
    let portal = ip(11);
    let attach = ["iscsi", "attach", "--device", &here, &portal, NAME, "--nbd", &socket];
    let mut attached = Server::start(&attach);
    let uri = format!("nbd+unix:///?socket={socket}");
    let mut judge = Command::new("qemu-io");
    judge.args(["-f", "raw", &uri]);
    for line in [
        "write -P 0x5a 0 4M",
        "write -f -P 0x5b 4M 64k",
        "write -z 1M 1M",
        "discard 2M 1M",
        "flush",
        "read -P 0x5a 0 1M",
        "read -P 0 1M 1M",
        "read -P 0 2M 1M",
        "read -P 0x5a 3M 1M",
        "read -P 0x5b 4M 64k",
    ] {
        judge.args(["-c", line]);
    }
    match judge.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && !said.contains("failed"), "{said}");
            let read = ["iscsi", "read", "--device", &other, &portal, NAME, "--length", "4259840"];
            let there = run(&read).expect(0).stdout;
            assert!(there[..1 << 20].iter().all(|&byte| byte == 0x5a), "the first MiB");
            assert!(there[1 << 20..3 << 20].iter().all(|&byte| byte == 0), "zeroes");
            assert!(there[4 << 20..].iter().all(|&byte| byte == 0x5b), "FUA");
        }
        Err(e) => skipped(format_args!("qemu-io (Debian: qemu-utils): {e}")),
    }
    attached.signal("TERM");
    assert_eq!(attached.wait().code(), Some(0));
}
