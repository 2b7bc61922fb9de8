//! Subnet administration: the datagrams by which ports ask the subnet manager about the subnet, and its records.
//!
//! Read IBTA §15.2 (formats, records) and §15.4 (component masks, RMPP) first. [`SaMad`] is the whole MAD; its 200 data bytes
//! are a record, or a segment of a list of records each padded to 8 bytes. [`Components`] compares records by component
//! mask. What a query means, and who may ask it, is the administrator's affair.

pub mod membership;
pub mod path;
pub mod records;

use crate::layout::{Field, get_bits, layout};
use crate::mad::{MAD_LEN, Mad, MadHeader, RmppHeader, class};
use crate::{Gid, Lid, PKey, QKey, Qpn, WireError};

pub use membership::{McMemberRecord, ServiceRecord, join_state};
pub use path::{PathRecord, selector};
pub use records::{
    GuidInfoRecord, InformInfoRecord, LftRecord, LinkRecord, MftRecord, NodeRecord, PKeyTableRecord,
    PortInfoRecord, SlToVlRecord, SmInfoRecord, SwitchInfoRecord, VlArbitrationRecord,
};

/// Version of the subnet administration class.
pub const CLASS_VERSION: u8 = 2;
/// Bytes of data in one MAD.
pub const DATA_LEN: usize = 200;
/// Bytes before them.
pub const HEADER_LEN: usize = MAD_LEN - DATA_LEN;
/// What RMPP counts as header of this class within a segment's payload length (IBTA §15.3.1: SM_Key to component mask).
pub const RMPP_CLASS_HEADER_LEN: usize = 20;

/// Methods of the class besides those of all classes (IBTA §15.2.2).
pub mod method {
    /// All records that match.
    pub const GET_TABLE: u8 = 0x12;
    /// Answer to it, by RMPP.
    pub const GET_TABLE_RESP: u8 = 0x92;
    /// Traces of routes.
    pub const GET_TRACE_TABLE: u8 = 0x13;
    /// Paths between many ports.
    pub const GET_MULTI: u8 = 0x14;
    /// Answer to it, by RMPP.
    pub const GET_MULTI_RESP: u8 = 0x94;
    /// Removes a record.
    pub const DELETE: u8 = 0x15;
    /// Answer to it.
    pub const DELETE_RESP: u8 = 0x95;
}

/// Codes in the high byte of the status (IBTA §15.2.3.1).
pub mod status {
    /// The administrator has no room.
    pub const NO_RESOURCES: u16 = 0x0100;
    /// The request is invalid.
    pub const REQ_INVALID: u16 = 0x0200;
    /// Nothing matches.
    pub const NO_RECORDS: u16 = 0x0300;
    /// More than one matches, and one was asked for.
    pub const TOO_MANY_RECORDS: u16 = 0x0400;
    /// A GID in the request is invalid.
    pub const REQ_INVALID_GID: u16 = 0x0500;
    /// Components that the request needs are missing.
    pub const REQ_INSUFFICIENT_COMPONENTS: u16 = 0x0600;
    /// Not allowed.
    pub const REQ_DENIED: u16 = 0x0700;
}

/// Bit of the attribute modifier of a PortInfoRecord query: a capability mask matches where its own bits are set, whatever
/// the others are (IBTA §15.4.1.2).
pub const MATCH_CAPABILITY_BITS: u32 = 1 << 31;

/// Attributes (IBTA §15.2.5).
pub mod attribute {
    /// What the administrator can do.
    pub const CLASS_PORT_INFO: u16 = 0x0001;
    /// Reports.
    pub const NOTICE: u16 = 0x0002;
    /// Subscription to reports.
    pub const INFORM_INFO: u16 = 0x0003;
    /// Nodes.
    pub const NODE: u16 = 0x0011;
    /// Ports.
    pub const PORT_INFO: u16 = 0x0012;
    /// Service level to virtual lane.
    pub const SL_TO_VL: u16 = 0x0013;
    /// Switches.
    pub const SWITCH_INFO: u16 = 0x0014;
    /// Linear forwarding tables.
    pub const LFT: u16 = 0x0015;
    /// Multicast forwarding tables.
    pub const MFT: u16 = 0x0017;
    /// Subnet managers.
    pub const SM_INFO: u16 = 0x0018;
    /// Links.
    pub const LINK: u16 = 0x0020;
    /// GUID tables.
    pub const GUID_INFO: u16 = 0x0030;
    /// Services.
    pub const SERVICE: u16 = 0x0031;
    /// P_Key tables.
    pub const PKEY_TABLE: u16 = 0x0033;
    /// Paths.
    pub const PATH: u16 = 0x0035;
    /// Arbitration tables.
    pub const VL_ARBITRATION: u16 = 0x0036;
    /// Multicast membership.
    pub const MC_MEMBER: u16 = 0x0038;
    /// Subscriptions.
    pub const INFORM_INFO_RECORD: u16 = 0x00f3;
}

layout! {
    /// A subnet administration MAD (IBTA §15.2.1.1).
    SaMad, 256 bytes {
        /// Common header.
        header: MadHeader, 0, 0..192;
        /// RMPP header; all zeros where it is not in use.
        rmpp: RmppHeader, 24, 0..96;
        /// Shows that the sender is trusted.
        sm_key: u64, 36, 0..64;
        /// Bytes from one record to the next, divided by 8.
        attribute_offset: u16, 44, 0..16;
        /// Reserved.
        reserved: u16, 46, 0..16;
        /// Which components of the record a query compares: bit 0 is its first field.
        component_mask: u64, 48, 0..64;
        /// Records.
        data: Data, 56, 0..1600;
    }
}

/// Data of one MAD.
pub type Data = [u8; DATA_LEN];

impl SaMad {
    /// A request without data.
    pub fn new(method: u8, attribute_id: u16, transaction_id: u64) -> SaMad {
        let header = MadHeader {
            base_version: 1,
            mgmt_class: class::SUBN_ADM,
            class_version: CLASS_VERSION,
            method,
            transaction_id,
            attribute_id,
            ..MadHeader::default()
        };
        SaMad { header, ..SaMad::default() }
    }

    /// A request about `record`, of which the components in `mask` count.
    pub fn with_record<R: Record>(method: u8, record: &R, mask: u64, transaction_id: u64) -> SaMad {
        let mut mad = SaMad::new(method, R::ATTRIBUTE, transaction_id);
        mad.component_mask = mask;
        mad.attribute_offset = attribute_offset(R::LEN);
        record.emit(&mut mad.data);
        mad
    }

    /// A MAD of the subnet administration class.
    ///
    /// Errors: another class.
    pub fn from_mad(mad: &Mad) -> Result<SaMad, WireError> {
        let sa = SaMad::parse(mad)?;
        match sa.header.mgmt_class {
            class::SUBN_ADM => Ok(sa),
            other => Err(WireError::Invalid { what: "SA class", value: u64::from(other) }),
        }
    }

    /// As it travels.
    pub fn to_mad(&self) -> Mad {
        let mut mad = [0; MAD_LEN];
        self.emit(&mut mad);
        mad
    }
}

/// The attribute offset of records of so many bytes: the distance from one to the next, in units of 8 bytes.
pub const fn attribute_offset(record_len: usize) -> u16 {
    record_len.div_ceil(8) as u16
}

/// What a MAD of this class tells about a subnet.
pub trait Record: Sized {
    /// The attribute it is.
    const ATTRIBUTE: u16;
    /// Bytes.
    const LEN: usize;
    /// Reads it from the start of `bytes`.
    ///
    /// # Errors
    /// Fewer than `LEN` bytes.
    fn parse(bytes: &[u8]) -> Result<Self, WireError>;
    /// Writes it at the start of `out`. Panics where that is shorter than `LEN`.
    fn emit(&self, out: &mut [u8]);
    /// The components that a query with `mask` compares.
    fn components(mask: u64) -> Components;
}

macro_rules! record {
    ($($ty:ty => $attribute:expr;)*) => {
        $(impl Record for $ty {
            const ATTRIBUTE: u16 = $attribute;
            const LEN: usize = <$ty>::LEN;
            fn parse(bytes: &[u8]) -> Result<Self, WireError> {
                <$ty>::parse(bytes)
            }
            fn emit(&self, out: &mut [u8]) {
                <$ty>::emit(self, out);
            }
            fn components(mask: u64) -> Components {
                Components::of::<$ty>(mask)
            }
        })*
    };
}

record! {
    ClassPortInfo => attribute::CLASS_PORT_INFO;
    crate::notice::Report => attribute::NOTICE;
    crate::notice::InformInfo => attribute::INFORM_INFO;
    NodeRecord => attribute::NODE;
    PortInfoRecord => attribute::PORT_INFO;
    SlToVlRecord => attribute::SL_TO_VL;
    SwitchInfoRecord => attribute::SWITCH_INFO;
    LftRecord => attribute::LFT;
    MftRecord => attribute::MFT;
    SmInfoRecord => attribute::SM_INFO;
    LinkRecord => attribute::LINK;
    GuidInfoRecord => attribute::GUID_INFO;
    ServiceRecord => attribute::SERVICE;
    PKeyTableRecord => attribute::PKEY_TABLE;
    PathRecord => attribute::PATH;
    VlArbitrationRecord => attribute::VL_ARBITRATION;
    McMemberRecord => attribute::MC_MEMBER;
    InformInfoRecord => attribute::INFORM_INFO_RECORD;
}

/// Bit ranges of a record that a query compares (IBTA §15.4.1.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Components {
    ranges: Vec<(usize, usize)>,
}

impl Components {
    /// Component n of the mask is the n-th elementary field of the record.
    fn of<R: Field>(mask: u64) -> Components {
        let (mut ranges, mut index) = (Vec::new(), 0u32);
        R::leaves(0, 0, &mut |bit, width| {
            if index < 64 && mask >> index & 1 != 0 {
                ranges.push((bit, width));
            }
            index += 1;
        });
        Components { ranges }
    }

    /// Whether two emitted records agree in all of them. False where one is too short.
    pub fn match_bytes(&self, a: &[u8], b: &[u8]) -> bool {
        self.ranges.iter().all(|&(bit, width)| {
            let end = (bit + width).div_ceil(8);
            a.len() >= end && b.len() >= end && same_bits(a, b, bit, width)
        })
    }
}

fn same_bits(a: &[u8], b: &[u8], bit: usize, width: usize) -> bool {
    if bit.is_multiple_of(8) && width.is_multiple_of(8) {
        let range = bit / 8..(bit + width) / 8;
        return a[range.clone()] == b[range];
    }
    // Elementary fields that do not fill bytes are all shorter than 64 bits.
    get_bits(a, bit, width.min(64)) == get_bits(b, bit, width.min(64))
}

layout! {
    /// What a management class can do, and where its traps go (IBTA §13.4.8.1).
    ClassPortInfo, 72 bytes {
        /// Supported MAD base version.
        base_version: u8, 0, 0..8;
        /// Supported class version.
        class_version: u8, 1, 0..8;
        /// Common and class-specific capabilities.
        capability_mask: u16, 2, 0..16;
        /// More class-specific capabilities.
        capability_mask2: u32, 4, 0..27;
        /// Longest time to an answer: 4.096 µs × 2^value.
        resp_time_value: u8, 4, 27..32;
        /// Where requests should go instead.
        redirect_gid: Gid, 8, 0..128;
        /// Traffic class there.
        redirect_traffic_class: u8, 24, 0..8;
        /// Service level there.
        redirect_sl: u8, 25, 0..4;
        /// Flow label there.
        redirect_flow_label: u32, 25, 4..24;
        /// LID there; 0 for "by GID".
        redirect_lid: Lid, 28, 0..16;
        /// P_Key there.
        redirect_pkey: PKey, 30, 0..16;
        /// Reserved.
        reserved: u8, 32, 0..8;
        /// Queue pair there.
        redirect_qpn: Qpn, 33, 0..24;
        /// Q_Key there.
        redirect_qkey: QKey, 36, 0..32;
        /// Where traps go.
        trap_gid: Gid, 40, 0..128;
        /// Traffic class there.
        trap_traffic_class: u8, 56, 0..8;
        /// Service level there.
        trap_sl: u8, 57, 0..4;
        /// Flow label there.
        trap_flow_label: u32, 57, 4..24;
        /// LID there.
        trap_lid: Lid, 60, 0..16;
        /// P_Key there.
        trap_pkey: PKey, 62, 0..16;
        /// Hop limit there.
        trap_hop_limit: u8, 64, 0..8;
        /// Queue pair there.
        trap_qpn: Qpn, 65, 0..24;
        /// Q_Key there.
        trap_qkey: QKey, 68, 0..32;
    }
}

/// Capabilities of subnet administration in ClassPortInfo (IBTA §15.2.5.1).
pub mod capability {
    /// Answers subscriptions of traps.
    pub const GENERATES_TRAPS: u16 = 1 << 0;
    /// Multicast groups are served.
    pub const UD_MULTICAST: u16 = 1 << 9;
    /// A query with [`super::MATCH_CAPABILITY_BITS`] finds ports by bits of their capability mask.
    pub const PORT_INFO_CAPABILITY_MATCH: u16 = 1 << 13;
}

/// Bits of the administrator's second capability mask (IBTA §15.2.5.1).
pub mod capability2 {
    /// Send-only members may make and keep groups.
    pub const SEND_ONLY_FULL_MEMBER: u32 = 1 << 12;
}

#[cfg(test)]
mod tests;
