//! Subnet management packets: the MAD that goes from QP0 to QP0, LID routed or along a directed route.
//!
//! Read IBTA §14.2.1 (formats), §14.2.2 (directed route) and §14.2.5 (attributes) first. [`Smp`] is the whole MAD, the same
//! 256 bytes in both classes; its 64 data bytes are one of the tables in [`attributes`], or a [`crate::notice::Notice`].
//! Who may set what, M_Key checks and the forwarding of directed routes are the agents' affair.

pub mod attributes;
pub mod codes;

use crate::layout::layout;
use crate::mad::{MAD_LEN, Mad, MadHeader, class};
use crate::{Lid, WireError};

pub use attributes::{
    GuidInfo, LedInfo, LinearForwardingTable, MulticastForwardingTable, NodeDescription, NodeInfo, PKeyTable,
    PortInfo, SlToVl, SmInfo, SwitchInfo, VlArbitration, VlWeight,
};

/// Version of both subnet management classes.
pub const CLASS_VERSION: u8 = 1;
/// Bytes of an attribute.
pub const DATA_LEN: usize = 64;
/// The most hops of a directed route (IBTA §14.2.1.2: paths have 64 entries, the first unused).
pub const MAX_HOPS: usize = 63;
/// The direction bit of a directed-route SMP's status: set on the way back.
pub const DIRECTION: u16 = 0x8000;

/// Attributes of the subnet management classes (IBTA §14.2.5).
pub mod attribute {
    /// Event notification.
    pub const NOTICE: u16 = 0x0002;
    /// Name of a node.
    pub const NODE_DESCRIPTION: u16 = 0x0010;
    /// What a node is.
    pub const NODE_INFO: u16 = 0x0011;
    /// What a switch can do.
    pub const SWITCH_INFO: u16 = 0x0012;
    /// GUIDs of a port; the modifier is the block.
    pub const GUID_INFO: u16 = 0x0014;
    /// State of a port; the modifier is the port.
    pub const PORT_INFO: u16 = 0x0015;
    /// Partitions of a port; the modifier is the port (high half, switches) and the block.
    pub const PKEY_TABLE: u16 = 0x0016;
    /// Service level to virtual lane; the modifier is input port << 8 | output port on switches.
    pub const SL_TO_VL: u16 = 0x0017;
    /// Arbitration tables; the modifier is which of four (high half) and the port.
    pub const VL_ARBITRATION: u16 = 0x0018;
    /// Unicast forwarding; the modifier is the block of 64 LIDs.
    pub const LINEAR_FORWARDING_TABLE: u16 = 0x0019;
    /// Multicast forwarding; the modifier is position << 28 | block of 32 LIDs.
    pub const MULTICAST_FORWARDING_TABLE: u16 = 0x001b;
    /// State of a subnet manager.
    pub const SM_INFO: u16 = 0x0020;
    /// The lamp of a port.
    pub const LED_INFO: u16 = 0x0031;
}

layout! {
    /// A subnet management packet (IBTA §14.2.1). What only directed routes use is reserved in the LID-routed class.
    Smp, 256 bytes {
        /// Common header; its status and class-specific fields hold direction and hops on a directed route.
        header: MadHeader, 0, 0..192;
        /// Authorises changes of the node.
        m_key: u64, 24, 0..64;
        /// Directed route: LID where the directed part begins, permissive for none.
        dr_slid: Lid, 32, 0..16;
        /// Directed route: LID where the directed part ends, permissive for none.
        dr_dlid: Lid, 34, 0..16;
        /// Reserved.
        reserved: [u8; 28], 36, 0..224;
        /// The attribute.
        data: [u8; 64], 64, 0..512;
        /// Directed route: port to leave by at each hop, from entry 1 on.
        initial_path: [u8; 64], 128, 0..512;
        /// Directed route: port that each hop came in by, filled on the way.
        return_path: [u8; 64], 192, 0..512;
    }
}

impl Smp {
    /// A request with a LID-routed header.
    pub fn lid_routed(method: u8, attribute_id: u16, modifier: u32, transaction_id: u64) -> Smp {
        let header = MadHeader {
            base_version: 1,
            mgmt_class: class::SUBN_LID_ROUTED,
            class_version: CLASS_VERSION,
            method,
            transaction_id,
            attribute_id,
            attribute_modifier: modifier,
            ..MadHeader::default()
        };
        Smp { header, ..Smp::default() }
    }

    /// A request that leaves its node by `path[0]`, the next by `path[1]`, and so on; both ends by directed route.
    ///
    /// # Panics
    /// If the path has more than [`MAX_HOPS`] entries: paths are the caller's own.
    pub fn directed(method: u8, attribute_id: u16, modifier: u32, transaction_id: u64, path: &[u8]) -> Smp {
        assert!(path.len() <= MAX_HOPS, "a directed route has at most {MAX_HOPS} hops, not {}", path.len());
        let mut smp = Smp::lid_routed(method, attribute_id, modifier, transaction_id);
        smp.header.mgmt_class = class::SUBN_DIRECTED_ROUTE;
        smp.header.class_specific = path.len() as u16;
        (smp.dr_slid, smp.dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        smp
    }

    /// A MAD of either subnet management class.
    ///
    /// Errors: another class.
    pub fn from_mad(mad: &Mad) -> Result<Smp, WireError> {
        let smp = Smp::parse(mad)?;
        match smp.header.mgmt_class {
            class::SUBN_LID_ROUTED | class::SUBN_DIRECTED_ROUTE => Ok(smp),
            other => Err(WireError::Invalid { what: "SMP class", value: u64::from(other) }),
        }
    }

    /// As it travels.
    pub fn to_mad(&self) -> Mad {
        let mut mad = [0; MAD_LEN];
        self.emit(&mut mad);
        mad
    }

    /// Whether this is of the directed-route class.
    pub fn is_directed(&self) -> bool {
        self.header.mgmt_class == class::SUBN_DIRECTED_ROUTE
    }

    /// Whether a directed-route SMP is on its way back.
    pub fn is_returning(&self) -> bool {
        self.header.status & DIRECTION != 0
    }

    /// The status without the direction bit, which only directed routes have.
    pub fn status(&self) -> u16 {
        if self.is_directed() { self.header.status & !DIRECTION } else { self.header.status }
    }

    /// Directed route: where in the path the packet is.
    pub fn hop_pointer(&self) -> u8 {
        (self.header.class_specific >> 8) as u8
    }

    /// Directed route: hops of the path.
    pub fn hop_count(&self) -> u8 {
        self.header.class_specific as u8
    }

    /// Directed route: moves the pointer.
    pub fn set_hop_pointer(&mut self, pointer: u8) {
        self.header.class_specific = u16::from(pointer) << 8 | self.header.class_specific & 0xff;
    }
}

#[cfg(test)]
mod tests;
