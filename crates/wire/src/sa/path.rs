//! The path record: how packets get from one port to another.
//!
//! Read IBTA §15.2.5.16 first. Constants name the bits of the component mask that callers use.

use crate::layout::layout;
use crate::{Gid, Lid, PKey};

layout! {
    /// A path between two ports (IBTA §15.2.5.16).
    PathRecord, 64 bytes {
        /// High half of the service the path is for.
        service_id_high: u32, 0, 0..32;
        /// Low half.
        service_id_low: u32, 4, 0..32;
        /// To.
        dgid: Gid, 8, 0..128;
        /// From.
        sgid: Gid, 24, 0..128;
        /// To.
        dlid: Lid, 40, 0..16;
        /// From.
        slid: Lid, 42, 0..16;
        /// For raw packets.
        raw_traffic: bool, 44, 0..1;
        /// Reserved.
        reserved: u8, 44, 1..4;
        /// Flow label of the GRH.
        flow_label: u32, 44, 4..24;
        /// Hop limit of the GRH.
        hop_limit: u8, 47, 0..8;
        /// Traffic class of the GRH.
        traffic_class: u8, 48, 0..8;
        /// The same path serves the other way.
        reversible: bool, 49, 0..1;
        /// Query: the most paths wanted.
        numb_path: u8, 49, 1..8;
        /// Partition that both ends are in.
        pkey: PKey, 50, 0..16;
        /// Class of service wanted.
        qos_class: u16, 52, 0..12;
        /// Service level.
        sl: u8, 52, 12..16;
        /// Query: how to compare the MTU, see [`selector`].
        mtu_selector: u8, 54, 0..2;
        /// Smallest MTU on the path, as a code.
        mtu: u8, 54, 2..8;
        /// Query: how to compare the rate.
        rate_selector: u8, 55, 0..2;
        /// Smallest rate on the path, as a code.
        rate: u8, 55, 2..8;
        /// Query: how to compare the life time.
        life_time_selector: u8, 56, 0..2;
        /// Longest time a packet lives on the path: 4.096 µs × 2^value.
        life_time: u8, 56, 2..8;
        /// Lower is better.
        preference: u8, 57, 0..8;
        /// Reserved.
        reserved2: u64, 58, 0..48;
    }
}

impl PathRecord {
    /// Component: DGID.
    pub const DGID: u64 = 1 << 2;
    /// Component: SGID.
    pub const SGID: u64 = 1 << 3;
    /// Component: DLID.
    pub const DLID: u64 = 1 << 4;
    /// Component: SLID.
    pub const SLID: u64 = 1 << 5;
    /// Component: raw traffic.
    pub const RAW_TRAFFIC: u64 = 1 << 6;
    /// Component: reversible.
    pub const REVERSIBLE: u64 = 1 << 11;
    /// Component: number of paths.
    pub const NUMB_PATH: u64 = 1 << 12;
    /// Component: P_Key.
    pub const PKEY: u64 = 1 << 13;
    /// Component: service level.
    pub const SL: u64 = 1 << 15;
    /// Component: MTU selector.
    pub const MTU_SELECTOR: u64 = 1 << 16;
    /// Component: MTU.
    pub const MTU: u64 = 1 << 17;
    /// Component: rate selector.
    pub const RATE_SELECTOR: u64 = 1 << 18;
    /// Component: rate.
    pub const RATE: u64 = 1 << 19;
    /// Component: life time selector.
    pub const LIFE_TIME_SELECTOR: u64 = 1 << 20;
    /// Component: life time.
    pub const LIFE_TIME: u64 = 1 << 21;
}

/// How a query compares MTU, rate and life time (IBTA §15.2.5.16).
pub mod selector {
    /// More than the value.
    pub const GREATER: u8 = 0;
    /// Less than the value.
    pub const LESS: u8 = 1;
    /// The value.
    pub const EXACTLY: u8 = 2;
    /// As much as there is (life time: as little).
    pub const LARGEST: u8 = 3;
}
