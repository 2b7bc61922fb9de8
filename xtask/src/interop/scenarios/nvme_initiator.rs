//! `everywire nvme` on Linux's nvmet-rdma: what ours writes, the guest reads from its own disk, and the other way.

use std::time::Duration;

use super::{Case, TWO_LINKS, over_siw};
use crate::interop::bench::Bench;

const NQN: &str = "nqn.2026-01.lab:disk";
const LIMIT: Duration = Duration::from_secs(300);

pub fn cases() -> Vec<Case> {
    let io = || {
        Case::new("nvme-initiator", "everywire nvme on Linux's nvmet-rdma, bytes checked in the guest", io)
    };
    let roce = vec![io().in_sample(), io().v6().jumbo().in_sample(), io().v6(), io().jumbo(), io().lossy()];
    roce.into_iter().chain(over_siw(&io(), &TWO_LINKS)).collect()
}

fn io(bench: &mut Bench) -> Result<(), String> {
    let address = bench.a_address().to_string();
    bench.a.ok(&format!("bash /lab/nvmet-up.sh {address}"))?;
    let outcome = verify(bench, &address);
    bench.a.ok("bash /lab/nvmet-down.sh")?;
    outcome
}

fn verify(bench: &Bench, address: &str) -> Result<(), String> {
    let device = bench.device();
    let nvme = |what: &str, more: &[&str]| {
        [&["nvme", what, "--device", &device, address], more]
            .concat()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let found = bench.everywire_io("discover", &nvme("discover", &[]), None, LIMIT)?;
    if !String::from_utf8_lossy(&found).contains(NQN) {
        return Err(format!("discover did not find {NQN}: {}", String::from_utf8_lossy(&found)));
    }
    bench.everywire_io("info", &nvme("info", &[NQN]), None, LIMIT)?;
    // In-capsule, one segment, many commands; offsets that are block multiples, not page multiples.
    for (offset, length) in
        [(0usize, 512usize), (4096 + 512, 4096), (1 << 20, 65536), (2 << 20, (3 << 20) + 512)]
    {
        let (at, long) = (offset.to_string(), length.to_string());
        let out = bench.lab.folder.join("share/ours");
        let bytes: Vec<u8> = (0..length).map(|i| ((i * 7 + i / 251 + offset) % 256) as u8).collect();
        std::fs::write(&out, &bytes).map_err(|e| e.to_string())?;
        bench.everywire_io("write", &nvme("write", &[NQN, "--offset", &at]), Some(&out), LIMIT)?;
        let block = offset / 512;
        let blocks = length / 512;
        bench.a.ok(&format!(
            "dd if=/dev/ram0 bs=512 skip={block} count={blocks} iflag=direct status=none | cmp - /lab/ours"
        ))?;
        let read = ["--offset", &at, "--length", &long];
        let back = bench.everywire_io("read", &nvme("read", &[&[NQN], &read[..]].concat()), None, LIMIT)?;
        if back != bytes {
            return Err(format!("read {length} B at {offset}: not the bytes that were written"));
        }
        // What the guest itself writes is what ours reads.
        let theirs = format!(
            "head -c {length} /dev/urandom >/lab/theirs; dd if=/lab/theirs of=/dev/ram0 bs=512 seek={block} oflag=direct status=none"
        );
        bench.a.ok(&theirs)?;
        let back = bench.everywire_io("read", &nvme("read", &[&[NQN], &read[..]].concat()), None, LIMIT)?;
        if back != std::fs::read(bench.lab.folder.join("share/theirs")).unwrap_or_default() {
            return Err(format!("read {length} B at {offset}: not the bytes that the guest wrote"));
        }
    }
    Ok(())
}
