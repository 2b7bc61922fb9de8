//! Notices: what a trap and a forwarded report tell, and the subscription to them.
//!
//! Read IBTA §13.4.8.2 (Notice), §13.4.8.3 (InformInfo) and §14.2.5.1 (the traps of subnet management) first. A subnet
//! management trap carries the first 64 bytes only; the report of subnet administration adds the issuer's GID.

use crate::layout::layout;
use crate::{Gid, Guid, Lid};

layout! {
    /// The first 64 bytes of a notice, as in a trap (IBTA §13.4.8.2).
    Notice, 64 bytes {
        /// Numbers are the standard's, not a vendor's.
        is_generic: bool, 0, 0..1;
        /// See [`kind`].
        notice_type: u8, 0, 1..8;
        /// Kind of the node that tells it, see [`crate::smp::codes::node_type`]; a class manager is 4. Vendor's OUI if not
        /// generic.
        producer_type: u32, 1, 0..24;
        /// See [`trap`].
        trap_number: u16, 4, 0..16;
        /// LID of the port that tells it.
        issuer_lid: Lid, 6, 0..16;
        /// Alternates.
        toggle: bool, 8, 0..1;
        /// Notices that wait behind this one.
        count: u16, 8, 1..16;
        /// What it is about; see the `trap_` tables.
        details: [u8; 54], 10, 0..432;
    }
}

layout! {
    /// A whole notice, as in a report (IBTA §13.4.8.2).
    Report, 80 bytes {
        /// What happened.
        notice: Notice, 0, 0..512;
        /// GID of the port that tells it.
        issuer_gid: Gid, 64, 0..128;
    }
}

/// Types of notices.
pub mod kind {
    /// Fatal.
    pub const FATAL: u8 = 0;
    /// Urgent.
    pub const URGENT: u8 = 1;
    /// Security.
    pub const SECURITY: u8 = 2;
    /// Subnet management.
    pub const SUBNET_MANAGEMENT: u8 = 3;
    /// Informational.
    pub const INFORMATIONAL: u8 = 4;
    /// In a subscription: all of them.
    pub const ALL: u16 = 0xffff;
}

/// Producers that are no node type.
pub mod producer {
    /// A class manager, such as the subnet manager.
    pub const CLASS_MANAGER: u32 = 4;
    /// In a subscription: all of them.
    pub const ALL: u32 = 0x00ff_ffff;
}

/// Numbers of traps (IBTA §14.2.5.1, §15.2.5.2).
pub mod trap {
    /// A GID is reachable; from the subnet manager.
    pub const GID_IN_SERVICE: u16 = 64;
    /// A GID is no longer reachable; from the subnet manager.
    pub const GID_OUT_OF_SERVICE: u16 = 65;
    /// A multicast group was made.
    pub const MULTICAST_GROUP_CREATED: u16 = 66;
    /// A multicast group is gone.
    pub const MULTICAST_GROUP_DELETED: u16 = 67;
    /// A port of a switch changed its state.
    pub const LINK_STATE_CHANGED: u16 = 128;
    /// Local link integrity threshold.
    pub const LINK_INTEGRITY: u16 = 129;
    /// Buffer overrun threshold.
    pub const BUFFER_OVERRUN: u16 = 130;
    /// Flow control watchdog.
    pub const FLOW_CONTROL_UPDATE: u16 = 131;
    /// Capabilities, description or another local thing changed.
    pub const CAPABILITIES_CHANGED: u16 = 144;
    /// System image GUID changed.
    pub const SYSTEM_IMAGE_GUID_CHANGED: u16 = 145;
    /// Wrong M_Key.
    pub const BAD_M_KEY: u16 = 256;
    /// Wrong P_Key.
    pub const BAD_P_KEY: u16 = 257;
    /// Wrong Q_Key.
    pub const BAD_Q_KEY: u16 = 258;
    /// Wrong P_Key at a switch.
    pub const SWITCH_BAD_P_KEY: u16 = 259;
    /// In a subscription: all of them.
    pub const ALL: u16 = 0xffff;
}

layout! {
    /// Details of traps 64 to 67.
    TrapGid, 22 bytes {
        /// Reserved.
        reserved: [u8; 6], 0, 0..48;
        /// The port's or the group's GID.
        gid: Gid, 6, 0..128;
    }
}

layout! {
    /// Details of trap 128.
    TrapLinkState, 2 bytes {
        /// The switch.
        lid: Lid, 0, 0..16;
    }
}

layout! {
    /// Details of traps 129 to 131.
    TrapPort, 5 bytes {
        /// Reserved.
        reserved: u16, 0, 0..16;
        /// The node.
        lid: Lid, 2, 0..16;
        /// Its port.
        port: u8, 4, 0..8;
    }
}

layout! {
    /// Details of trap 144.
    TrapCapabilities, 16 bytes {
        /// Reserved.
        reserved: u16, 0, 0..16;
        /// The port.
        lid: Lid, 2, 0..16;
        /// Reserved.
        reserved2: u16, 4, 0..15;
        /// One of the changes below, not the capability mask.
        other_local_changes: bool, 5, 7..8;
        /// New capability mask.
        capability_mask: u32, 6, 0..32;
        /// Reserved.
        reserved3: u16, 10, 0..13;
        /// Enabled link speeds changed.
        link_speed_enabled: bool, 11, 5..6;
        /// Enabled link widths changed.
        link_width_enabled: bool, 11, 6..7;
        /// Node description changed.
        node_description: bool, 11, 7..8;
        /// New second capability mask.
        capability_mask2: u16, 12, 0..16;
        /// Reserved.
        reserved4: u16, 14, 0..16;
    }
}

layout! {
    /// Details of trap 145.
    TrapSystemImage, 14 bytes {
        /// Reserved.
        reserved: u16, 0, 0..16;
        /// The port.
        lid: Lid, 2, 0..16;
        /// Reserved.
        reserved2: u16, 4, 0..16;
        /// New GUID.
        system_image_guid: Guid, 6, 0..64;
    }
}

layout! {
    /// Details of trap 256.
    TrapMKey, 52 bytes {
        /// Reserved.
        reserved: u16, 0, 0..16;
        /// The port that refused.
        lid: Lid, 2, 0..16;
        /// Of the request.
        dr_slid: Lid, 4, 0..16;
        /// Of the request.
        method: u8, 6, 0..8;
        /// Reserved.
        reserved2: u8, 7, 0..8;
        /// Of the request.
        attribute_id: u16, 8, 0..16;
        /// Of the request.
        attribute_modifier: u32, 10, 0..32;
        /// The wrong key.
        m_key: u64, 14, 0..64;
        /// Reserved.
        reserved3: u8, 22, 0..8;
        /// The request came by directed route.
        directed: bool, 23, 0..1;
        /// The path was longer than fits here.
        truncated: bool, 23, 1..2;
        /// Hops of the path.
        hop_count: u8, 23, 2..8;
        /// The way it came.
        return_path: [u8; 28], 24, 0..224;
    }
}

layout! {
    /// Details of traps 257 and 258.
    TrapKey, 50 bytes {
        /// Reserved.
        reserved: u16, 0, 0..16;
        /// Sender.
        lid1: Lid, 2, 0..16;
        /// Receiver.
        lid2: Lid, 4, 0..16;
        /// The wrong P_Key (low half) or Q_Key.
        key: u32, 6, 0..32;
        /// Service level of the packet.
        sl: u8, 10, 0..4;
        /// Reserved.
        reserved2: u8, 10, 4..8;
        /// Sender's queue pair.
        qp1: crate::Qpn, 11, 0..24;
        /// Reserved.
        reserved3: u8, 14, 0..8;
        /// Receiver's queue pair.
        qp2: crate::Qpn, 15, 0..24;
        /// Sender.
        gid1: Gid, 18, 0..128;
        /// Receiver.
        gid2: Gid, 34, 0..128;
    }
}

layout! {
    /// Details of trap 259.
    TrapSwitchKey, 51 bytes {
        /// Which of the fields say something; see [`switch_key`].
        data_valid: u16, 0, 0..16;
        /// Sender.
        lid1: Lid, 2, 0..16;
        /// Receiver.
        lid2: Lid, 4, 0..16;
        /// The wrong P_Key.
        pkey: crate::PKey, 6, 0..16;
        /// Service level of the packet.
        sl: u8, 8, 0..4;
        /// Reserved.
        reserved: u8, 8, 4..8;
        /// Sender's queue pair.
        qp1: crate::Qpn, 9, 0..24;
        /// Reserved.
        reserved2: u8, 12, 0..8;
        /// Receiver's queue pair.
        qp2: crate::Qpn, 13, 0..24;
        /// Sender.
        gid1: Gid, 16, 0..128;
        /// Receiver.
        gid2: Gid, 32, 0..128;
        /// The switch.
        switch_lid: Lid, 48, 0..16;
        /// Its port.
        port: u8, 50, 0..8;
    }
}

/// Bits of trap 259's DataValid.
pub mod switch_key {
    /// LIDs, P_Key and service level.
    pub const ADDRESSES: u16 = 0x000f;
    /// The sender's queue pair, which only datagrams tell.
    pub const QP1: u16 = 0x0010;
    /// The receiver's queue pair.
    pub const QP2: u16 = 0x0020;
}

layout! {
    /// Subscription to notices (IBTA §13.4.8.3).
    InformInfo, 36 bytes {
        /// Only notices about this port; zero for a LID range.
        gid: Gid, 0, 0..128;
        /// Only notices about these LIDs; 0xffff for all.
        lid_range_begin: Lid, 16, 0..16;
        /// Last of them; 0 for just one.
        lid_range_end: Lid, 18, 0..16;
        /// Reserved.
        reserved: u16, 20, 0..16;
        /// About the standard's notices.
        is_generic: u8, 22, 0..8;
        /// 1 to subscribe, 0 to end it.
        subscribe: u8, 23, 0..8;
        /// See [`kind`].
        notice_type: u16, 24, 0..16;
        /// See [`trap`].
        trap_number: u16, 26, 0..16;
        /// Where the reports go.
        qpn: crate::Qpn, 28, 0..24;
        /// Reserved.
        reserved2: u8, 31, 0..3;
        /// Longest time to an answer.
        resp_time_value: u8, 31, 3..8;
        /// Reserved.
        reserved3: u8, 32, 0..8;
        /// See [`producer`].
        producer_type: u32, 33, 0..24;
    }
}

impl Notice {
    /// A standard notice.
    pub fn generic(notice_type: u8, producer_type: u32, trap_number: u16, issuer_lid: Lid) -> Notice {
        Notice { is_generic: true, notice_type, producer_type, trap_number, issuer_lid, ..Notice::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::assert_complete;

    #[test]
    fn tables_are_complete() {
        macro_rules! check {
            ($($name:ident),*) => {
                $(assert_complete(stringify!($name), $name::FIELDS, $name::LEN);)*
            };
        }
        check!(Notice, Report, TrapGid, TrapLinkState, TrapPort, TrapCapabilities, TrapSystemImage, TrapMKey);
        check!(TrapKey, TrapSwitchKey, InformInfo);
    }

    #[test]
    fn a_trap_128_as_the_standard_lays_it_out() {
        let mut notice = Notice::generic(kind::URGENT, 2, trap::LINK_STATE_CHANGED, Lid(5));
        TrapLinkState { lid: Lid(5) }.emit(&mut notice.details);
        let mut bytes = [0; 64];
        notice.emit(&mut bytes);
        // Generic bit and type 1, producer 2 (switch), trap 128, issuer 5, no toggle, details: LID 5.
        assert_eq!(bytes[..12], [0x81, 0, 0, 2, 0, 128, 0, 5, 0, 0, 0, 5]);
    }
}
