//! Records that ports make themselves: membership in multicast groups, and services.
//!
//! Read IBTA §15.2.5.17 (groups) and §15.2.5.14 (services) first. Constants name the bits of the component mask that callers
//! use; whether a group may be made or a service removed is the administrator's affair.

use crate::layout::{array_field, layout};
use crate::{Gid, Lid, PKey, QKey};

layout! {
    /// Membership of a port in a multicast group (IBTA §15.2.5.17).
    McMemberRecord, 52 bytes {
        /// The group.
        mgid: Gid, 0, 0..128;
        /// The member.
        port_gid: Gid, 16, 0..128;
        /// Q_Key of the group.
        qkey: QKey, 32, 0..32;
        /// Multicast LID of the group.
        mlid: Lid, 36, 0..16;
        /// How to compare the MTU.
        mtu_selector: u8, 38, 0..2;
        /// MTU code of the group.
        mtu: u8, 38, 2..8;
        /// Traffic class of the GRH.
        traffic_class: u8, 39, 0..8;
        /// Partition of the group.
        pkey: PKey, 40, 0..16;
        /// How to compare the rate.
        rate_selector: u8, 42, 0..2;
        /// Rate code of the group.
        rate: u8, 42, 2..8;
        /// How to compare the life time.
        life_time_selector: u8, 43, 0..2;
        /// Life time of the group.
        life_time: u8, 43, 2..8;
        /// Service level.
        sl: u8, 44, 0..4;
        /// Flow label of the GRH.
        flow_label: u32, 44, 4..24;
        /// Hop limit of the GRH.
        hop_limit: u8, 47, 0..8;
        /// Scope of the group, as in its MGID.
        scope: u8, 48, 0..4;
        /// Bits of [`join_state`].
        join_state: u8, 48, 4..8;
        /// Joined by another port.
        proxy_join: bool, 49, 0..1;
        /// Reserved.
        reserved: u32, 49, 1..24;
    }
}

impl McMemberRecord {
    /// Component: MGID.
    pub const MGID: u64 = 1 << 0;
    /// Component: port GID.
    pub const PORT_GID: u64 = 1 << 1;
    /// Component: Q_Key.
    pub const QKEY: u64 = 1 << 2;
    /// Component: MLID.
    pub const MLID: u64 = 1 << 3;
    /// Component: MTU selector.
    pub const MTU_SELECTOR: u64 = 1 << 4;
    /// Component: MTU.
    pub const MTU: u64 = 1 << 5;
    /// Component: traffic class.
    pub const TRAFFIC_CLASS: u64 = 1 << 6;
    /// Component: P_Key.
    pub const PKEY: u64 = 1 << 7;
    /// Component: rate selector.
    pub const RATE_SELECTOR: u64 = 1 << 8;
    /// Component: rate.
    pub const RATE: u64 = 1 << 9;
    /// Component: life time selector.
    pub const LIFE_TIME_SELECTOR: u64 = 1 << 10;
    /// Component: life time.
    pub const LIFE_TIME: u64 = 1 << 11;
    /// Component: service level.
    pub const SL: u64 = 1 << 12;
    /// Component: flow label.
    pub const FLOW_LABEL: u64 = 1 << 13;
    /// Component: hop limit.
    pub const HOP_LIMIT: u64 = 1 << 14;
    /// Component: scope.
    pub const SCOPE: u64 = 1 << 15;
    /// Component: join state.
    pub const JOIN_STATE: u64 = 1 << 16;
    /// Component: proxy join.
    pub const PROXY_JOIN: u64 = 1 << 17;
    /// What a request must say to make a group that is not there (IBTA §15.2.5.17.3): P_Key, Q_Key, service level, flow
    /// label, traffic class, join state and port GID.
    pub const CREATE: u64 = McMemberRecord::QKEY
        | McMemberRecord::TRAFFIC_CLASS
        | McMemberRecord::PKEY
        | McMemberRecord::SL
        | McMemberRecord::FLOW_LABEL
        | McMemberRecord::JOIN_STATE
        | McMemberRecord::PORT_GID;
}

/// Kinds of membership.
pub mod join_state {
    /// Sends and receives.
    pub const FULL: u8 = 1;
    /// Receives, and does not keep the group.
    pub const NON: u8 = 2;
    /// Sends only.
    pub const SEND_ONLY_NON: u8 = 4;
    /// Sends only, and keeps the group.
    pub const SEND_ONLY_FULL: u8 = 8;
}

array_field! {
    /// Two-byte data of a service.
    Data16 = [u16; 8], 16;
    /// Four-byte data of a service.
    Data32 = [u32; 4], 32;
    /// Eight-byte data of a service.
    Data64 = [u64; 2], 64;
    /// One-byte data of a service, compared byte by byte.
    Data8 = [Byte; 16], 8;
}

layout! {
    /// A byte that is a component of its own.
    Byte, 1 bytes {
        /// The byte.
        value: u8, 0, 0..8;
    }
}

layout! {
    /// A service that a port offers (IBTA §15.2.5.14).
    ServiceRecord, 176 bytes {
        /// Number of the service.
        service_id: u64, 0, 0..64;
        /// Port that offers it.
        service_gid: Gid, 8, 0..128;
        /// Partition that it is offered in.
        service_pkey: PKey, 24, 0..16;
        /// Reserved.
        reserved: u16, 26, 0..16;
        /// Seconds until the record goes; 0xffffffff for never.
        service_lease: u32, 28, 0..32;
        /// Needed to change the record.
        service_key: [u8; 16], 32, 0..128;
        /// Name, UTF-8 padded with zeros.
        service_name: [u8; 64], 48, 0..512;
        /// Data of the service.
        data8: Data8, 112, 0..128;
        /// Data of the service.
        data16: Data16, 128, 0..128;
        /// Data of the service.
        data32: Data32, 144, 0..128;
        /// Data of the service.
        data64: Data64, 160, 0..128;
    }
}

impl ServiceRecord {
    /// Component: service ID.
    pub const SERVICE_ID: u64 = 1 << 0;
    /// Component: GID.
    pub const SERVICE_GID: u64 = 1 << 1;
    /// Component: P_Key.
    pub const SERVICE_PKEY: u64 = 1 << 2;
    /// Component: lease.
    pub const SERVICE_LEASE: u64 = 1 << 4;
    /// Component: key.
    pub const SERVICE_KEY: u64 = 1 << 5;
    /// Component: name.
    pub const SERVICE_NAME: u64 = 1 << 6;
    /// Lease of a record that stays.
    pub const LEASE_FOREVER: u32 = u32::MAX;
}
