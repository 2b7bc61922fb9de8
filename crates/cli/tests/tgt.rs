//! `everywire iscsi` on tgt, another target of other people's (Debian's tgt), over TCP: discovery, CHAP both ways, every way that
//! data goes, digests. Where it is installed.

mod common;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Outcome, Scratch, ip, run, run_with};
use everywire_testkit::skipped;

const NAME: &str = "iqn.2026-11.example:tgt";
/// Its LUN 0 is a controller.
const LUN: [&str; 2] = ["--lun", "1"];
const PATIENCE: Duration = Duration::from_secs(60);

/// tgtd with one target on a file, in a folder of its own.
struct Tgt {
    daemon: Child,
    scratch: Scratch,
    portal: String,
}

impl Tgt {
    /// `None`, in words, where it is not installed.
    fn start(at: u8) -> Option<Tgt> {
        let (scratch, portal) = (Scratch::new("tgt"), ip(at));
        let mut command = Command::new("tgtd");
        command.args(["-f", "-C", "1", "--iscsi", &format!("portal={portal}:3260")]);
        command.env("TGT_IPC_SOCKET", scratch.file("s")).stdin(Stdio::null()).stdout(Stdio::null());
        let daemon = match command.stderr(Stdio::null()).spawn() {
            Ok(daemon) => daemon,
            Err(e) => {
                skipped(format_args!("tgtd (Debian: tgt): {e}"));
                return None;
            }
        };
        let tgt = Tgt { daemon, scratch, portal };
        let deadline = Instant::now() + PATIENCE;
        while !tgt.admin("--op show --mode target") {
            assert!(Instant::now() < deadline, "tgtd does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(tgt)
    }

    fn admin(&self, args: &str) -> bool {
        let mut command = Command::new("tgtadm");
        command.args(["-C", "1", "--lld", "iscsi"]).args(args.split(' '));
        let done = command.env("TGT_IPC_SOCKET", self.scratch.file("s")).output().expect("tgtadm starts");
        done.status.success()
    }

    #[track_caller]
    fn set(&self, args: &str) {
        assert!(self.admin(args), "tgtadm {args}");
    }

    /// A file with that secret.
    fn secret(&self, name: &str) -> String {
        let file = self.scratch.file(name);
        std::fs::write(&file, format!("{name}-secret-0123\n")).expect("a file");
        file
    }

    /// An action on the logical unit.
    fn run(&self, what: &str, more: &[&str], input: Vec<u8>) -> Outcome {
        run_with(&[&["iscsi", what, &self.portal, NAME], &LUN[..], more].concat(), input)
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn our_initiator_on_tgt() {
    let Some(tgt) = Tgt::start(1) else { return };
    let image = tgt.scratch.file("image");
    let file = std::fs::File::create(&image).expect("a file");
    file.set_len(32 << 20).expect("room");
    tgt.set(&format!("--op new --mode target --tid 1 -T {NAME}"));
    tgt.set(&format!("--op new --mode logicalunit --tid 1 --lun 1 -b {image}"));
    tgt.set("--op bind --mode target --tid 1 -I ALL");
    for digest in ["HeaderDigest", "DataDigest"] {
        tgt.set(&format!("--op update --mode target --tid 1 -n {digest} -v CRC32C,None"));
    }
    let found = run(&["iscsi", "discover", &tgt.portal]).expect(0);
    assert_eq!(found.text().trim(), format!("{}:3260,1 {NAME}", tgt.portal));
    tgt.run("login", &[], Vec::new()).expect(0);
    with_chap(&tgt);
    // Bytes by every way that data goes; the file beneath it is what tgt made of them.
    let bytes: Vec<u8> =
        (0..(3u32 << 20) + 512).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let secret = tgt.secret("host");
    let ways: [&[&str]; 5] = [
        &[],
        &["--no-immediate-data"],
        &["--initial-r2t"],
        &["--no-immediate-data", "--initial-r2t"],
        &["--header-digest", "--data-digest"],
    ];
    for (i, way) in ways.into_iter().enumerate() {
        let at = (i << 22) + 512;
        let offset = at.to_string();
        let more = [&["--chap", "host", "--chap-secret", &secret, "--offset", &offset], way].concat();
        tgt.run("write", &more, bytes.clone()).expect(0);
        let there = std::fs::read(&image).expect("the image");
        assert!(there[at..at + bytes.len()] == bytes, "{way:?}: tgt wrote other bytes");
        let length = bytes.len().to_string();
        let read = tgt.run("read", &[&more[..], &["--length", &length]].concat(), Vec::new()).expect(0);
        assert!(read.stdout == bytes, "{way:?}: other bytes came back");
    }
}

/// From here on tgt asks for CHAP, and can prove itself.
fn with_chap(tgt: &Tgt) {
    tgt.set("--op new --mode account --user host --password host-secret-0123");
    tgt.set("--op bind --mode account --tid 1 --user host");
    tgt.set("--op new --mode account --user disk --password disk-secret-0123");
    tgt.set("--op bind --mode account --tid 1 --user disk --outgoing");
    let (host, disk, wrong) = (tgt.secret("host"), tgt.secret("disk"), tgt.secret("wrong"));
    let login = |own: &[&str], theirs: &[&str]| tgt.run("login", &[own, theirs].concat(), Vec::new());
    let own = ["--chap", "host", "--chap-secret", &host];
    let said = login(&[], &[]).expect(3).stderr;
    assert!(said.contains("authentication failure (0201h)"), "{said}");
    let said = login(&["--chap", "host", "--chap-secret", &wrong], &[]).expect(3).stderr;
    assert!(said.contains("authentication failure (0201h)"), "{said}");
    login(&own, &[]).expect(0);
    login(&own, &["--chap-target", "disk", "--chap-target-secret", &disk]).expect(0);
    let said = login(&own, &["--chap-target", "disk", "--chap-target-secret", &wrong]).expect(3).stderr;
    assert!(said.contains("the CHAP response of \"disk\" is wrong"), "{said}");
}
