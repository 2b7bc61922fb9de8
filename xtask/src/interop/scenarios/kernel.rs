//! Kernel to kernel: what the lab itself must be able to do before anything of ours is judged in it.

use std::time::Duration;

use super::Case;
use crate::interop::bench::Bench;
use crate::interop::wire::Siw;

const LIMIT: Duration = Duration::from_secs(300);

pub fn cases() -> Vec<Case> {
    let rping = || Case::new("kernel-rping", "rping between two Linux guests", rping).with_b();
    let nvme =
        || Case::new("kernel-nvme", "nvme-rdma on one Linux guest, nvmet-rdma on the other", nvme).with_b();
    let lossy =
        Case::new("kernel-registering", "the same with loss: soft-RoCE trips over its registrations", lossy);
    vec![
        rping().in_sample(),
        rping().v6(),
        nvme(),
        nvme().v6().jumbo(),
        lossy.with_b().lossy().registering().proof(),
        rping().siw(Siw::Plain).in_sample(),
        rping().siw(Siw::Crc).v6(),
        rping().siw(Siw::P2p).v6().jumbo(),
        rping().siw(Siw::P2pCrc).jumbo(),
        nvme().siw(Siw::Crc),
        nvme().siw(Siw::P2p).v6().jumbo(),
    ]
}

fn rping(bench: &mut Bench) -> Result<(), String> {
    let address = bench.a_address();
    let server = bench.a.start(&format!("timeout 100 rping -s -a {address} -C 5 -V"))?;
    bench.b()?.ok(&format!("bash /lab/retry.sh 'rping -c -a {address} -C 5 -V' 10"))?;
    let done = bench.a.wait(server, LIMIT)?;
    if done.code == 0 { Ok(()) } else { Err(format!("rping's server: {}", done.output)) }
}

fn nvme(bench: &mut Bench) -> Result<(), String> {
    let address = bench.a_address();
    bench.a.ok(&format!("bash /lab/nvmet-up.sh {address}"))?;
    let b = bench.b()?;
    b.ok(&format!(
        "modprobe nvme_rdma; nvme discover -t rdma -a {address} -s 4420 | grep -q nqn.2026-01.lab:disk"
    ))?;
    b.ok(&format!("bash /lab/nvme-connect.sh {address} nqn.2026-01.lab:disk 2"))?;
    // The same scripts that later judge our target; nvmet answers a read past the end its own way.
    for script in [
        "nvme-patterns.sh $(cat /run/nvme-disk) 'Internal Error'",
        "nvme-zeroes.sh $(cat /run/nvme-disk)",
        "nvme-fio.sh $(cat /run/nvme-disk) 5",
        "nvme-files.sh $(cat /run/nvme-disk) /etc /usr/bin",
    ] {
        b.ok_within(&format!("bash /lab/{script}"), LIMIT)?;
    }
    b.ok("nvme disconnect -n nqn.2026-01.lab:disk")?;
    bench.a.ok("bash /lab/nvmet-down.sh")?;
    Ok(())
}

/// The proof of what interop/README.md says of soft-RoCE: on a link that loses packets its own error takes queue pairs down,
/// with no line of ours in it. What fio makes of it is not judged.
fn lossy(bench: &mut Bench) -> Result<(), String> {
    let address = bench.a_address();
    bench.a.ok(&format!("bash /lab/nvmet-up.sh {address}"))?;
    let b = bench.b()?;
    let connect = format!(
        "modprobe nvme_core; echo 5 >/sys/module/nvme_core/parameters/io_timeout; bash /lab/nvme-connect.sh {address} \
         nqn.2026-01.lab:disk 2 --keep-alive-tmo=30 --reconnect-delay=1 --ctrl-loss-tmo=120"
    );
    b.ok_within(&connect, LIMIT)?;
    b.ok_within("timeout -s KILL 60 bash /lab/nvme-fio.sh $(cat /run/nvme-disk) 10 || true", LIMIT)?;
    let said = b.ok("dmesg | grep -c 'rxe_reg_fast_mr: mr->lkey' || true")?;
    b.ok_within("nvme disconnect -n nqn.2026-01.lab:disk", LIMIT)?;
    b.ok("echo 30 >/sys/module/nvme_core/parameters/io_timeout")?;
    bench.a.ok("bash /lab/nvmet-down.sh")?;
    match said.trim() {
        "0" => Err("soft-RoCE did not trip: the lossy cases no longer need register_always=N".into()),
        _ => Ok(()),
    }
}
