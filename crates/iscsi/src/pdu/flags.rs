//! Flags in byte 1 of PDUs, and the stages that login PDUs say there.
//!
//! Read RFC 7143 §11.3.1, §11.4.1, §11.7.1 and §11.12.1–§11.12.3.

use super::header::{DataIn, LoginRequest, LoginResponse, ScsiCommand, ScsiResponse};

impl ScsiCommand {
    /// Flag: data will come in.
    pub const READ: u8 = 0x40;
    /// Flag: data will go out.
    pub const WRITE: u8 = 0x20;
    /// Mask of the task attribute.
    pub const ATTRIBUTE: u8 = 0x07;
}

impl ScsiResponse {
    /// Flags: residual overflow and underflow.
    pub const OVERFLOW: u8 = 0x04;
    /// See [`ScsiResponse::OVERFLOW`].
    pub const UNDERFLOW: u8 = 0x02;
    /// Flags of a bidirectional command's read half.
    pub const READ_OVERFLOW: u8 = 0x10;
    /// See [`ScsiResponse::READ_OVERFLOW`].
    pub const READ_UNDERFLOW: u8 = 0x08;
}

impl DataIn {
    /// Flag: the initiator shall acknowledge (error recovery level 1 and up).
    pub const ACK: u8 = 0x40;
    /// Flag: the status is in this PDU.
    pub const STATUS: u8 = 0x01;
}

impl LoginRequest {
    /// Flag: ready to go to the next stage.
    pub const TRANSIT: u8 = 0x80;

    /// Current stage (CSG).
    pub fn current(&self) -> u8 {
        self.flags >> 2 & 3
    }

    /// Next stage (NSG).
    pub fn next(&self) -> u8 {
        self.flags & 3
    }
}

impl LoginResponse {
    /// Current stage (CSG).
    pub fn current(&self) -> u8 {
        self.flags >> 2 & 3
    }

    /// Next stage (NSG).
    pub fn next(&self) -> u8 {
        self.flags & 3
    }
}
