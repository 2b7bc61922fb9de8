//! Target and initiator end to end in the simulator: real RoCE frames, virtual time, loss and death.

mod lab;

use std::sync::Arc;
use std::time::Duration;

use everywire_block::RamBackend;
use everywire_srp::rdma::{InitiatorOptions, TargetOptions};
use everywire_srp::target::Limits;
use lab::{Lab, options, write_and_read};

#[test]
fn log_in_write_read_log_out() {
    let lab = Lab::new(1);
    lab.run(|host| async move {
        let initiator = host.connect(options()).await;
        let disk = initiator.disk(0).await.expect("a disk");
        assert_eq!((disk.capacity().block_size, disk.capacity().blocks), (512, 65536));
        for (i, len) in [512, 4096, 8192, 65536, 1 << 20, (2 << 20) + 512].into_iter().enumerate() {
            write_and_read(&disk, 512 * i as u64, len, i as u64).await;
        }
        disk.flush().await.expect("flushes");
        initiator.log_out().await;
    });
    lab.world.run_for(Duration::from_secs(30));
    assert_eq!((lab.target().channels(), lab.target().nexuses(), lab.target().data_in_use()), (0, 0, 0));
    let usage = lab.world.device(lab.host).usage();
    assert_eq!((usage.qps, usage.cqs, usage.mrs), (0, 0, 0), "{usage:?}");
    let usage = lab.world.device(lab.target_host).usage();
    assert_eq!((usage.qps, usage.cqs, usage.mrs), (0, 0, 1), "only the data pool is left: {usage:?}");
}

/// More than the unit's MAXIMUM TRANSFER LENGTH of 32 MiB goes in several commands.
#[test]
fn a_long_transfer_is_cut() {
    let unit = Arc::new(RamBackend::new(4096, 16384).expect("fits"));
    let lab = Lab::on(3, unit, Limits::default(), TargetOptions::default());
    lab.run(|host| async move {
        let initiator = host.connect(options()).await;
        let disk = initiator.disk(0).await.expect("a disk");
        write_and_read(&disk, 4096, (33 << 20) + 4096, 1).await;
        disk.write_zeroes(8192, 40 << 20, true).await.expect("zeroes");
        assert!(disk.read(8192, 40 << 20).await.expect("reads").iter().all(|&byte| byte == 0));
        initiator.log_out().await;
    });
}

/// SR-05: direct, indirect whole, partial and fetched tables of 255 and more descriptors.
#[test]
fn every_form_of_descriptors() {
    let cases = [
        (None, 12, 0),
        (None, 12, 8192),
        (Some(65536), 255, 8192),
        (Some(4112), 255, 0),
        (Some(4096), 255, 0),
        (Some(4096), 1, 0),
        (Some(512), 12, 0),
        (Some(512), 255, 8192),
    ];
    for (segment, descriptors, immediate) in cases {
        let lab = Lab::new(2);
        lab.run(move |host| async move {
            let initiator =
                host.connect(InitiatorOptions { segment, descriptors, immediate, ..options() }).await;
            assert_eq!(initiator.immediate(), immediate as usize);
            let disk = initiator.disk(0).await.expect("a disk");
            for (i, len) in [512, 4096, 8192, 12288, 65536, 1 << 20, 2 << 20].into_iter().enumerate() {
                write_and_read(&disk, 1024 * i as u64, len, i as u64).await;
            }
            initiator.log_out().await;
        });
    }
}
