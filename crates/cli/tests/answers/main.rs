//! The same commands, the same answers: what libiscsi's `iscsi-test-cu` sends over TCP is written down with its answers, and our
//! own initiators do it again over iSER and over SRP, each on a logical unit of its own that was alike at the start.
//!
//! The judge of the answers over TCP is iscsi-test-cu (`iscsi.rs`); what may differ by protocol is in `neutral`.

#[path = "../common/mod.rs"]
mod common;
mod record;
mod replay;

use std::process::{Command as Process, Stdio};

use common::{Scratch, Server, ip};
use record::{Act, Answer, Command, Recorder, Residual, Step};
use replay::Kind;

const NAME: &str = "iqn.2026-11.example:answers";
/// Most differences that are shown.
const SHOWN: usize = 10;
/// A record with fewer commands is no record of the SCSI tests.
const COMMANDS: usize = 2000;

/// A target with one removable disk, which names itself alike by every protocol.
fn serve(scratch: &Scratch, file: &str, place: &str, target: &str, ready: &'static str) -> Server {
    let config = scratch.file(file);
    let disk = "[[volume]]\nname = \"disk\"\nbackend = \"ram:256MiB\"\nserial = \"0815\"\nremovable = true\n";
    let lun = "backend = \"volume:disk\"\n";
    std::fs::write(&config, format!("{place}\n{disk}{target}{lun}")).expect("a file");
    Server::start_until(&["serve", &config], ready)
}

/// What iscsi-test-cu did with its SCSI tests; `None`, in words, where it is not installed.
fn record(scratch: &Scratch) -> Option<Vec<Step>> {
    let target = format!("[[iscsi.target]]\nname = \"{NAME}\"\n[[iscsi.target.lun]]\n");
    let place = format!("[iscsi]\nportals = [\"{}\"]\nping = 600", ip(1));
    let _server = serve(scratch, "tcp.toml", &place, &target, "listening on");
    let (portal, at) = (format!("{}:3260", ip(1)), format!("{}:3260", ip(2)));
    let recorder = Recorder::start(&at, &portal);
    let log = std::fs::File::create(scratch.file("log")).expect("a file");
    let mut judge = Process::new("iscsi-test-cu");
    judge.args(["--dataloss", "--test=SCSI", &format!("iscsi://{at}/{NAME}/0")]);
    judge.stdin(Stdio::null()).stdout(log.try_clone().expect("a handle")).stderr(log);
    match judge.status() {
        Ok(_) => Some(recorder.steps()),
        Err(e) => {
            everywire_testkit::skipped(format_args!("iscsi-test-cu (Debian: libiscsi-bin): {e}"));
            None
        }
    }
}

/// INQUIRY, and its bit for vital product data (SPC-4 §6.6).
const INQUIRY: u8 = 0x12;
const EVPD: u8 = 1;
const DEVICE_IDENTIFICATION: u8 = 0x83;
/// Version descriptors of standard INQUIRY data: they name the protocol.
const VERSIONS: std::ops::Range<usize> = 58..74;
/// PERSISTENT RESERVE IN with READ FULL STATUS, whose TransportIDs are the protocol's (SPC-4 §6.15.5).
const RESERVE_IN: [u8; 2] = [0x5e, 0x03];

/// The answer without what tells the protocol.
fn neutral(command: &Command, answer: &Answer) -> Answer {
    let mut answer = answer.clone();
    // Data of a command that failed are nobody's.
    if answer.status != 0 {
        answer.data.clear();
    }
    match command.cdb {
        [INQUIRY, EVPD, DEVICE_IDENTIFICATION, ..] => {
            answer.data = of_the_unit(&answer.data);
            answer.residual = Residual::None;
        }
        [INQUIRY, 0, ..] => {
            let end = VERSIONS.end.min(answer.data.len());
            answer.data[VERSIONS.start.min(end)..end].fill(0);
        }
        [a, b, ..] if [a, b & 0x1f] == RESERVE_IN => {
            answer.data.truncate(4);
            answer.residual = Residual::None;
        }
        _ => {}
    }
    answer
}

/// Those designation descriptors that name the logical unit and not its ports (SPC-4 §7.8.6).
fn of_the_unit(page: &[u8]) -> Vec<u8> {
    let mut kept = page[..page.len().min(2)].to_vec();
    let mut rest = page.get(4..).unwrap_or_default();
    while let [_, kind, _, len, ..] = *rest {
        let (one, more) = rest.split_at(rest.len().min(4 + usize::from(len)));
        if kind >> 4 & 3 == 0 {
            kept.extend_from_slice(one);
        }
        rest = more;
    }
    kept
}

/// What differs.
fn differences(answers: &[(Command, Answer)]) -> Vec<String> {
    let differ = answers.iter().enumerate().filter_map(|(number, (command, here))| {
        let there = neutral(command, command.answer.as_ref()?);
        let here = neutral(command, here);
        (here != there).then(|| {
            let Command { cdb, want, .. } = command;
            let brief = |answer: &Answer| {
                let head = &answer.data[..answer.data.len().min(96)];
                let Answer { status, sense, residual, data } = answer;
                format!("{status:#x} {sense:02x?} {residual:?} {} bytes {head:02x?}", data.len())
            };
            format!(
                "{number}: {cdb:02x?}, {want} bytes:\n  TCP:  {}\n  here: {}",
                brief(&there),
                brief(&here)
            )
        })
    });
    differ.collect()
}

#[track_caller]
fn same(answers: &[(Command, Answer)], protocol: &str) {
    let differ = differences(answers);
    let shown = differ[..differ.len().min(SHOWN)].join("\n");
    assert!(
        differ.is_empty(),
        "{} of {} answers by {protocol} differ:\n{shown}",
        differ.len(),
        answers.len()
    );
    println!("{} answers by {protocol} as by TCP", answers.len());
}

#[test]
fn the_same_answers_over_iser_and_srp() {
    let scratch = Scratch::new("answers");
    let Some(steps) = record(&scratch) else { return };
    let commands = steps.iter().filter(|step| matches!(step.act, Act::Command(_))).count();
    assert!(commands > COMMANDS, "iscsi-test-cu sent {commands} commands");

    // Side by side: each mostly waits for its target.
    std::thread::scope(|scope| {
        scope.spawn(|| over_iser(&scratch, &steps));
        over_srp(&scratch, &steps);
    });
}

fn over_iser(scratch: &Scratch, steps: &[Step]) {
    let target = format!("[[iscsi.target]]\nname = \"{NAME}\"\n[[iscsi.target.lun]]\n");
    let place = format!("devices = [\"rocev2:{}\"]", ip(3));
    let _server = serve(scratch, "iser.toml", &place, &target, "iSER");
    let kind = Kind::Iser { target: NAME.to_owned() };
    let to = format!("{}:3260", ip(3)).parse().expect("an address");
    same(&replay::play(steps, &kind, &common::device(4), to), "iSER");
}

fn over_srp(scratch: &Scratch, steps: &[Step]) {
    let target = "[[srp.target]]\nname = \"answers\"\nid_ext = \"1\"\n[[srp.target.lun]]\n";
    let place = format!("devices = [\"rocev2:{}\"]\n[srp]\nioc_guid = \"2\"", ip(5));
    let _server = serve(scratch, "srp.toml", &place, target, "SRP target answers: ");
    let kind = Kind::Srp { target: everywire_srp::PortId::new(1, 2) };
    let to = format!("{}:5555", ip(5)).parse().expect("an address");
    same(&replay::play(steps, &kind, &common::device(6), to), "SRP");
}
