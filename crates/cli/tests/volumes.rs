//! One volume over NVMe, iSCSI, iSER and SRP at once: the same bytes, and a reservation that holds for all. Who sees what of a target.

mod common;

use std::net::SocketAddr;

use common::{Scratch, Server, ip, run, run_with};
use everywire_iscsi::initiator::{Initiator, Options, Transfer};
use everywire_iscsi::rdma::RdmaBinding;
use everywire_net::{Host, OpenOptions, TokioRt};

const NQN: &str = "nqn.2026-11.example:disk";
const IQN: &str = "iqn.2026-11.example:disk";
const SRP: &str = "1:2";

fn bytes(seed: u32) -> Vec<u8> {
    (0..65536u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 23) as u8).collect()
}

/// A volume at `there`, by every protocol.
fn serve(there: &str, tcp: &str) -> Server {
    let (nvme, iscsi) = (format!("{NQN}=volume:disk"), format!("{IQN}=volume:disk"));
    let args = ["serve", "--device", there, "--volume", "disk=ram:16MiB", "--nvme", &nvme, "--iscsi", &iscsi];
    let more = ["--tcp", tcp, "--srp", "disk=volume:disk", "--srp-id-ext", "1", "--srp-ioc-guid", "2"];
    let server = Server::start_until(&[&args[..], &more].concat(), "serving disk");
    server.says(&["serving", IQN]);
    server
}

#[test]
fn every_protocol_sees_the_same_bytes() {
    let (here, at, tcp) = (format!("rocev2:{}", ip(2)), ip(1), ip(3));
    let mut server = serve(&format!("rocev2:{at}"), &tcp);
    let ways: [&[&str]; 4] = [
        &["nvme", "@", "--device", &here, &at, NQN],
        &["iscsi", "@", "--device", &here, &at, IQN],
        &["iscsi", "@", &tcp, IQN],
        &["srp", "@", "--device", &here, &at, SRP],
    ];
    for (at, way) in ways.iter().enumerate() {
        let (image, offset) = (bytes(at as u32), (at << 20).to_string());
        let words = |action: &str, more: &[&str]| -> Vec<String> {
            let named = way.iter().map(|word| if *word == "@" { action } else { word });
            named.chain(more.iter().copied()).map(str::to_owned).collect()
        };
        let write = words("write", &["--offset", &offset]);
        run_with(&write.iter().map(String::as_str).collect::<Vec<_>>(), image.clone()).expect(0);
        for other in ways {
            let mut read: Vec<&str> =
                other.iter().map(|word| if *word == "@" { "read" } else { word }).collect();
            read.extend(["--offset", &offset, "--length", "65536"]);
            assert!(run(&read).expect(0).stdout == image, "{write:?}, then {read:?}: other bytes");
        }
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// SPC-4 §5.13: Write Exclusive of an iSER initiator keeps NVMe's and SRP's writes out, and lets them read.
#[test]
fn a_reservation_holds_for_every_protocol() {
    let (here, at) = (format!("rocev2:{}", ip(5)), ip(4));
    let _server = serve(&format!("rocev2:{at}"), &ip(6));
    let host = Host::open(&format!("rocev2:{}", ip(7)), &OpenOptions::default()).expect("a device");
    let runtime = TokioRt::new().expect("a runtime");
    host.run(&runtime).expect("a driver");
    let rt = runtime.handle();
    let address: SocketAddr = format!("{at}:3260").parse().expect("an address");
    let session = runtime.block_on(async {
        let binding = RdmaBinding::new(host.device(), None).expect("memory");
        let options = Options::new("iqn.2026-11.example:holder".parse().expect("a name"));
        let target = IQN.parse().expect("a name");
        Initiator::connect_rdma(&rt, binding, address, &target, options).await.expect("logs in")
    });
    // PERSISTENT RESERVE OUT: service action, type; reservation key, service action key.
    let reserve = |action: u8, kind: u8, key: u8, new: u8| {
        let mut list = vec![0; 24];
        (list[7], list[15]) = (key, new);
        let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        let done = session.execute(0, &cdb, Transfer::Out(list.into()));
        assert_eq!(runtime.block_on(done).expect("an answer").status, 0, "service action {action}");
    };
    let ready = [0; 6];
    runtime.block_on(session.execute(0, &ready, Transfer::None)).expect("its unit attention");
    reserve(0, 0, 0, 7);
    reserve(1, 1, 7, 0);
    let nvme = |action: &'static str| ["nvme", action, "--device", &here, &at, NQN];
    let srp = |action: &'static str| ["srp", action, "--device", &here, &at, SRP];
    let said = run_with(&nvme("write"), bytes(1)).expect(3);
    assert!(said.stderr.contains("Reservation Conflict"), "{}", said.stderr);
    let said = run_with(&srp("write"), bytes(1)).expect(3);
    assert!(said.stderr.to_lowercase().contains("reservation conflict"), "{}", said.stderr);
    for way in [nvme("read"), srp("read")] {
        let read = [&way[..], &["--length", "65536"]].concat();
        assert!(run(&read).expect(0).stdout.iter().all(|&byte| byte == 0), "nothing was written");
    }
    reserve(2, 1, 7, 0);
    run_with(&nvme("write"), bytes(2)).expect(0);
    runtime.block_on(session.logout());
}

/// IS-01, SR-08: each initiator sees its own map, and only those that are named.
#[test]
fn who_sees_what_is_configured() {
    let scratch = Scratch::new("access");
    let (config, secret, other) = (scratch.file("t.toml"), scratch.file("secret"), scratch.file("other"));
    std::fs::write(&secret, "0123456789abcdef\n").expect("a file");
    std::fs::write(&other, "fedcba9876543210\n").expect("a file");
    let (at, tcp) = (ip(10), ip(11));
    let luns = |protocol: &str| {
        let lun = |size: &str| format!("[[{protocol}.target.lun]]\nbackend = \"ram:{size}\"\n");
        lun("16MiB") + &lun("8MiB")
    };
    let text = format!(
        "devices = [\"rocev2:{at}\"]\n[iscsi]\nportals = [\"{tcp}\"]\n\
         [[iscsi.target]]\nname = \"{IQN}\"\nchap = [{{ name = \"user\", secret_file = \"{secret}\" }}]\n\
         chap_target = {{ name = \"disk\", secret_file = \"{other}\" }}\n\
         [[iscsi.target.access]]\ninitiators = [\"iqn.2026-11.example:a\"]\nluns = {{ 0 = 1 }}\n\
         [[iscsi.target.access]]\ninitiators = [\"iqn.2026-11.example:b\"]\naddresses = [\"127.0.0.0/8\"]\n\
         [[iscsi.target.access]]\ndeny = true\n{}\
         [srp]\nioc_guid = \"2\"\n[[srp.target]]\nname = \"disk\"\nid_ext = \"1\"\n\
         [[srp.target.access]]\ninitiators = [\"0:a\"]\nluns = {{ 0 = 1, 5 = 0 }}\n\
         [[srp.target.access]]\ninitiators = [\"0:b\"]\n{}",
        luns("iscsi"),
        luns("srp")
    );
    std::fs::write(&config, text).expect("a file");
    let checked = run(&["check", &config]).expect(0).text();
    assert!(checked.contains("with CHAP") && checked.contains("LUN 1: ram:8MiB"), "{checked}");
    let _server = Server::start_until(&["serve", &config], "SRP target disk: ");
    let chap = ["--chap", "user", "--chap-secret", &secret, "--json"];
    let mutual = ["--chap-target", "disk", "--chap-target-secret", &other];
    let iscsi = |name: &str, more: &[&str]| {
        let name = format!("iqn.2026-11.example:{name}");
        run(&[&["iscsi", "login", &tcp, IQN, "--name", &name][..], more].concat())
    };
    assert_eq!(iscsi("a", &chap).expect(0).json()["blocks"], 16384);
    assert_eq!(iscsi("b", &[&chap[..], &mutual].concat()).expect(0).json()["blocks"], 32768);
    assert!(iscsi("a", &[&chap[..], &["--lun", "1"]].concat()).code != Some(0), "it has no LUN 1");
    let refused = iscsi("c", &chap).expect(3);
    assert!(refused.stderr.contains("authoriz") || refused.stderr.contains("Authoriz"), "{}", refused.stderr);
    iscsi("a", &[]).expect(3);
    iscsi("a", &["--chap", "user", "--chap-secret", &other]).expect(3);
    let found = run(&["iscsi", "discover", &tcp, "--name", "iqn.2026-11.example:c"]).expect(0);
    assert!(!found.text().contains(IQN), "{}", found.text());
    let here = format!("rocev2:{}", ip(12));
    let srp = |initiator: &str, lun: &str| {
        run(&["srp", "info", "--device", &here, &at, SRP, "--initiator", initiator, "--lun", lun, "--json"])
    };
    assert_eq!(srp("0:a", "0").expect(0).json()["blocks"], 16384);
    assert_eq!(srp("0:a", "5").expect(0).json()["blocks"], 32768);
    assert_eq!(srp("0:b", "0").expect(0).json()["blocks"], 32768);
    let refused = srp("0:c", "0").expect(3);
    assert!(refused.stderr.contains("0x00010003"), "{}", refused.stderr);
}

/// RFC 5044 §7.1: on a port that iSER over iWARP and iSCSI over TCP share, the first bytes of a connection decide.
#[test]
fn iser_and_tcp_share_a_port() {
    let (there, here) = (ip(20), format!("iwarp:{}", ip(21)));
    let (device, export) = (format!("iwarp:{there}"), format!("{IQN}=ram:16MiB"));
    let args = ["serve", "--device", &device, "--iscsi", &export, "--tcp", &there];
    let _server = Server::start_until(&args, "iSER");
    run_with(&["iscsi", "write", "--device", &here, &there], bytes(1)).expect(0);
    assert!(run(&["iscsi", "read", &there, "--length", "65536"]).expect(0).stdout == bytes(1), "other bytes");
    run_with(&["iscsi", "write", &there], bytes(2)).expect(0);
    let read = ["iscsi", "read", "--device", &here, &there, "--length", "65536"];
    assert!(run(&read).expect(0).stdout == bytes(2), "other bytes");
}
