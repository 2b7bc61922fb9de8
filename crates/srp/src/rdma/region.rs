//! Registered memory as the block layer sees it.

use std::sync::Arc;

use everywire_block::IoMemory;
use everywire_verbs::MemoryRegion;

/// A memory region that backends copy into and out of.
struct RegionMemory(MemoryRegion);

/// Wraps a region for [`everywire_block::IoBuf`].
pub(super) fn io_memory(region: &MemoryRegion) -> Arc<dyn IoMemory> {
    Arc::new(RegionMemory(region.clone()))
}

impl IoMemory for RegionMemory {
    fn load(&self, at: usize, into: &mut [u8]) {
        self.0.read_at(at, into).expect("an I/O buffer lies inside its region");
    }

    fn store(&self, at: usize, from: &[u8]) {
        self.0.write_at(at, from).expect("an I/O buffer lies inside its region");
    }
}
