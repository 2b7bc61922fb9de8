//! Fabrics commands (opcode 7Fh): Connect, Property Get and Set. NVMe-oF 1.1 §3.
//!
//! They share the submission queue entry's first 40 bytes and put their own fields in the last 24; the command type is in
//! byte 4. Disconnect and the authentication commands are known by name only.

use super::command::{AdminOpcode, Cqe, FLAGS_SGL, Sqe};
use super::layout::Field;
use super::sgl::Sgl;

/// Property Set.
pub const PROPERTY_SET: u8 = 0x00;
/// Connect.
pub const CONNECT: u8 = 0x01;
/// Property Get.
pub const PROPERTY_GET: u8 = 0x04;
/// Authentication Send.
pub const AUTHENTICATION_SEND: u8 = 0x05;
/// Authentication Receive.
pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
/// Disconnect.
pub const DISCONNECT: u8 = 0x08;

/// The standard's name of a fabrics command type.
pub fn name(fctype: u8) -> &'static str {
    match fctype {
        PROPERTY_SET => "Property Set",
        CONNECT => "Connect",
        PROPERTY_GET => "Property Get",
        AUTHENTICATION_SEND => "Authentication Send",
        AUTHENTICATION_RECEIVE => "Authentication Receive",
        DISCONNECT => "Disconnect",
        _ => "unknown fabrics command",
    }
}

impl Sqe {
    /// The fabrics command type (byte 4).
    pub fn fctype(&self) -> u8 {
        self.nsid as u8
    }
}

layout! {
    /// Connect. NVMe-oF 1.1 §3.3.
    #[derive(Copy)]
    pub struct Connect[64] {
        /// 7Fh.
        opcode: u8 = 0,
        /// PSDT and FUSE.
        flags: u8 = 1,
        /// Command identifier.
        cid: u16 = 2,
        /// 01h.
        fctype: u8 = 4,
        /// Where the 1024 bytes of [`ConnectData`] are.
        sgl: Sgl = 24,
        /// Record format: 0.
        recfmt: u16 = 40,
        /// Queue identifier: 0 is the admin queue.
        qid: u16 = 42,
        /// Submission queue size, 0-based.
        sqsize: u16 = 44,
        /// Connect attributes, `CATTR_*`.
        cattr: u8 = 46,
        /// Keep alive timeout in milliseconds; 0 is none.
        kato: u32 = 48,
    }
}

/// Offsets of Connect's fields, for the Invalid Parameter Offset of its response.
pub mod connect_at {
    /// RECFMT in the command.
    pub const RECFMT: u16 = 40;
    /// QID in the command.
    pub const QID: u16 = 42;
    /// SQSIZE in the command.
    pub const SQSIZE: u16 = 44;
    /// HOSTID in the data.
    pub const DATA_HOSTID: u16 = 0;
    /// CNTLID in the data.
    pub const DATA_CNTLID: u16 = 16;
    /// SUBNQN in the data.
    pub const DATA_SUBNQN: u16 = 256;
    /// HOSTNQN in the data.
    pub const DATA_HOSTNQN: u16 = 512;
}

/// CATTR bit 2: SQ flow control is disabled, and SQHD reads FFFFh.
pub const CATTR_DISABLE_SQFLOW: u8 = 1 << 2;

/// CNTLID of Connect data: allocate any controller (dynamic model).
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// CNTLID of Connect data: any controller (static model).
pub const CNTLID_STATIC_ANY: u16 = 0xfffe;

layout! {
    /// The data of Connect. NVMe-oF 1.1 §3.3, figure 20.
    pub struct ConnectData[1024] {
        /// Host identifier, a UUID.
        hostid: [u8; 16] = 0,
        /// Controller identifier, or FFFFh for any.
        cntlid: u16 = 16,
        /// Subsystem NQN.
        subnqn: [u8; 256] = 256,
        /// Host NQN.
        hostnqn: [u8; 256] = 512,
    }
}

layout! {
    /// Property Get. NVMe-oF 1.1 §3.4.
    #[derive(Copy)]
    pub struct PropertyGet[64] {
        /// 7Fh.
        opcode: u8 = 0,
        /// PSDT and FUSE.
        flags: u8 = 1,
        /// Command identifier.
        cid: u16 = 2,
        /// 04h.
        fctype: u8 = 4,
        /// Not used.
        sgl: Sgl = 24,
        /// Bits 2:0: 0 for 4 bytes, 1 for 8 bytes.
        attrib: u8 = 40,
        /// Offset of the property.
        offset: u32 = 44,
    }
}

layout! {
    /// Property Set. NVMe-oF 1.1 §3.5.
    #[derive(Copy)]
    pub struct PropertySet[64] {
        /// 7Fh.
        opcode: u8 = 0,
        /// PSDT and FUSE.
        flags: u8 = 1,
        /// Command identifier.
        cid: u16 = 2,
        /// 00h.
        fctype: u8 = 4,
        /// Not used.
        sgl: Sgl = 24,
        /// Bits 2:0: 0 for 4 bytes, 1 for 8 bytes.
        attrib: u8 = 40,
        /// Offset of the property.
        offset: u32 = 44,
        /// Value to set.
        value: u64 = 48,
    }
}

macro_rules! from_sqe {
    ($($ty:ident)*) => {$(
        impl $ty {
            /// Reads the command from an entry whose type says that it is one.
            pub fn from_sqe(sqe: &Sqe) -> Self {
                Self::get(&sqe.emit())
            }

            /// The command as an entry.
            pub fn to_sqe(&self) -> Sqe {
                Sqe::get(&self.emit())
            }
        }
    )*};
}
from_sqe!(Connect PropertyGet PropertySet);

impl Connect {
    /// A Connect of `qid` with a queue of `sqsize` + 1 entries.
    pub fn new(qid: u16, sqsize: u16, kato_ms: u32) -> Self {
        let (opcode, fctype) = (AdminOpcode::FABRICS.0, CONNECT);
        Self {
            opcode,
            flags: FLAGS_SGL,
            fctype,
            qid,
            sqsize,
            kato: kato_ms,
            sgl: Sgl::none(),
            ..Self::default()
        }
    }
}

impl PropertyGet {
    /// A read of the property at `offset`, of 8 bytes if `wide`.
    pub fn new(offset: u32, wide: bool) -> Self {
        let (opcode, fctype, attrib) = (AdminOpcode::FABRICS.0, PROPERTY_GET, u8::from(wide));
        Self { opcode, flags: FLAGS_SGL, fctype, attrib, offset, sgl: Sgl::none(), ..Self::default() }
    }
}

impl PropertySet {
    /// A write of the 4-byte property at `offset`.
    pub fn new(offset: u32, value: u32) -> Self {
        let (opcode, fctype, value) = (AdminOpcode::FABRICS.0, PROPERTY_SET, u64::from(value));
        Self { opcode, flags: FLAGS_SGL, fctype, offset, value, sgl: Sgl::none(), ..Self::default() }
    }
}

/// What Connect Invalid Parameters points at: dword 0 of the response. NVMe-oF 1.1 §3.3, figure 22.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidParameter {
    /// The offset is into the data (IATTR bit 0), not the command.
    pub in_data: bool,
    /// Byte offset (IPO).
    pub offset: u16,
}

impl InvalidParameter {
    /// A field of the command.
    pub const fn command(offset: u16) -> Self {
        Self { in_data: false, offset }
    }

    /// A field of the data.
    pub const fn data(offset: u16) -> Self {
        Self { in_data: true, offset }
    }

    /// As dword 0.
    pub fn dword0(self) -> u32 {
        u32::from(self.offset) | u32::from(self.in_data) << 16
    }

    /// From a response.
    pub fn from_cqe(cqe: &Cqe) -> Self {
        Self::from_dword0(cqe.dword0())
    }

    /// From dword 0.
    pub fn from_dword0(dword0: u32) -> Self {
        Self { in_data: dword0 & 1 << 16 != 0, offset: dword0 as u16 }
    }

    /// Name of the field.
    pub fn field(self) -> &'static str {
        match (self.in_data, self.offset) {
            (false, connect_at::RECFMT) => "RECFMT",
            (false, connect_at::QID) => "QID",
            (false, connect_at::SQSIZE) => "SQSIZE",
            (true, connect_at::DATA_HOSTID) => "HOSTID",
            (true, connect_at::DATA_CNTLID) => "CNTLID",
            (true, connect_at::DATA_SUBNQN) => "SUBNQN",
            (true, connect_at::DATA_HOSTNQN) => "HOSTNQN",
            (false, _) => "a command field",
            (true, _) => "a data field",
        }
    }
}

impl std::fmt::Display for InvalidParameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.in_data { "data" } else { "command" };
        write!(f, "{} at offset {} of the {place}", self.field(), self.offset)
    }
}
