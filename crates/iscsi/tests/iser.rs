//! Both halves end to end over RDMA in virtual time (RFC 7145): every wire, every way that data moves, what goes wrong.

mod lab;
mod rdma_lab;

use std::time::Duration;

use everywire_iscsi::initiator::discover_rdma;
use lab::{TARGET, name, pattern};
use rdma_lab::{RdmaLab, WIRES, address, options};

/// A login, a read, a write, and the read again, on every wire; then nothing is left of it on either side.
#[test]
fn every_wire() {
    for (wire, host) in WIRES {
        let lab = RdmaLab::on(1, host);
        lab.disk.bytes.borrow_mut()[..4096].copy_from_slice(&pattern(7, 4096));
        lab.run(|host| async move {
            let found = discover_rdma(&host.rt, host.binding(), address(), options()).await.expect("a list");
            let found: Vec<_> = found.into_iter().map(|one| (one.name, one.addresses)).collect();
            assert_eq!(found, [(name(TARGET), vec![format!("{},1", address())])]);
            let session = host.connect(options()).await.expect("logs in");
            let disk = session.disk(0).await.expect("a disk");
            assert_eq!(disk.read(0, 4096).await.expect("reads"), pattern(7, 4096), "{wire}");
            // IS-20: what goes with the command, what is fetched, and both.
            for (i, len) in [512, 4096, 8192, 8704, 65536, 1 << 20, (8 << 20) + 512].into_iter().enumerate() {
                let bytes = pattern(i, len);
                disk.write(i as u64 * 512, bytes.clone().into()).await.expect("writes");
                assert_eq!(disk.read(i as u64 * 512, len).await.expect("reads"), bytes, "{wire}: {len}");
            }
            disk.flush().await.expect("flushes");
            session.logout().await;
        });
        lab.world.run_for(Duration::from_secs(30));
        assert_eq!((lab.target.sessions(), lab.disk.nexuses.get(), lab.memory_in_use()), (0, 0, 0), "{wire}");
        let usage = lab.world.device(lab.host).usage();
        assert_eq!((usage.qps, usage.cqs, usage.mrs), (0, 0, 0), "{wire}: {usage:?}");
        let usage = lab.world.device(lab.target_host).usage();
        assert_eq!((usage.qps, usage.cqs, usage.mrs), (0, 0, 1), "{wire}: the listener's memory: {usage:?}");
    }
}
