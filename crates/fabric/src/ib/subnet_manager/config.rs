//! What a subnet manager is told at its start, and the limits of its tables.

use std::time::Duration;

use everywire_wire::{Gid, Guid, Lid, PKey};

use super::lanes::LaneTables;
use super::routing::RoutingEngine;

/// The most nodes of a subnet: there are no more unicast LIDs.
pub const MAX_NODES: usize = 0xbfff;
/// The most multicast groups; switches may take fewer.
pub const MAX_GROUPS: usize = 0x3fff;
/// The most members of all groups together.
pub const MAX_MEMBERS: usize = 1 << 20;
/// The most service records.
pub const MAX_SERVICES: usize = 1 << 14;
/// The most subscriptions to reports.
pub const MAX_SUBSCRIPTIONS: usize = 1 << 14;
/// The most records in one answer.
pub const MAX_ANSWER_RECORDS: usize = 1 << 17;
/// The most answers of several segments at a time.
pub const MAX_TRANSFERS: usize = 1024;
/// The most of them to one LID.
pub const MAX_TRANSFERS_PER_LID: usize = 16;
/// The most bytes of all of them; at least that of one answer as long as can be.
pub const MAX_TRANSFER_BYTES: usize = 64 << 20;
/// The most pairs of ports that a query for paths looks at which names neither end.
pub const MAX_PATH_PAIRS: usize = 1 << 14;
/// The most reports that wait for their response.
pub const MAX_REPORTS: usize = 1 << 14;
/// The shortest time from a sweep that a trap has asked for to the next.
pub const MIN_TRAP_SWEEP: Duration = Duration::from_millis(100);
/// From one warning of a node's wrong keys to the next of that kind.
pub const KEY_WARNINGS: Duration = Duration::from_secs(10);
/// The most events that wait for [`super::Sm::poll_event`]; later ones are dropped and counted.
pub const MAX_EVENTS: usize = 4096;
/// The most answers to requests and traps that wait for [`super::Sm::poll_transmit`].
pub const MAX_ANSWERS: usize = 1 << 14;

/// Ports that may talk to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The partition's number, 15 bits.
    pub pkey: u16,
    /// Port GUIDs with full (`true`) or limited membership.
    pub members: Vec<(Guid, bool)>,
    /// Membership of all ports that are not listed: full (`true`), limited, or none.
    pub others: Option<bool>,
    /// IPoIB's broadcast group for IPv4 is there from the start, and stays.
    pub ipoib: bool,
    /// Service level of paths in it, 0 to 15, as `sl=` in OpenSM's partition file.
    pub sl: u8,
}

impl Partition {
    /// The default partition, everyone a full member.
    pub fn default_for_all() -> Partition {
        Partition { pkey: PKey::DEFAULT.base(), members: Vec::new(), others: Some(true), ipoib: true, sl: 0 }
    }

    /// The P_Key of a port in it.
    pub fn key_of(&self, port: Guid) -> Option<PKey> {
        let listed = self.members.iter().find(|(guid, _)| *guid == port).map(|(_, full)| *full);
        let full = listed.or(self.others)?;
        Some(PKey(self.pkey & 0x7fff | if full { 0x8000 } else { 0 }))
    }
}

/// How a subnet manager does its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmConfig {
    /// GUID of the port that it runs at.
    pub guid: Guid,
    /// 0 to 15: of several managers the highest becomes master, among equals the lowest GUID.
    pub priority: u8,
    /// Trusted queries carry it, and so do managers among themselves. 1, which everybody starts with, keeps nobody out; see
    /// [`SmConfig::secret_sm_key`].
    pub sm_key: u64,
    /// Set at every port; 0 for none.
    pub m_key: u64,
    /// How the ports protect it, 0 to 3.
    pub m_key_protect: u8,
    /// How paths are chosen.
    pub engine: RoutingEngine,
    /// Each end port of an adapter gets 2^LMC LIDs.
    pub lmc: u8,
    /// High half of GIDs.
    pub gid_prefix: u64,
    /// From one look for changes to the next.
    pub sweep_interval: Duration,
    /// From one look of a standby whether the master lives to the next.
    pub polling_interval: Duration,
    /// Until a request is sent again.
    pub timeout: Duration,
    /// How often it is sent again.
    pub retries: u8,
    /// Requests on their way at a time.
    pub window: usize,
    /// SubnetTimeOut of all ports, and life time of packets: 4.096 µs × 2^value.
    pub subnet_timeout: u8,
    /// SLtoVL and arbitration tables are written. Many requests a switch.
    pub qos: bool,
    /// What they say; service levels share the data lanes evenly if nothing.
    pub lanes: Option<LaneTables>,
    /// Switches check the partitions of their adapters' packets, both ways, where they can.
    pub enforce_partitions: bool,
    /// Who may talk to whom.
    pub partitions: Vec<Partition>,
    /// Which router's port leads to which other subnet: GID prefix, port GUID; of several for one prefix the first that is there.
    /// Empty: every other prefix by the router with the lowest node GUID, where there is one.
    pub prefix_routes: Vec<(u64, Guid)>,
    /// LIDs that ports had before, by port GUID, to be given again.
    pub lids: Vec<(Guid, Lid)>,
}

impl SmConfig {
    /// With an SM_Key that nobody guesses, from 64 bits of the caller's entropy: for a subnet with one manager, or several
    /// that are told the same bits. Neither 0 nor 1, which say "none" and "as delivered".
    pub fn secret_sm_key(self, entropy: u64) -> SmConfig {
        SmConfig { sm_key: entropy.max(2), ..self }
    }

    /// Min-hop, one LID a port, one partition, the intervals of OpenSM.
    pub fn new(guid: Guid) -> SmConfig {
        SmConfig {
            guid,
            priority: 0,
            sm_key: 1,
            m_key: 0,
            m_key_protect: 0,
            engine: RoutingEngine::MinHop,
            lmc: 0,
            gid_prefix: Gid::DEFAULT_PREFIX,
            sweep_interval: Duration::from_secs(10),
            polling_interval: Duration::from_secs(10),
            timeout: Duration::from_millis(200),
            retries: 3,
            window: 16,
            subnet_timeout: 18,
            qos: true,
            lanes: None,
            enforce_partitions: true,
            partitions: vec![Partition::default_for_all()],
            prefix_routes: Vec::new(),
            lids: Vec::new(),
        }
    }
}
