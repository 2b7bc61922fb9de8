//! `everywire nvme attach` on Linux's nvmet-rdma: the guest's own nbd driver gets the guest's own disk back, by our initiator
//! and RDMA. On it mkfs.ext4, a tree of files, fio with verification; the target's port taken away, the cable pulled and the
//! TCP connections reset under I/O. At the end the disk below must hold what the disk above shows.

use std::time::Duration;

use super::{Case, TWO_LINKS, ours, over_siw};
use crate::interop::bench::Bench;
use crate::interop::lab::Background;
use crate::interop::wire::Wire;

const NQN: &str = "nqn.2026-01.lab:disk";
const LIMIT: Duration = Duration::from_secs(300);
/// How long fio runs where it runs undisturbed, and across a loss.
const FIO: u32 = 10;
const FIO_ACROSS: u32 = 15;
/// The same where the loss comes under reads: the writes before it, the reads, the writes after it.
const FIO_AROUND: u32 = 4;
const READS_ACROSS: u32 = 13;
/// How far into fio's run the target goes away, and for how long.
const BEFORE: Duration = Duration::from_secs(4);
const PORT_AWAY: Duration = Duration::from_secs(3);
/// The initiator notices by Keep Alive, which it sends every 2.5 s and gives 5 s.
const CABLE_AWAY: Duration = Duration::from_secs(12);
/// Between two resets: the queues are back, and have work.
const BETWEEN_RESETS: Duration = Duration::from_secs(4);
/// MiB that fio works on.
const COMPARED: u32 = 64;

pub fn cases() -> Vec<Case> {
    let files =
        Case::new("nvme-attach-files", "our initiator as /dev/nbd0: ext4, a file tree, checks", files);
    let fio = Case::new("nvme-attach-fio", "our initiator as /dev/nbd0: fio --verify=crc32c, 10 s", fio);
    let port =
        Case::new("nvme-attach-port", "nvmet's port goes under fio and comes back", port).reconnecting();
    let cable =
        Case::new("nvme-attach-cable", "the cable is pulled under fio for 12 s", cable).reconnecting();
    let reset = Case::new("nvme-attach-reset", "the TCP connections are reset under fio, twice", reset)
        .reconnecting();
    let all = [files, fio, port, cable];
    let roce = all.iter().cloned().chain(all.iter().map(|case| case.clone().v6().jumbo()));
    // Not the cable: nvmet over siw then keeps a command for ever, and its port never goes (interop/README.md).
    let siw = all[..3].iter().chain([&reset]).flat_map(|case| over_siw(case, &TWO_LINKS));
    roce.chain(siw).collect()
}

/// Runs work on /dev/nbd0, which is the guest's RAM disk by way of its nvmet and our initiator.
fn attached(bench: &Bench, work: impl Fn(&Background) -> Result<(), String>) -> Result<(), String> {
    let target = bench.a_address().to_string();
    bench.a.ok(&format!("bash /lab/nvmet-up.sh {target}"))?;
    let device = bench.device();
    let attach = ["nvme", "attach", "--device", &device, &target, NQN, "--queues", "2"];
    let outcome = ours::attached(bench, &attach, COMPARED, work);
    bench.a.ok("bash /lab/nvmet-down.sh")?;
    outcome
}

fn files(bench: &mut Bench) -> Result<(), String> {
    attached(bench, |_| {
        bench.a.ok_within("bash /lab/nvme-files.sh /dev/nbd0 /etc /usr/bin", LIMIT)?;
        Ok(())
    })
}

fn fio(bench: &mut Bench) -> Result<(), String> {
    attached(bench, |_| {
        bench.a.ok_within(&format!("bash /lab/nvme-fio.sh /dev/nbd0 {FIO}"), LIMIT)?;
        Ok(())
    })
}

/// fio across losses that `lose` makes and mends; the initiator must say that often that it came back. Over siw they come
/// under reads with verification, and writes come before and after: nvmet reads what a host writes, and siw forgets such a
/// read when its queue pair ends (interop/README.md).
fn across(bench: &Bench, losses: usize, lose: impl Fn() -> Result<(), String>) -> Result<(), String> {
    attached(bench, |server| {
        let fio = |script: &str| bench.a.ok_within(&format!("bash /lab/{script}"), LIMIT).map(drop);
        let (load, seconds) = match bench.wire {
            Wire::RoceV2 | Wire::Tcp => ("nvme-fio.sh", FIO_ACROSS),
            Wire::Iwarp(_) => {
                fio(&format!("nvme-fio.sh /dev/nbd0 {FIO_AROUND}"))?;
                fio("nvme-reads.sh /dev/nbd0 fill")?;
                ("nvme-reads.sh", READS_ACROSS)
            }
        };
        let job = bench.a.start(&format!("bash /lab/{load} /dev/nbd0 {seconds}"))?;
        std::thread::sleep(BEFORE);
        let lost = lose();
        let done = bench.a.wait(job, LIMIT)?;
        lost?;
        if done.code != 0 {
            return Err(format!("fio across the loss: {}", done.output));
        }
        if let Wire::Iwarp(_) = bench.wire {
            fio(&format!("nvme-fio.sh /dev/nbd0 {FIO_AROUND}"))?;
        }
        let back = server.output().matches("reconnected after").count();
        if back == losses {
            Ok(())
        } else {
            Err(format!("the initiator said {back} times that it reconnected, not {losses} times"))
        }
    })
}

fn port(bench: &mut Bench) -> Result<(), String> {
    let target = bench.a_address();
    across(bench, 1, || {
        bench.a.ok("bash /lab/nvmet-port.sh down")?;
        std::thread::sleep(PORT_AWAY);
        bench.a.ok(&format!("bash /lab/nvmet-port.sh up {target}"))?;
        Ok(())
    })
}

fn reset(bench: &mut Bench) -> Result<(), String> {
    across(bench, 2, || {
        bench.a.ok("bash /lab/tcp-reset.sh 4420")?;
        std::thread::sleep(BETWEEN_RESETS);
        bench.a.ok("bash /lab/tcp-reset.sh 4420")?;
        Ok(())
    })
}

fn cable(bench: &mut Bench) -> Result<(), String> {
    across(bench, 1, || {
        bench.lab.pull(&bench.a)?;
        std::thread::sleep(CABLE_AWAY);
        bench.lab.plug(&bench.a)
    })
}
