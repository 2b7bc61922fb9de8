//! A stock Linux host's open-iscsi on our target, over TCP and over iSER: discovery, login, SCSI commands, files, fio with
//! verification, logout. What the host's kernel says about it is inspected by the bench.

use std::time::Duration;

use rustix::process::Signal;

use super::Case;
use crate::interop::bench::Bench;
use crate::interop::wire::{Siw, Wire};

const IQN: &str = "iqn.2026-01.lab:ours";
const LIMIT: Duration = Duration::from_secs(300);

pub fn cases() -> Vec<Case> {
    let about = "open-iscsi: discovery, login, sg3-utils, ext4 and a file tree, fio --verify, logout";
    let iser = || Case::new("iscsi-target-iser", about, use_target);
    vec![
        Case::new("iscsi-target-tcp", about, use_target).tcp().in_sample(),
        iser().in_sample(),
        iser().v6().jumbo(),
        iser().siw(Siw::Crc),
    ]
}

fn use_target(bench: &mut Bench) -> Result<(), String> {
    let disk = format!("{IQN}=ram:256MiB");
    let (device, address) = (bench.device(), bench.host_address().to_string());
    let mut arguments = vec!["serve", "--device", &device, "--iscsi", &disk];
    let interface = if bench.wire == Wire::Tcp { "default" } else { "iser" };
    if bench.wire == Wire::Tcp {
        arguments.extend(["--tcp", &address]);
    }
    let mut target = bench.everywire("serve", &arguments)?;
    target.wait_for("listening on", LIMIT)?;
    let work = || {
        bench.a.ok_within(&format!("bash /lab/iscsi-login.sh {address} {IQN} {interface}"), LIMIT)?;
        bench.a.ok_within("bash /lab/iscsi-commands.sh $(cat /run/iscsi-disk)", LIMIT)?;
        bench.a.ok_within("bash /lab/nvme-files.sh $(cat /run/iscsi-disk) /etc", LIMIT)?;
        bench.a.ok_within("bash /lab/nvme-fio.sh $(cat /run/iscsi-disk) 10", LIMIT)?;
        bench.a.ok_within(&format!("bash /lab/iscsi-logout.sh {IQN}"), LIMIT)
    };
    work().map_err(|why| format!("{why}\nserve said:\n{}", target.output()))?;
    target.signal(Signal::TERM);
    let (code, output) = target.end(Duration::from_secs(30));
    if code != Some(0) {
        return Err(format!("serve: exit {code:?} after SIGTERM:\n{output}"));
    }
    // A clean run leaves no error line (the log is part of the interface).
    match output.lines().find(|l| l.contains("ERROR") || l.contains("panicked")) {
        Some(line) => Err(format!("serve logged: {line}")),
        None => Ok(()),
    }
}
