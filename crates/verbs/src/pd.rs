//! Protection domains: who may use which memory with which queue pair.
//!
//! Read IBTA vol. 1 §10.2.3 first. Everything made in a domain keeps it alive, so a domain ends after all of that.

use std::fmt;
use std::sync::Arc;

use everywire_transport::memory::PdId;

use crate::device::Device;
use crate::error::VerbsError;

/// A protection domain. Cheap to clone.
#[derive(Clone)]
pub struct Pd(Arc<PdInner>);

struct PdInner {
    device: Device,
    id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.device.lock().pds.remove(self.id.0);
    }
}

impl Device {
    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Result<Pd, VerbsError> {
        let id = self.lock().pds.insert(());
        let id = id.ok_or_else(|| VerbsError::full(self.name(), "max_pd", self.limits().max_pd.into()))?;
        Ok(Pd(Arc::new(PdInner { device: self.clone(), id: PdId(id) })))
    }
}

impl Pd {
    /// Its number on the device.
    pub fn id(&self) -> PdId {
        self.0.id
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether two handles are of one domain.
    pub fn same(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({} {})", self.0.device.name(), self.0.id.0)
    }
}
