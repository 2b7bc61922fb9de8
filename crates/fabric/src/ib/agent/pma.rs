//! The performance management agent: windows on a port's counters.
//!
//! Read IBTA §16.1.3 first. What a port counts never wraps ([`crate::ib::Counters`]); an attribute shows it since the last SET,
//! and stops at its field's highest value. PortCounters and PortCountersExtended are cleared apart from each other.

use everywire_wire::mad::{MadHeader, method, status};
use everywire_wire::perf::{
    ALL_PORTS, CLASS_VERSION, PerfMad, PortCounters, PortCountersExtended, attribute, capability,
};
use everywire_wire::sa::ClassPortInfo;
use everywire_wire::{MAD_LEN, Mad};

use crate::clock::SimTime;
use crate::ib::counters::Counters;
use crate::ib::subnet::Subnet;

/// Counters of PortCounters, in the order of its select bits; the last is that of the second select.
const BASIC: usize = 17;
/// Counters of PortCountersExtended, in the order of its select bits.
const EXTENDED: usize = 8;
/// Nanoseconds of a tick of PortXmitWait.
pub(super) const TICK_NS: u64 = 4;
/// Longest time to an answer: 4.096 µs × 2^16, a quarter of a second.
const RESP_TIME: u8 = 16;

/// Where counting began, for each attribute.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::ib) struct Windows {
    basic: [u64; BASIC],
    extended: [u64; EXTENDED],
}

impl Subnet {
    /// The answer to a performance management MAD that reached the node by the port `index`.
    pub(super) fn answer_perf(&mut self, now: SimTime, index: u32, mad: &Mad) -> Option<Mad> {
        let request = PerfMad::parse(mad).ok()?;
        let mut answer = request;
        answer.header = MadHeader { method: method::GET_RESP, status: 0, ..request.header };
        let set = match request.header.method {
            method::GET => false,
            method::SET => true,
            _ => {
                answer.header.status = status::UNSUPPORTED_METHOD;
                return Some(emitted(&answer));
            }
        };
        answer.header.status =
            if request.header.base_version != 1 || request.header.class_version != CLASS_VERSION {
                status::BAD_VERSION
            } else {
                self.perf_attribute(now, index, set, request.header.attribute_id, &mut answer.data)
                    .err()
                    .unwrap_or(0)
            };
        Some(emitted(&answer))
    }

    fn perf_attribute(
        &mut self,
        now: SimTime,
        index: u32,
        set: bool,
        id: u16,
        data: &mut [u8; 192],
    ) -> Result<(), u16> {
        match id {
            attribute::CLASS_PORT_INFO if !set => {
                *data = [0; 192];
                class_port_info().emit(data);
                Ok(())
            }
            attribute::PORT_SAMPLES_CONTROL => self.samples_control(now, index, set, data),
            attribute::PORT_SAMPLES_RESULT if !set => {
                self.samples_result(index, data);
                Ok(())
            }
            attribute::PORT_COUNTERS => {
                let asked = PortCounters::parse(data).map_err(|_| status::INVALID_FIELD)?;
                let ports = self.selected(index, asked.port_select)?;
                if set {
                    let select = u32::from(asked.counter_select) | u32::from(asked.counter_select2 & 1) << 16;
                    let values = basic_values(&asked);
                    self.write_windows(&ports, select, &values, |w| &mut w.basic, basic);
                }
                let sums = self.read_windows::<BASIC>(&ports, |w| w.basic, basic);
                let dropped: u64 =
                    ports.iter().map(|port| self.ports[*port as usize].counters.qp1_dropped).sum();
                // No select bit clears this one.
                let qp1_dropped = u16::try_from(dropped).unwrap_or(u16::MAX);
                PortCounters { qp1_dropped, ..basic_attribute(&asked, &sums) }.emit(data);
                Ok(())
            }
            attribute::PORT_COUNTERS_EXTENDED => {
                let asked = PortCountersExtended::parse(data).map_err(|_| status::INVALID_FIELD)?;
                let ports = self.selected(index, asked.port_select)?;
                if set {
                    let values = extended_values(&asked);
                    let select = u32::from(asked.counter_select);
                    self.write_windows(&ports, select, &values, |w| &mut w.extended, extended);
                }
                let sums = self.read_windows::<EXTENDED>(&ports, |w| w.extended, extended);
                extended_attribute(&asked, &sums).emit(data);
                Ok(())
            }
            _ => Err(status::UNSUPPORTED_METHOD_ATTRIBUTE),
        }
    }

    /// Indices of the ports that a select names.
    pub(super) fn selected(&self, index: u32, select: u8) -> Result<Vec<u32>, u16> {
        let node = self.node_of(index);
        let least = if node.switch().is_some() { 0 } else { 1 };
        match select {
            ALL_PORTS => Ok((least..=node.ports).map(|number| node.port(number)).collect()),
            number if (least..=node.ports).contains(&number) => Ok(vec![node.port(number)]),
            _ => Err(status::INVALID_FIELD),
        }
    }

    fn window(&mut self, index: u32) -> &mut Windows {
        let (node, number) = (self.ports[index as usize].node, self.ports[index as usize].number);
        let node = &mut self.nodes[node as usize];
        node.agent.windows.resize(usize::from(node.ports) + 1, Windows::default());
        &mut node.agent.windows[usize::from(number)]
    }

    fn write_windows<const N: usize>(
        &mut self,
        ports: &[u32],
        select: u32,
        values: &[u64; N],
        of: impl Fn(&mut Windows) -> &mut [u64; N],
        totals: impl Fn(&Counters) -> [u64; N],
    ) {
        for &port in ports {
            let now = totals(&self.ports[port as usize].counters);
            let base = of(self.window(port));
            for n in (0..N).filter(|n| select & 1 << n != 0) {
                // So that the counter shows the value that was written.
                base[n] = now[n].wrapping_sub(values[n]);
            }
        }
    }

    fn read_windows<const N: usize>(
        &mut self,
        ports: &[u32],
        of: impl Fn(&Windows) -> [u64; N],
        totals: impl Fn(&Counters) -> [u64; N],
    ) -> [u64; N] {
        let mut sums = [0u64; N];
        for &port in ports {
            let now = totals(&self.ports[port as usize].counters);
            let base = of(self.window(port));
            for n in 0..N {
                sums[n] = sums[n].saturating_add(now[n].wrapping_sub(base[n]));
            }
        }
        sums
    }
}

fn emitted(mad: &PerfMad) -> Mad {
    let mut out = [0; MAD_LEN];
    mad.emit(&mut out);
    out
}

fn class_port_info() -> ClassPortInfo {
    ClassPortInfo {
        base_version: 1,
        class_version: CLASS_VERSION,
        capability_mask: capability::ALL_PORT_SELECT | capability::EXTENDED_WIDTH | capability::XMIT_WAIT,
        resp_time_value: RESP_TIME,
        ..ClassPortInfo::default()
    }
}

/// In the order of the select bits.
fn basic(c: &Counters) -> [u64; BASIC] {
    [
        c.symbol_errors,
        c.link_error_recovery,
        c.link_downed,
        c.rcv_errors,
        0,
        c.rcv_switch_relay_errors,
        c.xmit_discards,
        c.xmit_constraint_errors,
        c.rcv_constraint_errors,
        c.local_link_integrity_errors,
        c.buffer_overruns,
        c.vl15_dropped,
        c.xmit_words,
        c.rcv_words,
        c.xmit_packets,
        c.rcv_packets,
        c.xmit_wait_ns / TICK_NS,
    ]
}

fn basic_values(a: &PortCounters) -> [u64; BASIC] {
    [
        a.symbol_errors.into(),
        a.link_error_recovery.into(),
        a.link_downed.into(),
        a.rcv_errors.into(),
        a.rcv_remote_physical_errors.into(),
        a.rcv_switch_relay_errors.into(),
        a.xmit_discards.into(),
        a.xmit_constraint_errors.into(),
        a.rcv_constraint_errors.into(),
        a.local_link_integrity_errors.into(),
        a.excessive_buffer_overruns.into(),
        a.vl15_dropped.into(),
        a.xmit_data.into(),
        a.rcv_data.into(),
        a.xmit_packets.into(),
        a.rcv_packets.into(),
        a.xmit_wait.into(),
    ]
}

fn basic_attribute(asked: &PortCounters, v: &[u64; BASIC]) -> PortCounters {
    let at_most = |n: usize, most: u64| v[n].min(most);
    let (byte, half) = (|n| at_most(n, 0xff) as u8, |n| at_most(n, 0xffff) as u16);
    let (nibble, word) = (|n| at_most(n, 0xf) as u8, |n| at_most(n, 0xffff_ffff) as u32);
    PortCounters {
        port_select: asked.port_select,
        counter_select: asked.counter_select,
        symbol_errors: half(0),
        link_error_recovery: byte(1),
        link_downed: byte(2),
        rcv_errors: half(3),
        rcv_remote_physical_errors: half(4),
        rcv_switch_relay_errors: half(5),
        xmit_discards: half(6),
        xmit_constraint_errors: byte(7),
        rcv_constraint_errors: byte(8),
        local_link_integrity_errors: nibble(9),
        excessive_buffer_overruns: nibble(10),
        vl15_dropped: half(11),
        xmit_data: word(12),
        rcv_data: word(13),
        xmit_packets: word(14),
        rcv_packets: word(15),
        xmit_wait: word(16),
        ..PortCounters::default()
    }
}

/// In the order of the select bits.
fn extended(c: &Counters) -> [u64; EXTENDED] {
    [
        c.xmit_words,
        c.rcv_words,
        c.xmit_packets,
        c.rcv_packets,
        c.xmit_packets - c.multicast_xmit,
        c.rcv_packets - c.multicast_rcv,
        c.multicast_xmit,
        c.multicast_rcv,
    ]
}

fn extended_values(a: &PortCountersExtended) -> [u64; EXTENDED] {
    [
        a.xmit_data,
        a.rcv_data,
        a.xmit_packets,
        a.rcv_packets,
        a.unicast_xmit_packets,
        a.unicast_rcv_packets,
        a.multicast_xmit_packets,
        a.multicast_rcv_packets,
    ]
}

fn extended_attribute(asked: &PortCountersExtended, v: &[u64; EXTENDED]) -> PortCountersExtended {
    PortCountersExtended {
        port_select: asked.port_select,
        counter_select: asked.counter_select,
        xmit_data: v[0],
        rcv_data: v[1],
        xmit_packets: v[2],
        rcv_packets: v[3],
        unicast_xmit_packets: v[4],
        unicast_rcv_packets: v[5],
        multicast_xmit_packets: v[6],
        multicast_rcv_packets: v[7],
        ..PortCountersExtended::default()
    }
}
