//! The attributes of subnet management, each a table of all its bits.
//!
//! Read IBTA §14.2.5 first. Each stands at the start of an SMP's 64 data bytes, and inside the records of subnet
//! administration ([`crate::sa`]). Values of the fields are named in [`super::codes`].

use crate::layout::{array_field, layout};
use crate::{Guid, Lid, PKey};

layout! {
    /// Name of a node, UTF-8 padded with zeros (IBTA §14.2.5.2).
    NodeDescription, 64 bytes {
        /// The bytes.
        text: [u8; 64], 0, 0..512;
    }
}

impl NodeDescription {
    /// A name, cut after 64 bytes.
    pub fn new(name: &str) -> NodeDescription {
        let mut text = [0; 64];
        let len = name.len().min(text.len());
        text[..len].copy_from_slice(&name.as_bytes()[..len]);
        NodeDescription { text }
    }

    /// The name up to the first zero; what is no UTF-8 is replaced.
    pub fn name(&self) -> String {
        let end = self.text.iter().position(|b| *b == 0).unwrap_or(self.text.len());
        String::from_utf8_lossy(&self.text[..end]).into_owned()
    }
}

layout! {
    /// What a node is (IBTA §14.2.5.3).
    NodeInfo, 40 bytes {
        /// Supported MAD base version.
        base_version: u8, 0, 0..8;
        /// Supported class version.
        class_version: u8, 1, 0..8;
        /// See [`super::codes::node_type`].
        node_type: u8, 2, 0..8;
        /// Physical ports; port 0 of a switch not counted.
        num_ports: u8, 3, 0..8;
        /// Names what several nodes are parts of.
        system_image_guid: Guid, 4, 0..64;
        /// Names the node.
        node_guid: Guid, 12, 0..64;
        /// Names the port that the request came in by; the node itself on a switch.
        port_guid: Guid, 20, 0..64;
        /// Entries of each port's P_Key table.
        partition_cap: u16, 28, 0..16;
        /// Given by the vendor.
        device_id: u16, 30, 0..16;
        /// Given by the vendor.
        revision: u32, 32, 0..32;
        /// Port that the request came in by.
        local_port_num: u8, 36, 0..8;
        /// OUI of the vendor.
        vendor_id: u32, 37, 0..24;
    }
}

layout! {
    /// What a switch can do (IBTA §14.2.5.4).
    SwitchInfo, 20 bytes {
        /// Entries of the linear forwarding table.
        linear_fdb_cap: u16, 0, 0..16;
        /// Entries of the random forwarding table; 0 for none.
        random_fdb_cap: u16, 2, 0..16;
        /// Entries of the multicast forwarding table.
        multicast_fdb_cap: u16, 4, 0..16;
        /// Highest LID with an entry in the linear table.
        linear_fdb_top: u16, 6, 0..16;
        /// Random tables only.
        default_port: u8, 8, 0..8;
        /// Where multicast of unknown LIDs goes.
        default_multicast_primary_port: u8, 9, 0..8;
        /// Where it goes if it came in by that one.
        default_multicast_not_primary_port: u8, 10, 0..8;
        /// Longest time a packet lives in the switch: 4.096 µs × 2^value, above 19 for ever.
        life_time_value: u8, 11, 0..5;
        /// A port's state has changed; written 1 to clear.
        port_state_change: bool, 11, 5..6;
        /// Optimised SLtoVL programming: support and state.
        optimized_sl_to_vl: u8, 11, 6..8;
        /// Random tables only.
        lids_per_port: u16, 12, 0..16;
        /// P_Key entries of each external port.
        partition_enforcement_cap: u16, 14, 0..16;
        /// Can check P_Keys of incoming packets.
        inbound_enforcement_cap: bool, 16, 0..1;
        /// Can check P_Keys of outgoing packets.
        outbound_enforcement_cap: bool, 16, 1..2;
        /// Can drop incoming raw packets.
        filter_raw_inbound_cap: bool, 16, 2..3;
        /// Can drop outgoing raw packets.
        filter_raw_outbound_cap: bool, 16, 3..4;
        /// Port 0 is a full endport.
        enhanced_port0: bool, 16, 4..5;
        /// Reserved.
        reserved: u16, 16, 5..16;
        /// Highest multicast LID with an entry; below 0xc000 for "not limited".
        multicast_fdb_top: u16, 18, 0..16;
    }
}

layout! {
    /// A block of eight of a port's GUIDs (IBTA §14.2.5.5). The first of block 0 is fixed.
    GuidInfo, 64 bytes {
        /// In order.
        guids: Guids, 0, 0..512;
    }
}

layout! {
    /// State of a port (IBTA §14.2.5.6).
    PortInfo, 64 bytes {
        /// Authorises changes; reads as zero without it.
        m_key: u64, 0, 0..64;
        /// High half of the port's GIDs.
        gid_prefix: u64, 8, 0..64;
        /// Base LID.
        lid: Lid, 16, 0..16;
        /// Where the master subnet manager is.
        master_sm_lid: Lid, 18, 0..16;
        /// See [`super::codes::capability`].
        capability_mask: u32, 20, 0..32;
        /// Diagnostic code.
        diag_code: u16, 24, 0..16;
        /// Seconds until a protected M_Key expires; 0 for never.
        m_key_lease_period: u16, 26, 0..16;
        /// The port that the request came in by.
        local_port_num: u8, 28, 0..8;
        /// Bits of [`super::codes::link_width`].
        link_width_enabled: u8, 29, 0..8;
        /// Bits of [`super::codes::link_width`].
        link_width_supported: u8, 30, 0..8;
        /// One bit of [`super::codes::link_width`].
        link_width_active: u8, 31, 0..8;
        /// Bits of [`super::codes::link_speed`].
        link_speed_supported: u8, 32, 0..4;
        /// See [`super::codes::port_state`].
        port_state: u8, 32, 4..8;
        /// See [`super::codes::physical_state`].
        port_physical_state: u8, 33, 0..4;
        /// Sleep (1) or polling (2) when the link goes down.
        link_down_default_state: u8, 33, 4..8;
        /// How much a wrong M_Key may do.
        m_key_protect_bits: u8, 34, 0..2;
        /// Reserved.
        reserved_lmc: u8, 34, 2..5;
        /// The port answers to 2^LMC LIDs.
        lmc: u8, 34, 5..8;
        /// One bit of [`super::codes::link_speed`].
        link_speed_active: u8, 35, 0..4;
        /// Bits of [`super::codes::link_speed`].
        link_speed_enabled: u8, 35, 4..8;
        /// MTU code agreed with the neighbour.
        neighbor_mtu: u8, 36, 0..4;
        /// Service level to the master subnet manager.
        master_sm_sl: u8, 36, 4..8;
        /// Data VLs that the port has, as a code.
        vl_cap: u8, 37, 0..4;
        /// What initialisation the port asks for.
        init_type: u8, 37, 4..8;
        /// Bytes, in units of 4096, of high priority before a low one gets a chance; 255 for no limit.
        vl_high_limit: u8, 38, 0..8;
        /// Entries of the high-priority arbitration table.
        vl_arbitration_high_cap: u8, 39, 0..8;
        /// Entries of the low-priority arbitration table.
        vl_arbitration_low_cap: u8, 40, 0..8;
        /// What initialisation was done.
        init_type_reply: u8, 41, 0..4;
        /// Largest MTU code.
        mtu_cap: u8, 41, 4..8;
        /// Packets dropped in sequence before a VL counts as stalled.
        vl_stall_count: u8, 42, 0..3;
        /// Longest time at the head of a queue: 4.096 µs × 2^value, above 19 for ever.
        hoq_life: u8, 42, 3..8;
        /// Data VLs in use, as a code.
        operational_vls: u8, 43, 0..4;
        /// P_Keys of incoming packets are checked.
        partition_enforcement_inbound: bool, 43, 4..5;
        /// P_Keys of outgoing packets are checked.
        partition_enforcement_outbound: bool, 43, 5..6;
        /// Incoming raw packets are dropped.
        filter_raw_inbound: bool, 43, 6..7;
        /// Outgoing raw packets are dropped.
        filter_raw_outbound: bool, 43, 7..8;
        /// Count of wrong M_Keys.
        m_key_violations: u16, 44, 0..16;
        /// Count of wrong P_Keys.
        p_key_violations: u16, 46, 0..16;
        /// Count of wrong Q_Keys.
        q_key_violations: u16, 48, 0..16;
        /// Entries of the GUID table.
        guid_cap: u8, 50, 0..8;
        /// Asks clients to register again with subnet administration.
        client_reregister: bool, 51, 0..1;
        /// Suppression of traps about multicast P_Keys: support and state.
        mcast_pkey_trap_suppression: u8, 51, 1..3;
        /// Least time between traps and longest round trip: 4.096 µs × 2^value.
        subnet_timeout: u8, 51, 3..8;
        /// Reserved.
        reserved_resp_time: u8, 52, 0..3;
        /// Longest time to an answer: 4.096 µs × 2^value.
        resp_time_value: u8, 52, 3..8;
        /// Threshold of local physical errors.
        local_phy_errors: u8, 53, 0..4;
        /// Threshold of overrun errors.
        overrun_errors: u8, 53, 4..8;
        /// Most credit that was ever needed.
        max_credit_hint: u16, 54, 0..16;
        /// Reserved.
        reserved_latency: u8, 56, 0..8;
        /// Round trip of the link in 4 ns units.
        link_round_trip_latency: u32, 57, 0..24;
        /// More capabilities.
        capability_mask2: u16, 60, 0..16;
        /// One bit of the extended speeds of [`super::codes::link_speed`].
        link_speed_ext_active: u8, 62, 0..4;
        /// Bits of the extended speeds.
        link_speed_ext_supported: u8, 62, 4..8;
        /// Reserved.
        reserved_speed_ext: u8, 63, 0..3;
        /// Bits of the extended speeds; 31 in a Set for "leave as it is".
        link_speed_ext_enabled: u8, 63, 3..8;
    }
}

layout! {
    /// A block of 32 of a port's partition keys (IBTA §14.2.5.7).
    PKeyTable, 64 bytes {
        /// In order; partition 0 for an empty entry.
        keys: PKeys, 0, 0..512;
    }
}

layout! {
    /// Virtual lane of each service level (IBTA §14.2.5.8); 15 drops the packet.
    SlToVl, 8 bytes {
        /// Sixteen numbers of four bits.
        packed: u64, 0, 0..64;
    }
}

impl SlToVl {
    /// From the lane of each service level, of which the low four bits count.
    pub fn new(lanes: [u8; 16]) -> SlToVl {
        SlToVl { packed: lanes.iter().fold(0, |packed, vl| packed << 4 | u64::from(vl & 15)) }
    }

    /// The lane of a service level, which is taken modulo 16.
    pub fn vl(&self, sl: u8) -> u8 {
        (self.packed >> (60 - 4 * u32::from(sl & 15)) & 15) as u8
    }
}

layout! {
    /// An entry of an arbitration table.
    VlWeight, 2 bytes {
        /// Reserved.
        reserved: u8, 0, 0..4;
        /// Virtual lane.
        vl: u8, 0, 4..8;
        /// Units of 64 bytes that may leave in its turn; 0 skips it.
        weight: u8, 1, 0..8;
    }
}

layout! {
    /// Half of an arbitration table: 32 entries (IBTA §14.2.5.9).
    VlArbitration, 64 bytes {
        /// In order.
        entries: VlWeights, 0, 0..512;
    }
}

layout! {
    /// Output port of each of 64 LIDs (IBTA §14.2.5.10); 255 drops the packet.
    LinearForwardingTable, 64 bytes {
        /// By LID modulo 64.
        ports: [u8; 64], 0, 0..512;
    }
}

layout! {
    /// Output ports, 16 a block position, of each of 32 multicast LIDs (IBTA §14.2.5.12).
    MulticastForwardingTable, 64 bytes {
        /// By LID modulo 32; bit n is port 16 × position + n.
        masks: Masks, 0, 0..512;
    }
}

layout! {
    /// State of a subnet manager (IBTA §14.2.5.13).
    SmInfo, 21 bytes {
        /// Port where it runs.
        guid: Guid, 0, 0..64;
        /// Shown to other managers only.
        sm_key: u64, 8, 0..64;
        /// Counts its activity, so that a standby sees that it lives.
        act_count: u32, 16, 0..32;
        /// The highest wins, then the lowest GUID.
        priority: u8, 20, 0..4;
        /// See [`super::codes::sm_state`].
        state: u8, 20, 4..8;
    }
}

layout! {
    /// The lamp of a port (IBTA §14.2.5.15).
    LedInfo, 4 bytes {
        /// On.
        on: bool, 0, 0..1;
        /// Reserved.
        reserved: u32, 0, 1..32;
    }
}

array_field! {
    /// GUIDs of a block.
    Guids = [Guid; 8], 64;
    /// Partition keys of a block.
    PKeys = [PKey; 32], 16;
    /// Entries of a block.
    VlWeights = [VlWeight; 32], 16;
    /// Port masks of a block.
    Masks = [u16; 32], 16;
}
