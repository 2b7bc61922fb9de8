//! `everywire iscsi` on Linux's own target, LIO, over TCP and over iSER (isert): discovery and login with CHAP, one way and mutual,
//! wrong secrets; bytes checked in the guest; and that target as a disk of the guest, with files, fio and a target that goes away.

use std::path::PathBuf;
use std::time::Duration;

use super::{Case, ours};
use crate::interop::bench::Bench;
use crate::interop::lab::Background;
use crate::interop::wire::Wire;

const IQN: &str = "iqn.2026-01.lab:disk";
/// Initiator names that lio-up.sh knows: one proves itself, of the other the target proves itself too.
const ONE: &str = "iqn.2026-01.lab:one";
const BOTH: &str = "iqn.2026-01.lab:both";
const LIMIT: Duration = Duration::from_secs(300);
/// MiB that fio works on.
const COMPARED: u32 = 64;
const FIO: u32 = 8;
/// Across a loss: how long fio runs, how far into that the target goes, and for how long.
const FIO_ACROSS: u32 = 15;
const BEFORE: Duration = Duration::from_secs(4);
const AWAY: Duration = Duration::from_secs(3);

pub fn cases() -> Vec<Case> {
    let io = |name| {
        Case::new(name, "everywire iscsi on LIO: CHAP, wrong secrets, bytes checked in the guest", io)
            .refusing()
    };
    let attach = |name| Case::new(name, "our initiator on LIO as /dev/nbd0: mutual CHAP, ext4, fio", attach);
    let away = |name| Case::new(name, "LIO drops its sessions under fio and comes back", away).reconnecting();
    vec![
        io("iscsi-initiator-tcp").tcp().in_sample(),
        io("iscsi-initiator-iser"),
        io("iscsi-initiator-iser").v6().jumbo(),
        attach("iscsi-attach-tcp").tcp(),
        attach("iscsi-attach-iser"),
        away("iscsi-attach-away-tcp").tcp(),
        away("iscsi-attach-away-iser"),
    ]
}

/// Linux's target, up while `work` runs.
fn with_lio(bench: &Bench, work: impl Fn(&Lio) -> Result<(), String>) -> Result<(), String> {
    let kind = if bench.wire == Wire::Tcp { "tcp" } else { "iser" };
    let lio = Lio::new(bench)?;
    bench.a.ok_within(&format!("bash /lab/lio-up.sh {} {kind}", lio.address), LIMIT)?;
    let outcome = work(&lio);
    let down = bench.a.ok_within("bash /lab/lio-down.sh", LIMIT);
    outcome.and(down.map(drop))
}

/// Who an action says it is: the initiator's name, its CHAP name and the file with its secret, and the file with the secret that
/// the target "disk" must know.
#[derive(Clone, Copy)]
struct As(&'static str, Option<(&'static str, &'static str)>, Option<&'static str>);

const BY_ONE_WAY: As = As(ONE, Some(("host", "host")), None);
const MUTUAL: As = As(BOTH, Some(("host", "host")), Some("disk"));

/// How to reach it, and where the secrets' files are.
struct Lio {
    device: Vec<String>,
    address: String,
    folder: PathBuf,
}

impl Lio {
    fn new(bench: &Bench) -> Result<Lio, String> {
        let device = if bench.wire == Wire::Tcp { vec![] } else { vec!["--device".into(), bench.device()] };
        let lio = Lio { device, address: bench.a_address().to_string(), folder: bench.folder.clone() };
        for name in ["host", "disk", "finder", "wrong"] {
            std::fs::write(lio.secret(name), format!("{name}-secret-0123\n")).map_err(|e| e.to_string())?;
        }
        Ok(lio)
    }

    fn secret(&self, name: &str) -> String {
        self.folder.join(format!("{name}.secret")).display().to_string()
    }

    /// Arguments of an action of `everywire iscsi`.
    fn action(&self, what: &str, who: As, more: &[&str]) -> Vec<String> {
        let mut all = vec!["iscsi".to_owned(), what.to_owned(), "--name".to_owned(), who.0.to_owned()];
        all.extend(self.device.iter().cloned());
        if let Some((name, file)) = who.1 {
            all.extend(["--chap".into(), name.into(), "--chap-secret".into(), self.secret(file)]);
        }
        if let Some(file) = who.2 {
            let secret = self.secret(file);
            all.extend(["--chap-target".into(), "disk".into(), "--chap-target-secret".into(), secret]);
        }
        all.push(self.address.clone());
        all.extend(more.iter().map(|&word| word.to_owned()));
        all
    }
}

fn io(bench: &mut Bench) -> Result<(), String> {
    with_lio(bench, |lio| {
        discovers(bench, lio)?;
        is_refused(bench, lio)?;
        for who in [BY_ONE_WAY, MUTUAL] {
            let shown = bench.everywire_io("login", &lio.action("login", who, &[IQN]), None, LIMIT)?;
            let shown = String::from_utf8_lossy(&shown).into_owned();
            if !shown.contains("262144 blocks of 512 bytes") {
                return Err(format!("login does not show LIO's disk: {shown}"));
            }
        }
        moves_bytes(bench, lio)
    })
}

fn discovers(bench: &Bench, lio: &Lio) -> Result<(), String> {
    let finder = As(ONE, Some(("finder", "finder")), None);
    let found = bench.everywire_io("discover", &lio.action("discover", finder, &[]), None, LIMIT)?;
    let found = String::from_utf8_lossy(&found).into_owned();
    if found.contains(IQN) { Ok(()) } else { Err(format!("discover did not find {IQN}: {found}")) }
}

/// Secrets that are wrong, on either side, none at all, and a name that nobody knows: a login must end at once, with words. Where
/// others send a Login Response with a status LIO may just disconnect (interop/README.md).
fn is_refused(bench: &Bench, lio: &Lio) -> Result<(), String> {
    let closed = match bench.wire {
        Wire::Tcp => "closed the connection during the login",
        _ => "during the login: the peer disconnected",
    };
    let authentication = &["authentication failure (0201h)", closed];
    let wrong: [(&str, As, &[&str]); 5] = [
        ("discover", As(ONE, Some(("finder", "wrong")), None), authentication),
        ("login", As(ONE, Some(("host", "wrong")), None), authentication),
        ("login", As(ONE, None, None), authentication),
        ("login", As("iqn.2026-01.lab:nobody", Some(("host", "host")), None), &["(0202h)"]),
        (
            "login",
            As(BOTH, Some(("host", "host")), Some("wrong")),
            &["the CHAP response of \"disk\" is wrong"],
        ),
    ];
    for (what, who, words) in wrong {
        // Whoever leaves isert in the middle of a login keeps it from ever letting go of his ACL (interop/README.md).
        if bench.wire != Wire::Tcp && who.2.is_some() {
            continue;
        }
        let more: &[&str] = if what == "login" { &[IQN] } else { &[] };
        match bench.everywire_io("refused", &lio.action(what, who, more), None, LIMIT) {
            Ok(_) => {
                return Err(format!(
                    "{what} as {} with secrets {:?} {:?} was not refused",
                    who.0, who.1, who.2
                ));
            }
            Err(why) if why.contains("exit Some(3)") && words.iter().any(|w| why.contains(w)) => {}
            Err(why) => return Err(format!("not refused in these words ({words:?}): {why}")),
        }
    }
    Ok(())
}

/// Immediate data, none, data asked for, digests (of TCP); offsets that are block multiples, not page multiples.
fn moves_bytes(bench: &Bench, lio: &Lio) -> Result<(), String> {
    let mut forms: Vec<&[&str]> = vec![&[], &["--no-immediate-data"], &["--initial-r2t"]];
    if bench.wire == Wire::Tcp {
        forms.push(&["--header-digest", "--data-digest"]);
    }
    let places = [(0, 512), (4096 + 512, 4096), (1 << 20, 65536), (2 << 20, (3 << 20) + 512)];
    for (form, (offset, length)) in forms.iter().cycle().zip(places) {
        let (at, long) = (offset.to_string(), length.to_string());
        let out = bench.lab.folder.join("share/ours");
        let bytes: Vec<u8> = (0..length).map(|i| ((i * 7 + i / 251 + offset) % 256) as u8).collect();
        std::fs::write(&out, &bytes).map_err(|e| e.to_string())?;
        let write = lio.action("write", MUTUAL, &[&[IQN, "--offset", &at], *form].concat());
        bench.everywire_io("write", &write, Some(&out), LIMIT)?;
        let (block, blocks) = (offset / 512, length / 512);
        bench.a.ok(&format!(
            "dd if=/dev/ram0 bs=512 skip={block} count={blocks} iflag=direct status=none | cmp - /lab/ours"
        ))?;
        let read =
            lio.action("read", BY_ONE_WAY, &[&[IQN, "--offset", &at, "--length", &long], *form].concat());
        if bench.everywire_io("read", &read, None, LIMIT)? != bytes {
            return Err(format!("read {length} B at {offset}: not the bytes that were written"));
        }
    }
    Ok(())
}

/// Work on /dev/nbd0, which is LIO's disk by way of our initiator.
fn attached(bench: &Bench, work: impl Fn(&Background) -> Result<(), String>) -> Result<(), String> {
    with_lio(bench, |lio| {
        let attach = lio.action("attach", MUTUAL, &[IQN]);
        let attach: Vec<&str> = attach.iter().map(String::as_str).collect();
        ours::attached(bench, &attach, COMPARED, &work)
    })
}

fn attach(bench: &mut Bench) -> Result<(), String> {
    attached(bench, |_| {
        bench.a.ok_within("bash /lab/nvme-files.sh /dev/nbd0 /etc", LIMIT)?;
        bench.a.ok_within(&format!("bash /lab/nvme-fio.sh /dev/nbd0 {FIO}"), LIMIT).map(drop)
    })
}

/// The portal group is disabled, which ends its sessions, and enabled again.
fn away(bench: &mut Bench) -> Result<(), String> {
    attached(bench, |server| {
        let job = bench.a.start(&format!("bash /lab/nvme-fio.sh /dev/nbd0 {FIO_ACROSS}"))?;
        std::thread::sleep(BEFORE);
        let lost = bench.a.ok("bash /lab/lio-group.sh 0").and_then(|_| {
            std::thread::sleep(AWAY);
            bench.a.ok("bash /lab/lio-group.sh 1")
        });
        let done = bench.a.wait(job, LIMIT)?;
        lost?;
        if done.code != 0 {
            return Err(format!("fio across the loss: {}", done.output));
        }
        match server.output().matches("is back after").count() {
            1 => Ok(()),
            times => Err(format!("the initiator said {times} times that the session is back, not once")),
        }
    })
}
