//! A port: its state, its lanes with their queues and credits, its counters, and what the subnet manager has told it.
//!
//! Read IBTA §7.2 (states) and §14.2.5.6 (PortInfo) first. What the hot path asks for is kept beside the PortInfo and
//! brought up to date by [`Port::refresh`] whenever that changes.

use std::collections::VecDeque;

use everywire_wire::smp::codes::{capability, physical_state, port_state, vls};
use everywire_wire::smp::{PortInfo, SlToVl};
use everywire_wire::{Gid, Guid, Lid, Mtu, PKey};

use super::arbiter::Arbiter;
use super::config::LinkParams;
use super::counters::Counters;
use super::credits::{BLOCK, Receiver, Sender};
use super::packet::{Hold, NONE};
use crate::clock::{SimTime, nanos};

/// Lanes, the one of subnet management included.
pub(super) const LANES: usize = 16;
/// The lane of subnet management.
pub(super) const VL15: u8 = 15;
/// Bytes that the headers, ICRC and VCRC add at most to an MTU of payload (IBTA §7.7.8).
pub(super) const PACKET_OVERHEAD: usize = 126;
/// Timeouts of 4.096 µs × 2^value stand for "never" from this value on (IBTA §18.2.5.4).
pub(super) const LIFETIME_FOREVER: u8 = 20;
/// Entries of a port's P_Key table.
pub(super) const PKEYS: usize = 64;
/// Thresholds of error traps before a subnet manager sets them.
const LOCAL_PHY_ERRORS: u8 = 8;
/// GUIDs of a port.
pub(super) const GUIDS: usize = 8;

/// Where a cable ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cable {
    /// The other port.
    pub peer: u32,
    pub link: u32,
    pub delay_ns: u64,
    /// Picoseconds that a byte takes.
    pub ps_per_byte: u64,
    pub params: LinkParams,
}

impl Cable {
    pub fn new(peer: u32, link: u32, params: LinkParams) -> Cable {
        let ps_per_byte = 8_000_000_000_000 / params.data_bits();
        Cable { peer, link, delay_ns: nanos(params.delay), ps_per_byte, params }
    }

    #[inline]
    pub fn serialisation_ns(&self, bytes: usize) -> u64 {
        (bytes as u64 * self.ps_per_byte).div_ceil(1000)
    }
}

#[derive(Debug)]
pub(super) struct Port {
    pub node: u32,
    pub number: u8,
    pub in_switch: bool,
    /// Logical state, one of [`port_state`].
    pub state: u8,
    /// Goes up with every change between up and down, so that what belongs to an earlier link is known.
    pub epoch: u32,
    pub cable: Option<Cable>,

    /// A packet is on its way out, and this is the buffer that it leaves.
    pub sending: bool,
    pub leaving: Hold,
    /// By lane: packets to send.
    pub queues: [VecDeque<u32>; LANES],
    /// Lanes with something in their queue.
    pub queued: u16,
    /// Lanes whose credits the neighbour has to hear of.
    pub flow_control_due: u16,
    pub sender: [Sender; LANES],
    pub receiver: [Receiver; LANES],
    pub arbiter: Arbiter,
    /// By input port (one on an adapter), then service level.
    pub lane_of: Vec<[u8; LANES]>,
    /// Data lanes in use, as a mask.
    pub lanes: u16,
    /// The longest packet, LRH to VCRC, that the neighbour takes.
    pub longest: usize,
    /// Since when something waits though the wire is free.
    pub waiting_since: Option<SimTime>,
    /// Damaged packets that came in, less the whole ones since (IBTA §7.12.2).
    pub physical_errors: u8,
    /// When it looks again by itself whether it can send.
    pub wake_at: Option<SimTime>,
    /// By lane: since when the first packet of the queue is the first.
    pub head_since: [SimTime; LANES],
    /// The sender of an adapter was refused and has not been told of room yet, by service level.
    pub refused: u16,
    /// Its lamp is on (LedInfo).
    pub led: bool,

    pub info: PortInfo,
    pub guids: [Guid; GUIDS],
    pub pkeys: [PKey; PKEYS],
    pub counters: Counters,
}

impl Port {
    pub fn new(node: u32, number: u8, in_switch: bool, guid: Guid, inputs: usize) -> Port {
        let mut guids = [Guid(0); GUIDS];
        guids[0] = guid;
        let mut pkeys = [PKey(0); PKEYS];
        pkeys[0] = PKey::DEFAULT;
        let mut port = Port {
            node,
            number,
            in_switch,
            state: port_state::DOWN,
            epoch: 0,
            cable: None,
            sending: false,
            leaving: Hold::NOTHING,
            queues: std::array::from_fn(|_| VecDeque::new()),
            queued: 0,
            flow_control_due: 0,
            sender: [Sender::default(); LANES],
            receiver: [Receiver::default(); LANES],
            arbiter: Arbiter::new(1),
            lane_of: vec![[0; LANES]; inputs],
            lanes: 1,
            longest: 0,
            waiting_since: None,
            physical_errors: 0,
            wake_at: None,
            head_since: [SimTime::ZERO; LANES],
            refused: 0,
            led: false,
            info: first_info(number, in_switch),
            guids,
            pkeys,
            counters: Counters::default(),
        };
        if in_switch && number == 0 {
            // The management port has no link: it is up as long as its switch is (IBTA §14.2.5.6).
            port.info.port_physical_state = physical_state::LINK_UP;
            port.state = port_state::ACTIVE;
        }
        port.refresh();
        port
    }

    /// A cable is plugged in: what both ends can do is known.
    pub fn plug(&mut self, cable: Cable) {
        let LinkParams { width, speed, mtu, vls, .. } = cable.params;
        let info = &mut self.info;
        (info.link_width_supported, info.link_width_enabled) = (width.code(), width.code());
        (info.link_speed_supported, info.link_speed_enabled) = (speed.code(), speed.code());
        (info.link_speed_ext_supported, info.link_speed_ext_enabled) =
            (speed.extended_code(), speed.extended_code());
        (info.mtu_cap, info.neighbor_mtu) = (mtu.code(), mtu.code());
        info.vl_cap = vl_code(vls);
        info.operational_vls = info.vl_cap;
        self.cable = Some(cable);
        self.arbiter = Arbiter::new(vls);
        let lanes: [u8; LANES] = std::array::from_fn(|sl| sl as u8 % vls);
        self.lane_of.fill(lanes);
        self.refresh();
    }

    /// The power was off: what the subnet manager had set is gone; counters, cable and incarnation stay.
    pub fn forget(&mut self) {
        let fresh = Port::new(self.node, self.number, self.in_switch, self.guids[0], self.lane_of.len());
        let old = std::mem::replace(self, fresh);
        (self.epoch, self.counters) = (old.epoch, old.counters);
        if let Some(cable) = old.cable {
            self.plug(cable);
        }
    }

    /// The link has come up: everything begins at zero (IBTA §7.9.4.2).
    pub fn link_up(&mut self) {
        let Some(cable) = self.cable else { return };
        let capacity = (cable.params.buffer / BLOCK).min(usize::from(super::credits::MAX_BLOCKS)) as u16;
        self.epoch = self.epoch.wrapping_add(1);
        self.state = port_state::INIT;
        self.info.port_physical_state = physical_state::LINK_UP;
        let LinkParams { width, speed, vls, .. } = cable.params;
        self.info.link_width_active = width.code();
        (self.info.link_speed_active, self.info.link_speed_ext_active) =
            (speed.code(), speed.extended_code());
        (self.sending, self.leaving) = (false, Hold::NOTHING);
        self.sender = [Sender::default(); LANES];
        self.receiver = std::array::from_fn(|vl| Receiver::new(if vl < vls.into() { capacity } else { 0 }));
        self.flow_control_due = ((1u32 << vls) - 1) as u16;
        self.waiting_since = None;
        self.refresh();
    }

    /// The link is gone.
    pub fn link_down(&mut self, physical: u8) {
        self.epoch = self.epoch.wrapping_add(1);
        self.state = port_state::DOWN;
        self.info.port_physical_state = physical;
        (self.sending, self.flow_control_due) = (false, 0);
        self.waiting_since = None;
        self.refresh();
    }

    /// Brings what the hot path asks for up to date with the PortInfo.
    pub fn refresh(&mut self) {
        self.info.port_state = self.state;
        let in_use = vls::count(self.info.operational_vls).max(1);
        self.lanes = ((1u32 << in_use) - 1) as u16;
        let mtu = Mtu::from_code(self.info.neighbor_mtu).unwrap_or(Mtu::M256);
        self.longest = mtu.bytes() + PACKET_OVERHEAD;
        self.arbiter.set_limit(self.info.vl_high_limit);
    }

    pub fn is_up(&self) -> bool {
        self.state != port_state::DOWN
    }

    /// Lanes that may send in the present state (IBTA §7.2.7).
    #[inline]
    pub fn may_send(&self) -> u16 {
        match self.state {
            port_state::ACTIVE => self.lanes | 1 << VL15,
            port_state::DOWN => 0,
            _ => 1 << VL15,
        }
    }

    /// Whether a unicast LID is one of this port's.
    #[inline]
    pub fn has_lid(&self, lid: Lid) -> bool {
        let mask = !((1u16 << self.info.lmc) - 1);
        lid.is_unicast() && lid.0 & mask == self.info.lid.0
    }

    /// The lane for a service level and an input port; 15 for "drop".
    #[inline]
    pub fn lane(&self, input: u8, sl: u8) -> u8 {
        self.lane_of[if self.in_switch { usize::from(input) } else { 0 }][usize::from(sl & 15)]
    }

    pub fn sl_to_vl(&self, input: u8) -> Option<SlToVl> {
        self.lane_of.get(usize::from(input)).map(|lanes| SlToVl::new(*lanes))
    }

    /// Whether a packet of that partition may pass here (IBTA §10.9.3).
    pub fn admits(&self, pkey: PKey) -> bool {
        self.pkeys.iter().any(|own| own.matches(pkey))
    }

    pub fn is_sm(&self) -> bool {
        self.info.capability_mask & capability::IS_SM != 0
    }

    /// Stops the clock of PortXmitWait.
    #[inline]
    pub fn stop_waiting(&mut self, now: SimTime) {
        if let Some(since) = self.waiting_since.take() {
            self.counters.xmit_wait_ns += now.as_nanos() - since.as_nanos();
        }
    }

    pub fn peer(&self) -> u32 {
        self.cable.map_or(NONE, |cable| cable.peer)
    }
}

/// The code of a number of data lanes.
fn vl_code(lanes: u8) -> u8 {
    (1..=5).find(|code| vls::count(*code) >= lanes).unwrap_or(5)
}

/// What a port knows before a cable and a subnet manager tell it more.
fn first_info(number: u8, in_switch: bool) -> PortInfo {
    let mut capabilities = capability::EXTENDED_SPEEDS | capability::LED_INFO;
    if !in_switch || number == 0 {
        capabilities |= capability::TRAP | capability::SL_MAPPING | capability::SYSTEM_IMAGE_GUID;
    }
    if !in_switch {
        capabilities |= capability::COMMUNICATION_MANAGEMENT | capability::CLIENT_REREGISTRATION;
    }
    PortInfo {
        gid_prefix: Gid::DEFAULT_PREFIX,
        capability_mask: capabilities,
        port_state: port_state::DOWN,
        port_physical_state: physical_state::POLLING,
        link_down_default_state: physical_state::POLLING,
        neighbor_mtu: Mtu::M256.code(),
        mtu_cap: Mtu::M4096.code(),
        vl_cap: 1,
        operational_vls: 1,
        vl_arbitration_high_cap: super::arbiter::ENTRIES as u8,
        vl_arbitration_low_cap: super::arbiter::ENTRIES as u8,
        hoq_life: LIFETIME_FOREVER,
        guid_cap: GUIDS as u8,
        local_phy_errors: LOCAL_PHY_ERRORS,
        overrun_errors: LOCAL_PHY_ERRORS,
        subnet_timeout: 18,
        resp_time_value: 16,
        ..PortInfo::default()
    }
}
