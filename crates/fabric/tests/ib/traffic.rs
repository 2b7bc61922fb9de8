//! RC WRITE packets, and hosts that send them as fast as their ports take them.

use std::collections::HashMap;
use std::time::Instant;

use everywire_fabric::ib::{Event, NodeId, PortId, Subnet};
use everywire_wire::vcrc::{VCRC_LEN, seal};
use everywire_wire::{Bth, Lid, Lnh, Lrh, Opcode, PKey, Psn, Qpn, RKey, Reth, icrc_ib};

/// An RC RDMA WRITE Only of `payload` bytes (a multiple of four), LRH to VCRC.
pub fn write_packet(slid: Lid, dlid: Lid, sl: u8, psn: u32, payload: usize) -> Vec<u8> {
    let len = Lrh::LEN + Bth::LEN + Reth::LEN + payload + 4;
    let mut packet = vec![0; len + VCRC_LEN];
    let lrh = Lrh { sl, lnh: Lnh::IbaLocal, dlid, slid, pkt_len: (len / 4) as u16, ..Lrh::default() };
    lrh.emit(&mut packet);
    let bth = Bth {
        opcode: Opcode::RC_WRITE_ONLY,
        mig_req: true,
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::new(0x48),
        ack_req: true,
        psn: Psn::new(psn),
        ..Bth::default()
    };
    bth.emit(&mut packet[Lrh::LEN..]);
    let at = Lrh::LEN + Bth::LEN;
    Reth { va: 0x1000, rkey: RKey(0x1234), length: payload as u32 }.emit(&mut packet[at..]);
    for (n, byte) in packet[at + Reth::LEN..len - 4].iter_mut().enumerate() {
        *byte = (n as u32).wrapping_mul(31).wrapping_add(psn) as u8;
    }
    let icrc = icrc_ib(&packet[..len - 4]).unwrap();
    packet[len - 4..len].copy_from_slice(&icrc.to_le_bytes());
    seal(&mut packet);
    packet
}

/// The PSN of a packet made by [`write_packet`].
pub fn psn(packet: &[u8]) -> u32 {
    Bth::parse(&packet[Lrh::LEN..]).unwrap().psn.get()
}

pub fn port(node: usize) -> PortId {
    PortId { node: NodeId(node as u32), port: 1 }
}

/// One stream of packets.
pub struct Flow {
    pub from: usize,
    pub slid: Lid,
    pub dlid: Lid,
    pub sl: u8,
    pub payload: usize,
    /// Packets to send, and sent.
    pub count: u32,
    pub sent: u32,
}

/// What came out.
#[derive(Default)]
pub struct Received {
    pub packets: u64,
    /// By source and service level: next PSN.
    pub next: HashMap<(Lid, u8), u32>,
    pub hops: u64,
}

impl Received {
    /// Order is kept by flow, and nothing is missing.
    pub fn take(&mut self, packet: &[u8], hops: u8) {
        let lrh = everywire_wire::vcrc::check_packet(packet).expect("whole");
        let next = self.next.entry((lrh.slid, lrh.sl)).or_default();
        assert_eq!(psn(packet), *next, "from {:?}", lrh.slid);
        *next += 1;
        self.packets += 1;
        self.hops += u64::from(hops);
    }
}

/// Sends all flows to their end, or until nothing moves any more; `each` sees the subnet after every event. Gives the time.
pub fn run(
    subnet: &mut Subnet,
    now: Instant,
    flows: &mut [Flow],
    received: &mut Received,
    mut each: impl FnMut(&Subnet),
) -> Instant {
    let mut now = now;
    loop {
        for flow in flows.iter_mut() {
            while flow.sent < flow.count && subnet.can_send(port(flow.from), flow.sl) {
                let packet = write_packet(flow.slid, flow.dlid, flow.sl, flow.sent, flow.payload);
                subnet.send(now, port(flow.from), packet).unwrap();
                flow.sent += 1;
            }
        }
        let Some(at) = subnet.poll_timeout() else { return now };
        now = at;
        while let Some(event) = subnet.poll(now) {
            if let Event::Deliver { packet, hops, .. } = event {
                received.take(&packet, hops);
            }
        }
        each(subnet);
    }
}
