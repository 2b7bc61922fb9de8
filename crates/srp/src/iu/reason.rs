//! Reasons of SRP_LOGIN_REJ and SRP_T_LOGOUT, in words. SRP r16a tables of §6.6 and §6.8.

use std::fmt;

/// Why a login was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u32);

impl RejectReason {
    /// No more is said.
    pub const UNABLE_TO_ESTABLISH: Self = Self(0x0001_0000);
    /// Nothing is left for another channel.
    pub const INSUFFICIENT_RESOURCES: Self = Self(0x0001_0001);
    /// The initiator asks for longer information units than there is room for.
    pub const IU_LENGTH_TOO_LARGE: Self = Self(0x0001_0002);
    /// No such target port, or not for this initiator.
    pub const UNABLE_TO_ASSOCIATE: Self = Self(0x0001_0003);
    /// A buffer descriptor format is not known.
    pub const UNSUPPORTED_FORMAT: Self = Self(0x0001_0004);
    /// The multi-channel action is not supported.
    pub const MULTI_CHANNEL_UNSUPPORTED: Self = Self(0x0001_0005);
    /// This initiator has all the channels it may have.
    pub const CHANNEL_LIMIT: Self = Self(0x0001_0006);

    /// The words for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UNABLE_TO_ESTABLISH => "unable to establish the RDMA channel",
            Self::INSUFFICIENT_RESOURCES => "insufficient RDMA channel resources",
            Self::IU_LENGTH_TOO_LARGE => "requested initiator-to-target IU length too large",
            Self::UNABLE_TO_ASSOCIATE => "unable to associate the RDMA channel with this I_T nexus",
            Self::UNSUPPORTED_FORMAT => "a requested buffer descriptor format is not supported",
            Self::MULTI_CHANNEL_UNSUPPORTED => "multiple RDMA channels for an I_T nexus are not supported",
            Self::CHANNEL_LIMIT => "the limit of RDMA channels for this initiator is reached",
            _ => "a reason that the standard does not know",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SRP_LOGIN_REJ reason {:#010x})", self.as_str(), self.0)
    }
}

/// Why a target ends a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogoutReason(pub u32);

impl LogoutReason {
    /// No more is said.
    pub const NONE: Self = Self(0);
    /// The channel was not used.
    pub const INACTIVE: Self = Self(1);
    /// An information unit of no known type came.
    pub const INVALID_TYPE: Self = Self(2);
    /// A response came to nothing that was asked.
    pub const SPURIOUS_RESPONSE: Self = Self(3);
    /// A new login takes the channel's place.
    pub const MULTI_CHANNEL_ACTION: Self = Self(4);
    /// Data-out descriptor format.
    pub const DATA_OUT_FORMAT: Self = Self(5);
    /// Data-in descriptor format.
    pub const DATA_IN_FORMAT: Self = Self(6);
    /// An information unit too short for its type.
    pub const INVALID_LENGTH: Self = Self(8);

    /// The words for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NONE => "no reason specified",
            Self::INACTIVE => "inactive RDMA channel, its resources are reclaimed",
            Self::INVALID_TYPE => "invalid information unit type received",
            Self::SPURIOUS_RESPONSE => "response received with no corresponding request",
            Self::MULTI_CHANNEL_ACTION => "disconnected by the multi-channel action of a new login",
            Self::DATA_OUT_FORMAT => "unsupported data-out buffer descriptor format",
            Self::DATA_IN_FORMAT => "unsupported data-in buffer descriptor format",
            Self::INVALID_LENGTH => "invalid length for the information unit's type",
            _ => "a reason that the standard does not know",
        }
    }
}

impl fmt::Display for LogoutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SRP_T_LOGOUT reason {:#x})", self.as_str(), self.0)
    }
}
