//! Management datagrams: the common header, its codes, and the header of reliable multi-packet ones.
//!
//! Read IBTA §13.4 (MADs) and §13.6.2 (RMPP) first. A MAD is always 256 bytes; what follows the header is its class's affair
//! ([`crate::cm`] for connection management). No transaction state here.

use crate::layout::layout;

/// A management datagram as it travels.
pub type Mad = [u8; MAD_LEN];

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;

layout! {
    /// The header that all MADs begin with (IBTA §13.4.2).
    MadHeader, 24 bytes {
        /// Version of this header: 1.
        base_version: u8, 0, 0..8;
        /// See [`class`].
        mgmt_class: u8, 1, 0..8;
        /// Version of the class.
        class_version: u8, 2, 0..8;
        /// Response bit and method; see [`method`].
        method: u8, 3, 0..8;
        /// See [`status`].
        status: u16, 4, 0..16;
        /// Hop pointer and count in directed-route SMPs.
        class_specific: u16, 6, 0..16;
        /// Ties responses to requests, and the messages of one CM exchange together.
        transaction_id: u64, 8, 0..64;
        /// What the method is applied to; for the CM, which message it is.
        attribute_id: u16, 16, 0..16;
        /// Reserved.
        reserved: u16, 18, 0..16;
        /// Narrows the attribute down.
        attribute_modifier: u32, 20, 0..32;
    }
}

/// Management classes (IBTA §13.4.4).
pub mod class {
    /// Subnet management, LID routed.
    pub const SUBN_LID_ROUTED: u8 = 0x01;
    /// Subnet management, directed route.
    pub const SUBN_DIRECTED_ROUTE: u8 = 0x81;
    /// Subnet administration.
    pub const SUBN_ADM: u8 = 0x03;
    /// Performance management.
    pub const PERF_MGT: u8 = 0x04;
    /// Baseboard management.
    pub const BM: u8 = 0x05;
    /// Device management.
    pub const DEV_MGT: u8 = 0x06;
    /// Communication management.
    pub const COM_MGT: u8 = 0x07;
    /// SNMP tunnelling.
    pub const SNMP: u8 = 0x08;
    /// First class of vendors with RMPP and OUI.
    pub const VENDOR_RANGE2_START: u8 = 0x30;
    /// Last class of vendors with RMPP and OUI.
    pub const VENDOR_RANGE2_END: u8 = 0x4f;
    /// Congestion management.
    pub const CONG_MGT: u8 = 0x21;
}

/// Methods (IBTA §13.4.5). The high bit marks a response.
pub mod method {
    /// Read an attribute.
    pub const GET: u8 = 0x01;
    /// Write an attribute.
    pub const SET: u8 = 0x02;
    /// A datagram that is no part of a request and response.
    pub const SEND: u8 = 0x03;
    /// An event notification.
    pub const TRAP: u8 = 0x05;
    /// Forwarded event notification.
    pub const REPORT: u8 = 0x06;
    /// Stops a trap from repeating.
    pub const TRAP_REPRESS: u8 = 0x07;
    /// Answer to GET and SET.
    pub const GET_RESP: u8 = 0x81;
    /// Answer to REPORT.
    pub const REPORT_RESP: u8 = 0x86;
    /// Set in responses.
    pub const RESPONSE_BIT: u8 = 0x80;
}

/// Bits of the status field that all classes share (IBTA §13.4.7).
pub mod status {
    /// Discarded for the moment: try again later.
    pub const BUSY: u16 = 0x0001;
    /// Ask elsewhere; the response says where.
    pub const REDIRECT: u16 = 0x0002;
    /// Bits 2 to 4: why the request was refused.
    pub const INVALID_MASK: u16 = 0x001c;
    /// Class or base version not supported.
    pub const BAD_VERSION: u16 = 0x0004;
    /// Method not supported.
    pub const UNSUPPORTED_METHOD: u16 = 0x0008;
    /// Method not supported for this attribute.
    pub const UNSUPPORTED_METHOD_ATTRIBUTE: u16 = 0x000c;
    /// A field of the attribute or its modifier has a value that is not allowed.
    pub const INVALID_FIELD: u16 = 0x001c;
}

/// Attributes that classes share (IBTA §13.4.8).
pub mod attribute {
    /// What a management class can do.
    pub const CLASS_PORT_INFO: u16 = 0x0001;
}

layout! {
    /// Reliable multi-packet protocol header, which follows the MAD header in classes that use it (IBTA §13.6.2.1).
    RmppHeader, 12 bytes {
        /// 1 where RMPP is in use.
        version: u8, 0, 0..8;
        /// See [`rmpp`].
        rmpp_type: u8, 1, 0..8;
        /// How long the responder may take: 5-bit code, 31 for none.
        response_time: u8, 2, 0..5;
        /// Last packet of the transfer.
        last: bool, 2, 5..6;
        /// First packet of the transfer.
        first: bool, 2, 6..7;
        /// RMPP is active in this MAD.
        active: bool, 2, 7..8;
        /// Why a transfer was stopped or aborted; 0 in others.
        status: u8, 3, 0..8;
        /// DATA and ACK: segment number.
        data1: u32, 4, 0..32;
        /// DATA: payload length; ACK: new window, last.
        data2: u32, 8, 0..32;
    }
}

/// Types of RMPP packets.
pub mod rmpp {
    /// One segment.
    pub const DATA: u8 = 1;
    /// Acknowledges segments.
    pub const ACK: u8 = 2;
    /// The receiver has run out of resources.
    pub const STOP: u8 = 3;
    /// The transfer has failed.
    pub const ABORT: u8 = 4;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::assert_complete;

    #[test]
    fn tables_are_complete() {
        assert_complete("MadHeader", MadHeader::FIELDS, MadHeader::LEN);
        assert_complete("RmppHeader", RmppHeader::FIELDS, RmppHeader::LEN);
    }

    #[test]
    fn rmpp_flags_as_the_standard_numbers_them() {
        // IBTA §13.6.2.1: Active 1, First 2, Last 4, under five bits of response time.
        let h = RmppHeader::parse(&[1, 1, 31 << 3 | 1 | 2, 0, 0, 0, 0, 1, 0, 0, 0, 220]).unwrap();
        assert_eq!((h.active, h.first, h.last, h.response_time), (true, true, false, 31));
        assert_eq!((h.rmpp_type, h.data1, h.data2), (rmpp::DATA, 1, 220));
    }
}
