//! One I_T nexus at one logical unit: what SAM-5 calls an I_T_L nexus.

use crate::reservations::NexusName;
use crate::unit_attention::UnitAttentions;

/// What a logical unit knows of a nexus.
#[derive(Debug)]
pub(crate) struct Path {
    /// Number of the nexus, which no other has in this process.
    pub(crate) nexus: u64,
    /// Its name, which a later nexus may have again.
    pub(crate) name: NexusName,
    /// What it should be told.
    pub(crate) attentions: UnitAttentions,
}
