//! What a device is made with, and what it says about itself.
//!
//! Read IBTA vol. 1 §11.2.1 (Query HCA). Attributes tell the truth (DESIGN §4): every limit reported here is enforced at
//! the call that would exceed it, and everything below it works. Nothing here depends on sockets or interfaces.

use std::net::IpAddr;
use std::time::Duration;

use everywire_transport::ib::attr::{MAX_INLINE, MAX_QUEUE_DEPTH, MAX_RD_ATOMIC, MAX_SGE};
use everywire_transport::iwarp::Rtr;
use everywire_wire::{Gid, Guid, Lid, Mtu, PKey};

use crate::table::MAX_ENTRIES;
pub use crate::wire_kind::{NodeType, Wire, WireFeature};

/// The most queue pairs a device may be configured for: their number holds the slot and a generation.
pub const MAX_QPS: u32 = 1 << 16;
/// The most completion queue entries.
pub const MAX_CQE: u32 = 1 << 22;
/// The largest registration, in bytes.
pub const MAX_REGISTRATION: u64 = 1 << 46;

/// Which frames an address of a device is for: Linux's `gid_attrs/types`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GidType {
    /// A GID of an InfiniBand port.
    Ib,
    /// RoCE v1: a GRH in an Ethernet frame, within one broadcast domain (IBTA annex A16).
    RoceV1,
    /// RoCE v2: UDP over IP, across routers (IBTA annex A17).
    #[default]
    RoceV2,
}

impl GidType {
    /// As `show_gids` and sysfs name it.
    pub fn name(self) -> &'static str {
        match self {
            GidType::Ib => "IB",
            GidType::RoceV1 => "RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        }
    }
}

/// One address of a device: an entry of its GID table. An address may have an entry of each type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub ip: IpAddr,
    /// Interface index of a link-local IPv6 address; 0 otherwise.
    pub scope_id: u32,
    /// The network interface it is on.
    pub interface: Option<String>,
    /// Which frames it is for. Where an address has several entries the first is taken unless another is asked for.
    pub ty: GidType,
}

impl GidEntry {
    /// A RoCE v2 address that needs no interface.
    pub fn new(ip: IpAddr) -> GidEntry {
        GidEntry { ip, scope_id: 0, interface: None, ty: GidType::RoceV2 }
    }

    /// The same address for other frames.
    #[must_use]
    pub fn of_type(mut self, ty: GidType) -> GidEntry {
        self.ty = ty;
        self
    }

    /// The address as a GID: IPv4 as `::ffff:a.b.c.d`.
    pub fn gid(&self) -> Gid {
        Gid::from(self.ip)
    }
}

/// How the ICRC of datagrams is checked whose IPv4 Identification the driver could not see. IPv6, and datagrams with a
/// known Identification, are always checked in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IcrcCheck {
    /// Any Identification and "don't fragment" bit that make the sum right are accepted: for any peer. One wrong packet
    /// in 2^15 is let through, on top of what the link's and UDP's own checksums find.
    #[default]
    HiddenId,
    /// Only what our own drivers write is accepted: an Identification below the burst limit, and "don't fragment". Peers
    /// such as Linux's rxe write any Identification and are not understood.
    Full,
}

/// What a device may hold. All are enforced; the attributes report them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs, at most [`MAX_QPS`].
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Segments of one work request.
    pub max_sge: u32,
    /// Inline bytes of one send.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue, at most [`MAX_CQE`].
    pub max_cqe: u32,
    /// Memory regions, fast-register ones included.
    pub max_mr: u32,
    /// Bytes of one region, at most [`MAX_REGISTRATION`].
    pub max_mr_size: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives of one shared receive queue.
    pub max_srq_wr: u32,
    /// Address handles.
    pub max_ah: u32,
    /// READs and atomics of one queue pair, in either role.
    pub max_qp_rd_atom: u8,
    /// Pieces of one fast registration.
    pub max_fast_reg_pages: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs of one multicast group.
    pub max_mcast_qp_attach: u32,
}

impl Default for DeviceLimits {
    fn default() -> DeviceLimits {
        DeviceLimits {
            max_qp: 1 << 14,
            max_qp_wr: MAX_QUEUE_DEPTH,
            max_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            max_cq: 1 << 15,
            max_cqe: MAX_CQE,
            max_mr: 1 << 18,
            max_mr_size: MAX_REGISTRATION,
            max_mw: 1 << 17,
            max_pd: 1 << 14,
            max_srq: 1 << 12,
            max_srq_wr: 1 << 16,
            max_ah: 1 << 16,
            max_qp_rd_atom: MAX_RD_ATOMIC,
            max_fast_reg_pages: 512,
            max_mcast_grp: 256,
            max_mcast_qp_attach: 256,
        }
    }
}

impl DeviceLimits {
    /// Brings every limit down to what the implementation can keep.
    pub(crate) fn clamped(mut self) -> DeviceLimits {
        self.max_qp = self.max_qp.min(MAX_QPS);
        self.max_qp_wr = self.max_qp_wr.min(MAX_QUEUE_DEPTH);
        self.max_sge = self.max_sge.min(MAX_SGE);
        self.max_inline = self.max_inline.min(MAX_INLINE);
        self.max_cqe = self.max_cqe.min(MAX_CQE);
        self.max_mr_size = self.max_mr_size.min(MAX_REGISTRATION);
        self.max_qp_rd_atom = self.max_qp_rd_atom.min(MAX_RD_ATOMIC);
        // Keys have 24 bits to be drawn from, and some of them rest: a quarter in use leaves room to draw.
        for limit in
            [&mut self.max_cq, &mut self.max_pd, &mut self.max_srq, &mut self.max_mr, &mut self.max_mw]
        {
            *limit = (*limit).min(MAX_ENTRIES);
        }
        self
    }
}

/// How an iWARP device sets connections up; of no meaning on other wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IwarpOptions {
    /// Ask for a CRC in every FPDU. The peer's wish counts as much: one that asks gets it (RFC 5044 §7.1).
    pub crc: bool,
    /// Ask the peer to put markers into what it sends. What it asks of this side is done in any case.
    pub markers: bool,
    /// The MPA revision to ask with: 1 (RFC 5044) or 2 (RFC 6581). Both are accepted.
    pub mpa_version: u8,
    /// Ask for peer-to-peer connections, with this message as RTR; needs MPA revision 2.
    pub peer_to_peer: Option<Rtr>,
    /// How long a connection that this side has asked for waits after the peer's yes before it is up. Linux's siw does not
    /// notice what comes while it is still busy accepting. Empty WRITEs wake it later, so that this is of use only where the
    /// first messages could fill its window by then; nobody else needs it.
    pub pause: Duration,
    /// Atomics and immediate data by RFC 7306, which Linux's siw does not know. A peer's masked atomics are done, too; an
    /// atomic whose offset is no multiple of eight is refused. This side asks for atomics of whole words only.
    pub rfc7306: bool,
    /// Whether the sink of a READ must allow `REMOTE_WRITE`, as RFC 5040 §4.3 has it, since the response is a tagged
    /// message like any other. If not, `LOCAL_WRITE` is enough, as on the other wires.
    pub strict_read_sink: bool,
}

impl Default for IwarpOptions {
    fn default() -> IwarpOptions {
        IwarpOptions {
            crc: true,
            markers: false,
            mpa_version: 2,
            peer_to_peer: None,
            pause: Duration::ZERO,
            rfc7306: false,
            strict_read_sink: true,
        }
    }
}

/// What a device is made with.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Its name, as in messages: "rocev2:127.0.0.1".
    pub name: String,
    /// What carries its messages.
    pub wire: Wire,
    /// How an iWARP device sets connections up.
    pub iwarp: IwarpOptions,
    /// Its addresses; the first is the default source.
    pub gids: Vec<GidEntry>,
    /// IP addresses by which an InfiniBand port is known to those who connect; none on other wires, where addresses are GIDs.
    pub ip_names: Vec<IpAddr>,
    /// Low bits of an InfiniBand port's LID that its connections and address handles have where they ask for none; below 2^LMC.
    pub path_bits: u8,
    /// The largest path MTU it uses.
    pub active_mtu: Mtu,
    /// Its GUID; zero takes one from the seed.
    pub node_guid: Guid,
    /// What it may hold.
    pub limits: DeviceLimits,
    /// Where all entropy comes from: queue pair numbers, keys, communication ids, first PSNs. Whoever knows it can guess
    /// them.
    pub seed: u64,
    /// UDP source ports that the driver can send from. Flows are spread over them; the first carries QP1.
    pub source_ports: Vec<u16>,
    /// How strictly ICRCs are checked.
    pub icrc_check: IcrcCheck,
    /// The top byte of every queue pair number and communication id, where several processes share one address and a
    /// packet filter steers by that byte.
    pub id_slot: Option<u8>,
}

impl Default for DeviceConfig {
    fn default() -> DeviceConfig {
        DeviceConfig {
            name: String::from("everywire0"),
            wire: Wire::RoceV2,
            iwarp: IwarpOptions::default(),
            gids: Vec::new(),
            ip_names: Vec::new(),
            path_bits: 0,
            active_mtu: Mtu::M4096,
            node_guid: Guid(0),
            limits: DeviceLimits::default(),
            seed: 0,
            source_ports: vec![DEFAULT_SOURCE_PORT],
            icrc_check: IcrcCheck::default(),
            id_slot: None,
        }
    }
}

/// The UDP source port of a device that was given none: the first of the range RoCE v2 draws from.
pub const DEFAULT_SOURCE_PORT: u16 = 0xc000;

impl DeviceConfig {
    /// A RoCE v2 device at `ip`, with everything else at its default; give it a seed of real entropy.
    pub fn roce_v2(ip: IpAddr) -> DeviceConfig {
        DeviceConfig {
            name: format!("rocev2:{ip}"),
            gids: vec![GidEntry::new(ip)],
            ..DeviceConfig::default()
        }
    }

    /// An iWARP device at `ip`, with everything else at its default; give it a seed of real entropy.
    pub fn iwarp(ip: IpAddr) -> DeviceConfig {
        DeviceConfig {
            name: format!("iwarp:{ip}"),
            wire: Wire::Iwarp,
            gids: vec![GidEntry::new(ip)],
            ..DeviceConfig::default()
        }
    }

    /// A RoCE v1 device at `ip` (its GID is that address: link-local, or IPv4-mapped), with everything else at its default;
    /// give it a seed of real entropy.
    pub fn roce_v1(ip: IpAddr) -> DeviceConfig {
        DeviceConfig {
            name: format!("rocev1:{ip}"),
            wire: Wire::RoceV1,
            gids: vec![GidEntry::new(ip).of_type(GidType::RoceV1)],
            ..DeviceConfig::default()
        }
    }
}

/// How atomics are atomic. The numbers are `ibv_atomic_cap`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AtomicCap {
    /// Not offered.
    None = 0,
    /// Among the queue pairs of this device.
    Hca = 1,
    /// Also with respect to this host's CPUs.
    Glob = 2,
}

/// What a device says about itself (Query HCA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Its name.
    pub name: String,
    /// What carries its messages.
    pub wire: Wire,
    /// What sort of device it is.
    pub node_type: NodeType,
    /// Whether it has unreliable connections.
    pub uc: bool,
    /// Whether it has datagrams.
    pub ud: bool,
    /// Whether it has multicast groups.
    pub multicast: bool,
    /// Whether it has immediate data.
    pub immediate: bool,
    /// Its GUID.
    pub node_guid: Guid,
    /// Version of this implementation.
    pub fw_ver: &'static str,
    /// Its limits.
    pub limits: DeviceLimits,
    /// How atomics are atomic.
    pub atomic_cap: AtomicCap,
    /// Page sizes, as a bit mask: any, memory need not be pinned.
    pub page_size_cap: u64,
    /// Type 1 windows, type 2B windows, fast registration, send with invalidate, SRQ.
    pub mem_extensions: bool,
    /// Physical ports.
    pub phys_port_cnt: u8,
    /// Partition table entries.
    pub max_pkeys: u16,
    /// Exponent of the local ACK delay: 4.096 µs · 2^n.
    pub local_ca_ack_delay: u8,
}

/// State of the port. The numbers are `ibv_port_state`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortState {
    /// No link.
    Down = 1,
    /// In use.
    Active = 4,
}

/// What the port says about itself (Query Port).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Link state as the driver reports it.
    pub state: PortState,
    /// The largest MTU the device knows.
    pub max_mtu: Mtu,
    /// The largest it uses.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// The partition table's first entry.
    pub pkey: PKey,
    /// Base LID; 0 where there are none.
    pub lid: Lid,
    /// The port answers to 2^LMC LIDs.
    pub lmc: u8,
    /// LID of the subnet manager; 0 where there is none.
    pub sm_lid: Lid,
    /// Service level of packets to it.
    pub sm_sl: u8,
    /// Longest message, in bytes.
    pub max_msg_sz: u32,
}
