//! A stock Linux host's open-iscsi on our target, over TCP and over iSER: discovery, login, SCSI commands, files, fio with
//! verification, logout; CHAP both ways; the target killed under I/O; reservations of two initiators. What the host's kernel
//! says about it is inspected by the bench.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::{Case, ours};
use crate::interop::bench::Bench;
use crate::interop::lab::Background;
use crate::interop::wire::{Siw, Wire};

const IQN: &str = "iqn.2026-01.lab:ours";
const LIMIT: Duration = Duration::from_secs(300);
/// How long fio runs across a kill, how far into that the target is killed, and for how long it is away.
const FIO_ACROSS: u32 = 20;
const BEFORE: Duration = Duration::from_secs(6);
const AWAY: Duration = Duration::from_secs(2);
/// Node settings of a host whose target is killed: how soon it notices, and that commands wait for longer than any case lasts.
const WAITS: &str = "node.session.timeo.replacement_timeout=600 node.conn[0].timeo.noop_out_interval=5 \
                     node.conn[0].timeo.noop_out_timeout=10";

pub fn cases() -> Vec<Case> {
    let about = "open-iscsi: discovery, login, sg3-utils, ext4 and a file tree, fio --verify, logout";
    let iser = || Case::new("iscsi-target-iser", about, use_target);
    let chap = |name| {
        Case::new(name, "open-iscsi with CHAP, one way and mutual; wrong secrets are refused", chap)
            .refusing()
    };
    let kill =
        |name| Case::new(name, "kill -9 of the target under I/O; open-iscsi comes back", kill).reconnecting();
    let persist = |name| {
        Case::new(name, "reservations: two initiators, every type; APTPL and kill -9 of the target", persist)
            .reconnecting()
    };
    vec![
        Case::new("iscsi-target-tcp", about, use_target).tcp().in_sample(),
        iser().in_sample(),
        iser().v6().jumbo(),
        iser().siw(Siw::Crc),
        iser().siw(Siw::Plain),
        Case::new("iscsi-target-fio", "open-iscsi: fio --verify, 512 B to 8 MiB, 4 s", fio)
            .siw(Siw::Crc)
            .in_sample(),
        Case::new(
            "iscsi-target-unasked",
            "open-iscsi over iSER with InitialR2T=No, ImmediateData Yes and No",
            unasked,
        ),
        chap("iscsi-target-chap-tcp").tcp().in_sample(),
        chap("iscsi-target-chap-iser"),
        kill("iscsi-target-kill-tcp").tcp(),
        kill("iscsi-target-kill-iser").in_sample(),
        kill("iscsi-target-kill-iser").siw(Siw::Crc),
        persist("iscsi-target-persist-tcp").tcp().in_sample(),
        persist("iscsi-target-persist-iser"),
    ]
}

/// The interface of open-iscsi that goes by the case's wire.
fn interface(bench: &Bench) -> &'static str {
    if bench.wire == Wire::Tcp { "default" } else { "iser" }
}

/// Our target on a backend, once it listens.
fn serve(bench: &Bench, name: &str, backend: &str) -> Result<Background, String> {
    let (device, address) = (bench.device(), bench.host_address().to_string());
    let disk = format!("{IQN}={backend}");
    let mut arguments = vec!["serve", "--device", &device, "--iscsi", &disk];
    if bench.wire == Wire::Tcp {
        arguments.extend(["--tcp", &address]);
    }
    let mut target = bench.everywire(name, &arguments)?;
    target.wait_for("listening on", LIMIT)?;
    Ok(target)
}

/// Runs a script of the guest's with the target's address, its name and the interface before these arguments.
fn script(bench: &Bench, name: &str, more: &str) -> Result<(), String> {
    let (address, interface) = (bench.host_address(), interface(bench));
    bench.a.ok_within(&format!("bash /lab/{name} {address} {IQN} {interface} {more}"), LIMIT).map(drop)
}

fn on_disk(bench: &Bench, script: &str) -> Result<(), String> {
    bench.a.ok_within(&format!("disk=$(cat /run/iscsi-disk); {script}"), LIMIT).map(drop)
}

fn logout(bench: &Bench) -> Result<(), String> {
    bench.a.ok_within(&format!("bash /lab/iscsi-logout.sh {IQN}"), LIMIT).map(drop)
}

fn use_target(bench: &mut Bench) -> Result<(), String> {
    let target = serve(bench, "serve", "ram:256MiB")?;
    let work = || {
        script(bench, "iscsi-login.sh", "")?;
        on_disk(bench, "bash /lab/iscsi-commands.sh $disk")?;
        on_disk(bench, "bash /lab/nvme-files.sh $disk /etc")?;
        on_disk(bench, "bash /lab/scsi-fio.sh $disk 10")?;
        logout(bench)
    };
    work().map_err(|why| ours::with_words_of(&target, &why))?;
    ours::end_serve(target)
}

fn fio(bench: &mut Bench) -> Result<(), String> {
    let target = serve(bench, "serve", "ram:256MiB")?;
    script(bench, "iscsi-login.sh", "")
        .and_then(|()| on_disk(bench, "bash /lab/scsi-fio.sh $disk 4"))
        .and_then(|()| logout(bench))
        .map_err(|why| ours::with_words_of(&target, &why))?;
    ours::end_serve(target)
}

/// Data that comes in SENDs before it is asked for, with the command and without.
fn unasked(bench: &mut Bench) -> Result<(), String> {
    let path = bench.folder.join("target.toml");
    let text = format!(
        "devices = [\"{}\"]\n[iscsi]\ninitial_r2t = false\n[[iscsi.target]]\nname = \"{IQN}\"\n\
         [[iscsi.target.lun]]\nbackend = \"ram:256MiB\"\n",
        bench.device()
    );
    std::fs::write(&path, text).map_err(|e| e.to_string())?;
    let mut target = bench.everywire("serve", &["serve", &path.display().to_string()])?;
    target.wait_for("listening on", LIMIT)?;
    let work = || {
        for immediate in ["Yes", "No"] {
            let wanted =
                format!("node.session.iscsi.InitialR2T=No node.session.iscsi.ImmediateData={immediate}");
            script(bench, "iscsi-login.sh", &wanted)?;
            let agreed = format!("iscsiadm -m session -P 2 | grep -q 'ImmediateData: {immediate}'");
            bench.a.ok(&format!("iscsiadm -m session -P 2 | grep -q 'InitialR2T: No' && {agreed}"))?;
            on_disk(bench, "bash /lab/iscsi-commands.sh $disk")?;
            on_disk(bench, "bash /lab/scsi-fio.sh $disk 4")?;
            logout(bench)?;
        }
        Ok(())
    };
    work().map_err(|why: String| ours::with_words_of(&target, &why))?;
    ours::end_serve(target)
}

/// A configuration with secrets for discovery, for the initiator and of the target.
fn chap_config(bench: &Bench) -> Result<String, String> {
    let secret = |name: &str| {
        let path = bench.folder.join(format!("{name}.secret"));
        std::fs::write(&path, format!("{name}-secret-0123\n")).map_err(|e| e.to_string())?;
        Ok::<_, String>(format!("{{ name = \"{name}\", secret_file = \"{}\" }}", path.display()))
    };
    let (finder, host, disk) = (secret("finder")?, secret("host")?, secret("disk")?);
    let portals =
        if bench.wire == Wire::Tcp { format!("\"{}\"", bench.host_address()) } else { String::new() };
    let device = bench.device();
    Ok(format!(
        "devices = [\"{device}\"]\n[iscsi]\nportals = [{portals}]\ndiscovery_chap = [{finder}]\n\
         [[iscsi.target]]\nname = \"{IQN}\"\nchap = [{host}]\nchap_target = {disk}\n\
         [[iscsi.target.lun]]\nbackend = \"ram:64MiB\"\n"
    ))
}

fn chap(bench: &mut Bench) -> Result<(), String> {
    let path = bench.folder.join("target.toml");
    std::fs::write(&path, chap_config(bench)?).map_err(|e| e.to_string())?;
    let mut target = bench.everywire("serve", &["serve", &path.display().to_string()])?;
    target.wait_for("listening on", LIMIT)?;
    script(bench, "iscsi-chap.sh", "").map_err(|why| ours::with_words_of(&target, &why))?;
    let said = target.output();
    let refused = ["\"finder\" is wrong", "CHAP is required", "\"host\" is wrong"];
    // Over iSER nobody discovers here (interop/README.md).
    let refused = if bench.wire == Wire::Tcp { &refused[..] } else { &refused[1..] };
    if let Some(words) = refused.iter().find(|words| !said.contains(**words)) {
        return Err(format!("serve does not say {words} of whom it refused:\n{said}"));
    }
    ours::end_serve(target)
}

/// A file that outlives the target; fio runs across the kill, and bytes flushed before it are there after it.
fn kill(bench: &mut Bench) -> Result<(), String> {
    let file = bench.folder.join("disk");
    let done = kill_and_return(bench, &file);
    let _ = std::fs::remove_file(&file);
    done
}

fn kill_and_return(bench: &Bench, file: &Path) -> Result<(), String> {
    let backend = format!("file:{},size=128MiB", file.display());
    let first = serve(bench, "serve-1", &backend)?;
    script(bench, "iscsi-login.sh", WAITS)?;
    on_disk(
        bench,
        "dd if=/dev/urandom of=/tmp/before bs=64k count=16 status=none; \
         dd if=/tmp/before of=$disk bs=64k seek=1500 oflag=direct conv=fsync status=none",
    )?;
    let fio = bench.a.start(&format!("bash /lab/nvme-fio.sh $(cat /run/iscsi-disk) {FIO_ACROSS}"))?;
    std::thread::sleep(BEFORE);
    first.signal(Signal::KILL);
    first.end(Duration::from_secs(10));
    std::thread::sleep(AWAY);
    let second = serve(bench, "serve-2", &backend)?;
    let done = bench.a.wait(fio, LIMIT)?;
    if done.code != 0 {
        return Err(ours::with_words_of(&second, &format!("fio across the kill: {}", done.output)));
    }
    on_disk(bench, "dd if=$disk bs=64k skip=1500 count=16 iflag=direct status=none | cmp - /tmp/before")?;
    let lost = bench.a.ok("dmesg | grep -c 'detected conn error' || true")?;
    logout(bench)?;
    if lost.trim() == "0" {
        return Err("open-iscsi never said that it lost the connection: the kill was not seen".into());
    }
    ours::end_serve(second)
}

/// What APTPL keeps is on the target's disk: it is killed, and the next one has it.
fn persist(bench: &mut Bench) -> Result<(), String> {
    let file = bench.folder.join("disk");
    let backend = format!("file:{},size=64MiB", file.display());
    let on_disks =
        |script: &str| bench.a.ok_within(&format!("bash /lab/{script} $(cat /run/iscsi-disks)"), LIMIT);
    let first = serve(bench, "serve-1", &backend)?;
    script(bench, "iscsi-two.sh", "")
        .and_then(|()| on_disks("persist.sh"))
        .and_then(|_| on_disks("persist-keep.sh set"))
        .map_err(|why| ours::with_words_of(&first, &why))?;
    first.signal(Signal::KILL);
    first.end(Duration::from_secs(10));
    let second = serve(bench, "serve-2", &backend)?;
    on_disks("persist-keep.sh check")
        .and_then(|_| script(bench, "iscsi-two.sh", "logout"))
        .map_err(|why| ours::with_words_of(&second, &why))?;
    let _ = std::fs::remove_file(&file);
    ours::end_serve(second)
}
