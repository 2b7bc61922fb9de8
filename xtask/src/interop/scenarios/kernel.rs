//! Kernel to kernel: what the lab itself must be able to do before anything of ours is judged in it.

use std::time::Duration;

use super::Case;
use crate::interop::bench::Bench;

const LIMIT: Duration = Duration::from_secs(300);

pub fn cases() -> Vec<Case> {
    let rping = || Case::new("kernel-rping", "rping between two Linux guests", rping);
    let nvme = || Case::new("kernel-nvme", "nvme-rdma on one Linux guest, nvmet-rdma on the other", nvme);
    vec![rping().in_sample(), rping().v6(), nvme(), nvme().v6().jumbo()]
}

fn rping(bench: &mut Bench) -> Result<(), String> {
    let address = bench.a_address();
    bench.b()?;
    let server = bench.a.start(&format!("timeout 60 rping -s -a {address} -C 5 -V"))?;
    bench.b()?.ok(&format!("bash /lab/retry.sh 'rping -c -a {address} -C 5 -V'"))?;
    let done = bench.a.wait(server, LIMIT)?;
    if done.code == 0 { Ok(()) } else { Err(format!("rping's server: {}", done.output)) }
}

fn nvme(bench: &mut Bench) -> Result<(), String> {
    let address = bench.a_address();
    bench.b()?;
    bench.a.ok(&format!("bash /lab/nvmet-up.sh {address}"))?;
    let b = bench.b()?;
    b.ok(&format!(
        "modprobe nvme_rdma; nvme discover -t rdma -a {address} -s 4420 | grep -q nqn.2026-01.lab:disk"
    ))?;
    b.ok(&format!("bash /lab/nvme-connect.sh {address} nqn.2026-01.lab:disk 2"))?;
    // The same scripts that later judge our target.
    for script in [
        "nvme-patterns.sh $(cat /run/nvme-disk)",
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
