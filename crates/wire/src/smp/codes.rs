//! Numbers that fields of subnet management attributes take.
//!
//! Read IBTA §14.2.5 first. Only names for numbers: what a port does in a state is its own affair.

/// Kinds of node (NodeInfo).
pub mod node_type {
    /// Channel adapter.
    pub const CA: u8 = 1;
    /// Switch.
    pub const SWITCH: u8 = 2;
    /// Router.
    pub const ROUTER: u8 = 3;
}

/// Logical states of a port (PortInfo, IBTA §7.2.7).
pub mod port_state {
    /// In a Set: leave it as it is.
    pub const NO_CHANGE: u8 = 0;
    /// No link.
    pub const DOWN: u8 = 1;
    /// A link, but only subnet management passes.
    pub const INIT: u8 = 2;
    /// Configured, waiting for the word.
    pub const ARMED: u8 = 3;
    /// Everything passes.
    pub const ACTIVE: u8 = 4;
}

/// Physical states of a port (PortInfo).
pub mod physical_state {
    /// In a Set: leave it as it is.
    pub const NO_CHANGE: u8 = 0;
    /// Quiet.
    pub const SLEEP: u8 = 1;
    /// Looking for a peer.
    pub const POLLING: u8 = 2;
    /// Switched off.
    pub const DISABLED: u8 = 3;
    /// Link training.
    pub const TRAINING: u8 = 4;
    /// Trained.
    pub const LINK_UP: u8 = 5;
    /// Training again after errors.
    pub const ERROR_RECOVERY: u8 = 6;
}

/// Widths of a link, one bit each (PortInfo).
pub mod link_width {
    /// One lane.
    pub const X1: u8 = 1;
    /// Four lanes.
    pub const X4: u8 = 2;
    /// Eight lanes.
    pub const X8: u8 = 4;
    /// Twelve lanes.
    pub const X12: u8 = 8;
}

/// Speeds of a lane, one bit each (PortInfo).
pub mod link_speed {
    /// 2.5 Gbit/s.
    pub const SDR: u8 = 1;
    /// 5 Gbit/s.
    pub const DDR: u8 = 2;
    /// 10 Gbit/s.
    pub const QDR: u8 = 4;
    /// In the extended fields: 14.0625 Gbit/s.
    pub const EXT_FDR: u8 = 1;
    /// In the extended fields: 25.78125 Gbit/s.
    pub const EXT_EDR: u8 = 2;
    /// In the extended fields: 53.125 Gbit/s.
    pub const EXT_HDR: u8 = 4;
}

/// Rates of a path (PathRecord, MCMemberRecord; IBTA §15.2.5.16), by width and speed of the slowest link.
pub mod rate {
    /// The code of a link's rate, from width (one bit of [`super::link_width`]), speed (one bit of [`super::link_speed`]) and
    /// extended speed (0 for none). 2 (2.5 Gbit/s) where the combination has no code.
    pub const fn of(width: u8, speed: u8, extended: u8) -> u8 {
        // Columns: 1x, 4x, 8x, 12x.
        let row: [u8; 4] = match (extended, speed) {
            (super::link_speed::EXT_HDR, _) => [20, 17, 21, 22],
            (super::link_speed::EXT_EDR, _) => [15, 16, 17, 18],
            (super::link_speed::EXT_FDR, _) => [11, 12, 13, 14],
            (_, super::link_speed::QDR) => [3, 7, 9, 10],
            (_, super::link_speed::DDR) => [5, 6, 7, 8],
            _ => [2, 3, 6, 4],
        };
        match width {
            super::link_width::X4 => row[1],
            super::link_width::X8 => row[2],
            super::link_width::X12 => row[3],
            _ => row[0],
        }
    }

    /// Megabits a second of a code, for comparison.
    pub const fn megabits(code: u8) -> u32 {
        match code {
            2 => 2_500,
            3 => 10_000,
            4 => 30_000,
            5 => 5_000,
            6 => 20_000,
            7 => 40_000,
            8 => 60_000,
            9 => 80_000,
            10 => 120_000,
            11 => 14_000,
            12 => 56_000,
            13 => 112_000,
            14 => 168_000,
            15 => 25_000,
            16 => 100_000,
            17 => 200_000,
            18 => 300_000,
            19 => 28_000,
            20 => 50_000,
            21 => 400_000,
            22 => 600_000,
            _ => 0,
        }
    }
}

/// Bits of a port's CapabilityMask (PortInfo).
pub mod capability {
    /// A subnet manager runs here.
    pub const IS_SM: u32 = 1 << 1;
    /// Sends notices.
    pub const NOTICE: u32 = 1 << 2;
    /// Sends traps.
    pub const TRAP: u32 = 1 << 3;
    /// Has SLtoVL mapping.
    pub const SL_MAPPING: u32 = 1 << 6;
    /// Has a lamp (LedInfo).
    pub const LED_INFO: u32 = 1 << 9;
    /// Its subnet manager is disabled.
    pub const SM_DISABLED: u32 = 1 << 10;
    /// Has a system image GUID.
    pub const SYSTEM_IMAGE_GUID: u32 = 1 << 11;
    /// Has the extended speed fields.
    pub const EXTENDED_SPEEDS: u32 = 1 << 14;
    /// Answers connection management.
    pub const COMMUNICATION_MANAGEMENT: u32 = 1 << 16;
    /// Answers device management.
    pub const DEVICE_MANAGEMENT: u32 = 1 << 19;
    /// Takes ClientReregister.
    pub const CLIENT_REREGISTRATION: u32 = 1 << 25;
}

/// States of a subnet manager (SMInfo, IBTA §14.4.1).
pub mod sm_state {
    /// Not to become master.
    pub const NOT_ACTIVE: u8 = 0;
    /// Sweeping for the first time.
    pub const DISCOVERING: u8 = 1;
    /// Ready to take over from the master.
    pub const STANDBY: u8 = 2;
    /// In charge.
    pub const MASTER: u8 = 3;
}

/// Modifiers of SubnSet(SMInfo), with which managers talk to each other (IBTA §14.4.1).
pub mod sm_control {
    /// The master offers its place.
    pub const HANDOVER: u32 = 1;
    /// The new master confirms.
    pub const ACKNOWLEDGE: u32 = 2;
    /// To a standby: do not take over.
    pub const DISABLE: u32 = 3;
    /// To a not-active one: be standby again.
    pub const STANDBY: u32 = 4;
    /// To a standby: discover again.
    pub const DISCOVER: u32 = 5;
}

/// OperationalVLs and VLCap: code of a number of data VLs.
pub mod vls {
    /// Data VLs of a code; 0 for code 0 ("no change") and for codes that are reserved.
    pub const fn count(code: u8) -> u8 {
        match code {
            1 => 1,
            2 => 2,
            3 => 4,
            4 => 8,
            5 => 15,
            _ => 0,
        }
    }
}
