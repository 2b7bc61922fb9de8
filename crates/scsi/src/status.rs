//! Status codes of a command. SAM-5 §5.3.1.
//!
//! GOOD, CONDITION MET, CHECK CONDITION and the rest travel as one byte in every transport protocol's response.

use std::fmt;

/// A status code, as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u8);

impl Status {
    /// The command succeeded.
    pub const GOOD: Self = Self(0x00);
    /// Sense data says what happened.
    pub const CHECK_CONDITION: Self = Self(0x02);
    /// What PRE-FETCH was asked to fetch fits the cache.
    pub const CONDITION_MET: Self = Self(0x04);
    /// The logical unit cannot take the command now.
    pub const BUSY: Self = Self(0x08);
    /// A reservation of another I_T nexus forbids the command.
    pub const RESERVATION_CONFLICT: Self = Self(0x18);
    /// The task set takes no more commands.
    pub const TASK_SET_FULL: Self = Self(0x28);
    /// An auto contingent allegiance is in effect. Never sent from here: NORMACA is 0.
    pub const ACA_ACTIVE: Self = Self(0x30);
    /// Another I_T nexus aborted the command, and TAS is 1.
    pub const TASK_ABORTED: Self = Self(0x40);

    /// True for the two codes that say that a command did what it was asked.
    pub fn is_success(self) -> bool {
        matches!(self, Self::GOOD | Self::CONDITION_MET)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match *self {
            Self::GOOD => "GOOD",
            Self::CHECK_CONDITION => "CHECK CONDITION",
            Self::CONDITION_MET => "CONDITION MET",
            Self::BUSY => "BUSY",
            Self::RESERVATION_CONFLICT => "RESERVATION CONFLICT",
            Self::TASK_SET_FULL => "TASK SET FULL",
            Self::ACA_ACTIVE => "ACA ACTIVE",
            Self::TASK_ABORTED => "TASK ABORTED",
            Self(other) => return write!(f, "status {other:#04x}"),
        };
        f.write_str(words)
    }
}
