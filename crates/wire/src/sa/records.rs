//! The records of subnet administration that tell attributes of nodes and ports, each a table of all its bits.
//!
//! Read IBTA §15.2.5 first. The elementary fields of a table, in order, are the bits of its component mask from 0 on, those
//! of a nested attribute one by one. Paths are in [`super::path`], groups and services in [`super::membership`]. No record
//! is judged here.

use crate::layout::layout;
use crate::notice::InformInfo;
use crate::smp::{
    GuidInfo, LinearForwardingTable, MulticastForwardingTable, NodeDescription, NodeInfo, PKeyTable,
    PortInfo, SlToVl, SmInfo, SwitchInfo, VlArbitration,
};
use crate::{Gid, Lid};

layout! {
    /// A node, by one of its ports (IBTA §15.2.5.2).
    NodeRecord, 108 bytes {
        /// Base LID of the port.
        lid: Lid, 0, 0..16;
        /// Reserved.
        reserved: u16, 2, 0..16;
        /// As seen by that port.
        node_info: NodeInfo, 4, 0..320;
        /// Name.
        description: NodeDescription, 44, 0..512;
    }
}

layout! {
    /// A port (IBTA §15.2.5.3).
    PortInfoRecord, 68 bytes {
        /// LID of the endport: on a switch that of port 0.
        lid: Lid, 0, 0..16;
        /// Port.
        port: u8, 2, 0..8;
        /// How to read the component mask of PortInfo.
        options: u8, 3, 0..8;
        /// State.
        port_info: PortInfo, 4, 0..512;
    }
}

layout! {
    /// SLtoVL mapping of a port (IBTA §15.2.5.4).
    SlToVlRecord, 16 bytes {
        /// LID of the endport.
        lid: Lid, 0, 0..16;
        /// Port that packets come in by, on a switch.
        input_port: u8, 2, 0..8;
        /// Port that they leave by, on a switch.
        output_port: u8, 3, 0..8;
        /// Reserved.
        reserved: u32, 4, 0..32;
        /// The mapping.
        sl_to_vl: SlToVl, 8, 0..64;
    }
}

layout! {
    /// A switch (IBTA §15.2.5.5).
    SwitchInfoRecord, 24 bytes {
        /// Its LID.
        lid: Lid, 0, 0..16;
        /// Reserved.
        reserved: u16, 2, 0..16;
        /// What it can do.
        switch_info: SwitchInfo, 4, 0..160;
    }
}

layout! {
    /// A block of a linear forwarding table (IBTA §15.2.5.6).
    LftRecord, 72 bytes {
        /// LID of the switch.
        lid: Lid, 0, 0..16;
        /// Which 64 LIDs.
        block: u16, 2, 0..16;
        /// Reserved.
        reserved: u32, 4, 0..32;
        /// Their ports.
        table: LinearForwardingTable, 8, 0..512;
    }
}

layout! {
    /// A block of a multicast forwarding table (IBTA §15.2.5.8).
    MftRecord, 72 bytes {
        /// LID of the switch.
        lid: Lid, 0, 0..16;
        /// Which 16 ports.
        position: u8, 2, 0..4;
        /// Reserved.
        reserved: u8, 2, 4..7;
        /// Which 32 multicast LIDs.
        block: u16, 2, 7..16;
        /// Reserved.
        reserved2: u32, 4, 0..32;
        /// Their ports.
        table: MulticastForwardingTable, 8, 0..512;
    }
}

layout! {
    /// A subnet manager (IBTA §15.2.5.10).
    SmInfoRecord, 25 bytes {
        /// LID of its port.
        lid: Lid, 0, 0..16;
        /// Reserved.
        reserved: u16, 2, 0..16;
        /// State.
        sm_info: SmInfo, 4, 0..168;
    }
}

layout! {
    /// One direction of a link (IBTA §15.2.5.13).
    LinkRecord, 6 bytes {
        /// Where it begins.
        from_lid: Lid, 0, 0..16;
        /// Port there.
        from_port: u8, 2, 0..8;
        /// Port at its end.
        to_port: u8, 3, 0..8;
        /// Where it ends.
        to_lid: Lid, 4, 0..16;
    }
}

layout! {
    /// A block of a port's GUIDs (IBTA §15.2.5.18).
    GuidInfoRecord, 72 bytes {
        /// LID of the port.
        lid: Lid, 0, 0..16;
        /// Which eight.
        block: u8, 2, 0..8;
        /// Reserved.
        reserved: u8, 3, 0..8;
        /// Reserved.
        reserved2: u32, 4, 0..32;
        /// The GUIDs.
        guid_info: GuidInfo, 8, 0..512;
    }
}

layout! {
    /// A block of a port's P_Keys (IBTA §15.2.5.11).
    PKeyTableRecord, 72 bytes {
        /// LID of the endport.
        lid: Lid, 0, 0..16;
        /// Which 32.
        block: u16, 2, 0..16;
        /// Port, on a switch.
        port: u8, 4, 0..8;
        /// Reserved.
        reserved: u32, 5, 0..24;
        /// The keys.
        table: PKeyTable, 8, 0..512;
    }
}

layout! {
    /// A block of a port's arbitration tables (IBTA §15.2.5.9).
    VlArbitrationRecord, 72 bytes {
        /// LID of the endport.
        lid: Lid, 0, 0..16;
        /// Port, on a switch.
        output_port: u8, 2, 0..8;
        /// 1 and 2: low priority; 3 and 4: high.
        block: u8, 3, 0..8;
        /// Reserved.
        reserved: u32, 4, 0..32;
        /// The entries.
        table: VlArbitration, 8, 0..512;
    }
}

layout! {
    /// A subscription (IBTA §15.2.5.12).
    InformInfoRecord, 60 bytes {
        /// Who subscribed.
        subscriber_gid: Gid, 0, 0..128;
        /// Which of its subscriptions.
        subscriber_enum: u16, 16, 0..16;
        /// Reserved.
        reserved: u64, 18, 0..48;
        /// To what.
        inform_info: InformInfo, 24, 0..288;
    }
}
