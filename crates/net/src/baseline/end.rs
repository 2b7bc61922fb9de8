//! One end of a test: the product's sockets, the ICRCs of both directions, and spinning.

use std::net::{IpAddr, SocketAddr};

use everywire_wire::icrc::FLAGS_DF;
use everywire_wire::{HiddenId, IcrcV4, IcrcV6, icrc_v4, icrc_v6};

use super::{BTH, ICRC, header};
use crate::udp::{Outgoing, UdpPort};

/// The addresses that the ICRCs of one direction cover.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) src_port: u16,
}

impl Flow {
    /// ICRC of a datagram whose IPv4 Identification is `id`.
    pub(super) fn icrc(&self, id: u16, bth_to_pad: &[u8]) -> [u8; 4] {
        let sum = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                icrc_v4(&IcrcV4 { src, dst, id, flags_frag: FLAGS_DF, src_port: self.src_port }, bth_to_pad)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                icrc_v6(&IcrcV6 { src, dst, src_port: self.src_port }, bth_to_pad)
            }
            _ => 0,
        };
        sum.to_le_bytes()
    }

    /// Writes the ICRC into the last four bytes.
    pub(super) fn seal(&self, id: u16, datagram: &mut [u8]) {
        let (covered, icrc) = datagram.split_at_mut(datagram.len() - ICRC);
        icrc.copy_from_slice(&self.icrc(id, covered));
    }

    /// Whether the ICRC is right, as far as a UDP socket can tell.
    pub(super) fn check(&self, datagram: &[u8]) -> bool {
        let Some((covered, icrc)) = datagram.split_last_chunk::<ICRC>() else { return false };
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let net = IcrcV4 { src, dst, id: 0, flags_frag: FLAGS_DF, src_port: self.src_port };
                HiddenId::new().verify(&net, covered, *icrc).is_some()
            }
            _ => self.icrc(0, covered) == *icrc,
        }
    }
}

/// Spins, but gives the processor away now and then once it has spun for long: on a busy machine the peer may need it.
#[derive(Debug, Default)]
pub(super) struct Spin {
    turns: u32,
}

/// Empty turns, a few dozen microseconds, before the processor is given away.
const PATIENT_TURNS: u32 = 256;

impl Spin {
    pub(super) fn turn(&mut self, progress: bool) {
        self.turns = if progress { 0 } else { self.turns + 1 };
        if self.turns >= PATIENT_TURNS {
            std::thread::yield_now();
        }
    }
}

/// One end of a test: sockets, and the peer.
#[derive(Debug)]
pub(super) struct End {
    pub(super) port: UdpPort,
    pub(super) out: Flow,
    pub(super) back: Flow,
    pub(super) peer: SocketAddr,
    pub(super) spin: Spin,
}

impl End {
    pub(super) fn send(&mut self, datagram: &[u8]) {
        self.send_all(&[self.outgoing(datagram, None)]);
    }

    pub(super) fn outgoing<'a>(&self, bytes: &'a [u8], segment: Option<usize>) -> Outgoing<'a> {
        Outgoing {
            src_port: self.out.src_port,
            dst: self.peer,
            tos: 0,
            ttl: 64,
            segment,
            bytes,
            roce_v1: false,
        }
    }

    /// Sends all, however often the buffer is full.
    pub(super) fn send_all(&mut self, items: &[Outgoing<'_>]) {
        let mut done = 0;
        while done < items.len() {
            done += self.port.send(&items[done..], &mut Vec::new());
        }
    }

    /// A short datagram without payload.
    pub(super) fn control(&mut self, opcode: u8, sequence: u32, body: &[u8]) {
        let mut datagram = vec![0; BTH + body.len() + ICRC];
        header(&mut datagram, opcode, sequence);
        datagram[BTH..][..body.len()].copy_from_slice(body);
        self.out.seal(0, &mut datagram);
        self.send(&datagram);
    }

    /// Calls `each` for every datagram of the peer that is there and whose ICRC is right.
    pub(super) fn receive(&mut self, mut each: impl FnMut(&[u8])) {
        let back = self.back;
        let mut any = false;
        self.port.receive(&mut 0, &mut Vec::new(), |received| {
            any = true;
            for datagram in received.segments() {
                if datagram.len() >= BTH + ICRC && back.check(datagram) {
                    each(datagram);
                }
            }
        });
        self.spin.turn(any);
    }
}
