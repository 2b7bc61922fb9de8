//! The private data that RDMA CM messages carry for NVMe. NVMe RDMA Transport 1.0 §2.2 (NVMe-oF 1.0 §7.3.6).
//!
//! The host names the queue and its sizes in the request; the controller answers with its receive queue size or with a
//! reason for refusing. Bytes that the standard reserves are kept, so frames re-emit exactly.

use super::PduError;

layout! {
    /// In the connect request.
    #[derive(Copy)]
    pub struct CmRequest[32] {
        /// Record format: 0.
        recfmt: u16 = 0,
        /// Queue identifier.
        qid: u16 = 2,
        /// Host receive queue size, 1-based: how many responses the host can take.
        hrqsize: u16 = 4,
        /// Host send queue size, 0-based: equals SQSIZE of the Connect that follows.
        hsqsize: u16 = 6,
        /// Controller identifier of an I/O queue; newer hosts set it.
        cntlid: u16 = 8,
        /// Reserved.
        reserved: [u8; 22] = 10,
    }
}

layout! {
    /// In the accept.
    #[derive(Copy)]
    pub struct CmAccept[32] {
        /// Record format: 0.
        recfmt: u16 = 0,
        /// Controller receive queue size, 1-based: how many commands the controller can take.
        crqsize: u16 = 2,
        /// Reserved.
        reserved: [u8; 28] = 4,
    }
}

layout! {
    /// In the reject.
    #[derive(Copy)]
    pub struct CmReject[4] {
        /// Record format: 0.
        recfmt: u16 = 0,
        /// Status, [`CmStatus`].
        sts: u16 = 2,
    }
}

/// Why a controller refused an RDMA connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CmStatus(pub u16);

impl CmStatus {
    /// The private data is too short.
    pub const INVALID_LENGTH: Self = Self(0x01);
    /// Unknown RECFMT.
    pub const INVALID_RECFMT: Self = Self(0x02);
    /// The queue identifier is not allowed.
    pub const INVALID_QID: Self = Self(0x03);
    /// HSQSIZE is not allowed.
    pub const INVALID_HSQSIZE: Self = Self(0x04);
    /// HRQSIZE is not allowed.
    pub const INVALID_HRQSIZE: Self = Self(0x05);
    /// No resources.
    pub const NO_RESOURCES: Self = Self(0x06);
    /// The IRD is not allowed.
    pub const INVALID_IRD: Self = Self(0x07);
    /// The ORD is not allowed.
    pub const INVALID_ORD: Self = Self(0x08);

    /// The standard's wording.
    pub fn name(self) -> &'static str {
        match self.0 {
            0x01 => "Invalid Private Data Length",
            0x02 => "Invalid RECFMT",
            0x03 => "Invalid QID",
            0x04 => "Invalid HSQSIZE",
            0x05 => "Invalid HRQSIZE",
            0x06 => "No Resources",
            0x07 => "Invalid IRD",
            0x08 => "Invalid ORD",
            _ => "unknown status",
        }
    }

    /// The private data of a reject with this status.
    pub fn to_reject(self) -> [u8; 4] {
        CmReject { recfmt: 0, sts: self.0 }.emit()
    }
}

impl std::fmt::Display for CmStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:#04x})", self.name(), self.0)
    }
}

impl CmRequest {
    /// Reads a request's private data and checks what does not depend on the controller's limits.
    pub fn check(bytes: &[u8]) -> Result<Self, CmStatus> {
        let request = Self::parse(bytes).map_err(|_| CmStatus::INVALID_LENGTH)?;
        if request.recfmt != 0 {
            return Err(CmStatus::INVALID_RECFMT);
        }
        // A queue of one entry could never hold a command; NVMe-oF 1.1 §3.3: SQSIZE 0 is invalid.
        if request.hsqsize == 0 {
            return Err(CmStatus::INVALID_HSQSIZE);
        }
        if request.hrqsize == 0 {
            return Err(CmStatus::INVALID_HRQSIZE);
        }
        Ok(request)
    }
}

impl CmReject {
    /// The status in a reject's private data, which the CM pads with zeroes.
    pub fn status(bytes: &[u8]) -> Result<CmStatus, PduError> {
        Ok(CmStatus(Self::parse(bytes)?.sts))
    }
}
