//! Target ports and target port groups: asymmetric logical unit access. SPC-4 §5.11, §6.37.
//!
//! A port belongs to one group; a group has one state, which the program sets (implicit ALUA, TPGS 01b). Ports of every
//! protocol are numbered in one space, so that an initiator sees all paths to a logical unit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::sense::{Asc, Sense, SenseKey};
use crate::transport_id::Protocol;

/// Most ports of a device: bounds REPORT TARGET PORT GROUPS' data.
pub const MAX_PORTS: usize = 1024;

/// Asymmetric access state of a target port group. SPC-4 table 290.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessState {
    /// Active, and the path to prefer.
    ActiveOptimized,
    /// Active.
    ActiveNonOptimized,
    /// Commands that touch the medium are refused.
    Standby,
    /// Nearly all commands are refused.
    Unavailable,
    /// On the way to another state.
    Transitioning,
}

impl AccessState {
    /// The code in REPORT TARGET PORT GROUPS.
    pub const fn code(self) -> u8 {
        match self {
            Self::ActiveOptimized => 0x0,
            Self::ActiveNonOptimized => 0x1,
            Self::Standby => 0x2,
            Self::Unavailable => 0x3,
            Self::Transitioning => 0xf,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            0x1 => Self::ActiveNonOptimized,
            0x2 => Self::Standby,
            0x3 => Self::Unavailable,
            0xf => Self::Transitioning,
            _ => Self::ActiveOptimized,
        }
    }

    /// Why a command that needs an active port is refused. SPC-4 §5.11.2.
    pub(crate) fn refusal(self) -> Option<Sense> {
        let asc = match self {
            Self::ActiveOptimized | Self::ActiveNonOptimized => return None,
            Self::Standby => Asc::PORT_IN_STANDBY,
            Self::Unavailable => Asc::PORT_UNAVAILABLE,
            Self::Transitioning => Asc::ASYMMETRIC_TRANSITION,
        };
        Some(Sense::new(SenseKey::NOT_READY, asc))
    }
}

/// A target port group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: u16,
    state: AtomicU8,
}

impl Group {
    pub(crate) fn new(id: u16) -> Arc<Self> {
        Arc::new(Self { id, state: AtomicU8::new(AccessState::ActiveOptimized.code()) })
    }

    pub(crate) fn state(&self) -> AccessState {
        AccessState::from_code(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: AccessState) {
        self.state.store(state.code(), Ordering::Release);
    }
}

/// A target port, as it is added to a device.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Its protocol.
    pub protocol: Protocol,
    /// SCSI name string of the port (SPC-4 §7.8.6.10): for iSCSI `iqn…,t,0x0001`, for SRP its identifier as text.
    pub name: String,
    /// SCSI name string of the device that it belongs to, for iSCSI the IQN. Reported in VPD page 83h where not empty.
    pub device_name: String,
    /// Target port group.
    pub group: u16,
}

/// A target port.
#[derive(Debug)]
pub struct Port {
    /// Relative target port identifier, from 1.
    pub relative_id: u16,
    /// As configured.
    pub config: PortConfig,
    pub(crate) group: Arc<Group>,
}
