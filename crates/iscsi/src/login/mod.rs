//! The login phase: stages, authentication, the answers that end it.
//!
//! Read RFC 7143 §6.3 (login), §11.12 and §11.13 (its PDUs), §12.1 (CHAP). [`target`] and [`initiator`] are the two state
//! machines: PDUs in, PDUs out, no clock; how long a login may take is the caller's.

pub mod chap;
pub mod initiator;
mod status;
pub mod target;
#[cfg(test)]
mod tests;

pub use status::LoginStatus;

use crate::keys::Phase;
use crate::name::{IscsiName, Isid};

/// The only version there is (RFC 7143 §11.12.4).
pub const VERSION: u8 = 0;
/// Most data in a login PDU before anything was declared (RFC 7143 §13.12). iSER initiators must be able to send it too.
pub const MAX_LOGIN_DATA: usize = 8192;
/// PDUs of one login; a login of CHAP takes four, one more for each time that text goes on.
pub const MAX_LOGIN_PDUS: u32 = 64;

/// Stages of the login (CSG and NSG).
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// What a session is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKind {
    /// SendTargets only.
    Discovery,
    /// SCSI with this target.
    Normal(IscsiName),
}

impl std::fmt::Display for SessionKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SessionKind::Discovery => f.write_str("discovery"),
            SessionKind::Normal(target) => target.fmt(f),
        }
    }
}

/// Who logged in to what; the session's identity (RFC 7143 §4.4.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The initiator.
    pub initiator: IscsiName,
    /// Its part of the identity.
    pub isid: Isid,
    /// What the session is for.
    pub kind: SessionKind,
}

fn phase_of(stage: u8) -> Phase {
    if stage == SECURITY { Phase::Security } else { Phase::Operational }
}
