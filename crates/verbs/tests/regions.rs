//! Registrations that come and go leave no memory behind.
//!
//! Alone in its file: what is resident is the process's.
#![cfg(target_os = "linux")]

use everywire_verbs::{Access, Device, DeviceConfig, MemoryRegion, Pd};

/// Bytes of a region: more than the heap keeps to itself.
const LEN: usize = 137 << 10;
const REGIONS: usize = 1000;
/// A tenth of what the regions take is noise.
const NOISE: usize = REGIONS / 10 * LEN;

/// Bytes of this process that are resident: proc(5), VmRSS.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") * 1024
}

fn register(pd: &Pd) -> Vec<MemoryRegion> {
    (0..REGIONS).map(|_| pd.register(LEN, Access::LOCAL_WRITE).expect("memory")).collect()
}

/// Each touched, they are gone in the end, and those after them are as lazy as the first.
#[test]
fn large_regions_that_come_and_go_leave_nothing_behind() {
    let device = Device::new(DeviceConfig::roce_v2([10, 0, 0, 1].into()));
    let pd = device.alloc_pd().expect("a domain");
    let before = resident();
    for _ in 0..2 {
        let regions = register(&pd);
        for region in &regions {
            region.write_at(0, &[1; LEN]).expect("inside");
        }
        assert!(resident() > before + REGIONS / 2 * LEN, "they are there");
        // Every other one, so that no allocator could give back the whole.
        let mut regions: Vec<_> = regions.into_iter().map(Some).collect();
        regions.iter_mut().step_by(2).for_each(|region| *region = None);
        let half = resident();
        let lazy = register(&pd);
        assert!(resident() < half + NOISE, "nobody has touched them");
        drop((regions, lazy));
    }
    assert!(resident() < before + NOISE);
}
