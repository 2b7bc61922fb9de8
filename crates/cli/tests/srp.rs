//! `everywire serve --srp` and `everywire srp`: SRP between two processes, over UDP and over TCP sockets, with one channel and more,
//! with data in every form, and what is said of a login that is refused.

mod common;

use std::process::Command;

use common::{Scratch, Server, device, ip, run, run_with};
use everywire_testkit::skipped;

const ID: &str = "0002c90300000001:0002c90300000002";
const EXT: &str = "0002c90300000001";
const GUID: &str = "0002c90300000002";

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn serve(there: &str) -> Server {
    let ids = ["--srp-id-ext", EXT, "--srp-ioc-guid", GUID];
    let args = [&["serve", "--device", there, "--srp", "disk=ram:16MiB"][..], &ids].concat();
    Server::start_until(&args, "SRP target disk: ")
}

#[test]
fn every_form_of_data_over_both_kinds_of_sockets() {
    for (wire, at) in [("rocev2", 1), ("iwarp", 3)] {
        let (here, there, address) = (format!("{wire}:{}", ip(at + 1)), format!("{wire}:{}", ip(at)), ip(at));
        let mut server = serve(&there);
        // In the words that Linux's ib_srp takes.
        server.says(&["SRP target disk: ", &format!("id_ext={EXT},ioc_guid={GUID},dest={address}:5555")]);
        let image = bytes((1 << 20) + 512);
        let forms: [&[&str]; 4] = [
            &[],
            &["--immediate", "0"],
            &["--segment", "4096", "--descriptors", "255"],
            &["--channels", "3", "--segment", "4096", "--descriptors", "12"],
        ];
        for (offset, form) in ["0", "2MiB", "4MiB", "6MiB"].into_iter().zip(forms) {
            let to = ["srp", "write", "--device", &here, &address, ID, "--offset", offset];
            run_with(&[&to, form].concat(), image.clone()).expect(0);
            let from = ["srp", "read", "--device", &here, &address, ID, "--offset", offset];
            let read = [&from, &["--length", "1049088"][..], form].concat();
            assert!(run(&read).expect(0).stdout == image, "{wire}: other bytes with {form:?}");
        }
        let info = run(&["srp", "info", "--device", &here, &address, ID, "--json"]).expect(0).json();
        assert_eq!((&info["blocks"], &info["channels"]), (&32768.into(), &1.into()));
        let bench = ["srp", "bench", "--device", &here, &address, ID, "--seconds", "0.3", "--json"];
        let measured = run(&bench).expect(0).json();
        assert!(measured["iops"].as_f64().is_some_and(|iops| iops > 100.0), "{measured}");
        assert_eq!(measured["reconnects"], 0);
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// SR-02: who is refused hears why, on both ends.
#[test]
fn a_refusal_has_words() {
    let server = serve(&device(6));
    let said = run(&["srp", "info", "--device", &device(7), &ip(6), &format!("1:{GUID}")]).expect(3);
    assert!(said.stderr.contains("0x00010003"), "{}", said.stderr);
    server.says(&["0x00010003"]);
}

/// QEMU's NBD client on a logical unit that is reached by SRP.
#[test]
fn attached_as_a_disk() {
    let scratch = Scratch::new("srp-nbd");
    let socket = scratch.file("s");
    let _target = serve(&device(10));
    let attach = ["srp", "attach", "--device", &device(11), &ip(10), ID, "--nbd", &socket];
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
            let read = ["srp", "read", "--device", &device(12), &ip(10), ID, "--length", "4259840"];
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
