//! A train of packets for one queue pair of one peer, in the shape that UDP segmentation offload wants.
//!
//! Read IBTA annexes A16 and A17, and §7 for InfiniBand. All segments of a burst are equally long, only the last
//! may be shorter; all go to one destination queue pair on one path. A Linux socket that is not connected and has
//! IP_PMTUDISC_DO numbers the segments 0, 1, 2… in the IPv4 Identification, which the ICRC covers: so packet `i` of a
//! burst is summed with Identification `i` and DF. A driver that cannot segment sends the packets one by one with those
//! same header fields. What precedes the BTH on the other wires, and follows the ICRC, is written here too. The payload is
//! copied once, into the burst, and summed while it is in the cache.

use std::net::IpAddr;

use everywire_wire::grh::{Grh, NEXT_HEADER_IBA};
use everywire_wire::icrc::FLAGS_DF;
use everywire_wire::lrh::{Lnh, Lrh};
use everywire_wire::vcrc::{self, VCRC_LEN};
use everywire_wire::{Gid, IcrcHasher, IcrcV4, IcrcV6, Qpn, RocePacket, icrc_grh, icrc_v4, icrc_v6};

use super::path::{LocalRoute, Path, PathLink};

/// Most bytes of a burst: the largest UDP payload over IPv4.
pub const MAX_BURST_BYTES: usize = 65_507;
/// Most packets of a burst. The kernel's limit is 64 or 128, by version.
pub const MAX_BURST_SEGMENTS: usize = 64;
/// Bytes of the ICRC.
const ICRC_LEN: usize = 4;

/// One datagram train. Reuse it: its buffer is allocated once.
#[derive(Debug)]
pub struct Burst {
    /// Always `MAX_BURST_BYTES` long, so that nothing is cleared before it is overwritten; `len` bytes are the burst.
    buf: Box<[u8]>,
    len: usize,
    /// Length of every segment but the last.
    segment: usize,
    count: usize,
    /// The last packet was shorter: nothing may follow.
    closed: bool,
    max_segments: usize,
    path: Option<Path>,
    dest_qp: Qpn,
    /// Bytes that the path's link has around BTH to ICRC.
    around: usize,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst::new(MAX_BURST_SEGMENTS)
    }
}

impl Burst {
    /// An empty burst that takes at most `max_segments` packets (1 where the driver cannot segment).
    pub fn new(max_segments: usize) -> Burst {
        Burst {
            buf: vec![0; MAX_BURST_BYTES].into_boxed_slice(),
            len: 0,
            segment: 0,
            count: 0,
            closed: false,
            max_segments: max_segments.clamp(1, MAX_BURST_SEGMENTS),
            path: None,
            dest_qp: Qpn::default(),
            around: 0,
        }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
        self.segment = 0;
        self.count = 0;
        self.closed = false;
        self.path = None;
        self.around = 0;
    }

    /// Whether it holds no packet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Packets.
    pub fn packets(&self) -> usize {
        self.count
    }

    /// All packets back to back. Each is a UDP payload, BTH to ICRC, and on the other wires what their link adds: it begins
    /// with its GRH or LRH, and ends with its VCRC if it has one.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// The segment size to give the kernel when there are several packets.
    pub fn segment_size(&self) -> Option<usize> {
        (self.count > 1).then_some(self.segment)
    }

    /// The packets one by one.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes().chunks(self.segment.max(1))
    }

    /// Where it goes. `None` while empty.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_ref()
    }

    /// The queue pair it goes to.
    pub fn dest_qp(&self) -> Qpn {
        self.dest_qp
    }

    /// Whether a packet with these headers and this much payload may be added.
    pub fn admits(&self, header_len: usize, payload_len: usize) -> bool {
        if self.count == 0 {
            return true;
        }
        let total = self.around + header_len + padded(payload_len) + ICRC_LEN;
        !self.closed
            && self.count < self.max_segments
            && total <= self.segment
            && self.len + total <= MAX_BURST_BYTES
    }

    /// Adds a packet: writes its headers, has `fill` write the payload, pads it and sums it. `path` must be the same for
    /// all packets of a burst, and [`Burst::admits`] must have said yes. On an error of `fill` nothing is added.
    pub fn push<E>(
        &mut self,
        path: &Path,
        headers: &RocePacket<'_>,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        const PAD: [u8; 3] = [0; 3];
        // IBTA §9.2.3: 0 to 3 bytes fill the payload up to a multiple of four.
        let pad_count = padded(payload_len) - payload_len;
        let packet = RocePacket { pad: &PAD[..pad_count], ..*headers };
        let at = self.len + path.link.lead_len();
        let header_len = packet.emit_headers(&mut self.buf[at..]);
        let payload_end = at + header_len + payload_len;
        fill(&mut self.buf[at + header_len..payload_end])?;
        let covered_end = payload_end + pad_count;
        self.buf[payload_end..covered_end].fill(0);
        let icrc = match path.link {
            PathLink::Udp => icrc(path, self.count as u16, &self.buf[at..covered_end]),
            PathLink::Grh => self.lead_with_grh(path, at, covered_end),
            PathLink::Lrh(route) => self.lead_with_lrh(path, &route, at, covered_end),
        };
        let icrc_end = covered_end + ICRC_LEN;
        self.buf[covered_end..icrc_end].copy_from_slice(&icrc.to_le_bytes());
        let end = if path.link.is_infiniband() { self.end_with_vcrc(icrc_end) } else { icrc_end };
        self.commit(path, packet.bth.dest_qp, end);
        Ok(())
    }

    /// Writes the GRH that ends where the BTH begins; gives the ICRC of it and what follows.
    fn lead_with_grh(&mut self, path: &Path, bth: usize, covered_end: usize) -> u32 {
        let grh = grh_bytes(path, covered_end - bth + ICRC_LEN);
        self.buf[bth - grh.len()..bth].copy_from_slice(&grh);
        icrc_grh(&grh, &self.buf[bth..covered_end])
    }

    /// Writes the LRH, and the GRH if the path has one, that end where the BTH begins; gives the ICRC of them and what follows.
    fn lead_with_lrh(&mut self, path: &Path, route: &LocalRoute, bth: usize, covered_end: usize) -> u32 {
        let grh = route.grh.then(|| grh_bytes(path, covered_end - bth + ICRC_LEN));
        let start = self.len;
        let lrh = Lrh {
            sl: route.sl,
            lnh: if route.grh { Lnh::IbaGlobal } else { Lnh::IbaLocal },
            dlid: route.dlid,
            slid: route.slid,
            // IBTA §7.7.8: words up to the VCRC.
            pkt_len: ((covered_end + ICRC_LEN - start) / 4) as u16,
            ..Lrh::default()
        };
        let mut bytes = [0; Lrh::LEN];
        lrh.emit(&mut bytes);
        self.buf[start..start + Lrh::LEN].copy_from_slice(&bytes);
        if let Some(grh) = &grh {
            self.buf[start + Lrh::LEN..bth].copy_from_slice(grh);
        }
        let bth_to_pad = &self.buf[bth..covered_end];
        if let Some(grh) = &grh {
            return icrc_grh(grh, bth_to_pad); // IBTA §7.8.1: routers change the LRH, so none of it counts
        }
        let mut hasher = IcrcHasher::lrh(&bytes);
        hasher.update(bth_to_pad);
        hasher.finish()
    }

    /// Writes the VCRC of the packet whose ICRC ends here, for virtual lane 0; gives where it ends.
    fn end_with_vcrc(&mut self, icrc_end: usize) -> usize {
        let end = icrc_end + VCRC_LEN;
        vcrc::seal(&mut self.buf[self.len..end]);
        end
    }

    fn commit(&mut self, path: &Path, dest_qp: Qpn, end: usize) {
        let total = end - self.len;
        if self.count == 0 {
            self.segment = total;
            self.path = Some(*path);
            self.dest_qp = dest_qp;
            self.around = path.link.lead_len() + path.link.tail_len();
        }
        debug_assert!(self.dest_qp == dest_qp && self.path.as_ref() == Some(path), "one flow a burst");
        self.closed = total < self.segment;
        self.count += 1;
        self.len = end;
    }
}

/// `payload_len` rounded up to the multiple of four that the wire wants.
fn padded(payload_len: usize) -> usize {
    payload_len.next_multiple_of(4)
}

/// The GRH of a packet with so many bytes from BTH to ICRC (IBTA §8.3).
fn grh_bytes(path: &Path, payload_len: usize) -> [u8; Grh::LEN] {
    let mut bytes = [0; Grh::LEN];
    let grh = Grh {
        ip_version: 6,
        traffic_class: path.traffic_class,
        flow_label: path.flow_label,
        payload_len: payload_len as u16,
        next_header: NEXT_HEADER_IBA,
        hop_limit: path.hop_limit,
        sgid: Gid::from(path.src),
        dgid: Gid::from(path.dst),
    };
    grh.emit(&mut bytes);
    bytes
}

/// The ICRC of the packet with this Identification (index in its burst). A path of mixed families has no packets.
fn icrc(path: &Path, id: u16, bth_to_pad: &[u8]) -> u32 {
    let src_port = path.src_port;
    match (path.src, path.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            icrc_v4(&IcrcV4 { src, dst, id, flags_frag: FLAGS_DF, src_port }, bth_to_pad)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => icrc_v6(&IcrcV6 { src, dst, src_port }, bth_to_pad),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everywire_wire::{Bth, Opcode, Psn};

    fn path() -> Path {
        Path::new("127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap(), 0xc001)
    }

    fn middle(psn: u32) -> RocePacket<'static> {
        let bth = Bth { opcode: Opcode::RC_WRITE_MIDDLE, psn: Psn::new(psn), ..Bth::default() };
        RocePacket { bth, ..RocePacket::default() }
    }

    fn push(burst: &mut Burst, psn: u32, len: usize) {
        assert!(burst.admits(12, len));
        burst
            .push(&path(), &middle(psn), len, |p| {
                p.fill(psn as u8);
                Ok::<(), ()>(())
            })
            .unwrap();
    }

    #[test]
    fn segments_are_equal_and_only_the_last_is_shorter() {
        let mut burst = Burst::default();
        push(&mut burst, 1, 256);
        push(&mut burst, 2, 256);
        assert!(!burst.admits(12, 260), "longer than the segment");
        push(&mut burst, 3, 17);
        assert!(!burst.admits(12, 16), "nothing follows a shorter one");
        assert_eq!(burst.segment_size(), Some(272));
        let lens: Vec<usize> = burst.segments().map(<[u8]>::len).collect();
        assert_eq!(lens, [272, 272, 12 + 20 + 4]);
    }

    #[test]
    fn pad_and_payload_come_back_for_every_length() {
        // cases RX-07: lengths 0..9.
        for len in 0..=9 {
            let mut burst = Burst::default();
            push(&mut burst, 7, len);
            let packet = RocePacket::parse(burst.bytes()).unwrap();
            assert_eq!(packet.bth.pad_count as usize, (4 - len % 4) % 4);
            assert_eq!(packet.payload, vec![7; len]);
            assert!(packet.pad.iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn identification_counts_within_the_burst() {
        let mut burst = Burst::default();
        push(&mut burst, 1, 8);
        push(&mut burst, 2, 8);
        for (id, segment) in burst.segments().enumerate() {
            let net = IcrcV4 {
                src: "127.0.0.1".parse().unwrap(),
                dst: "127.0.0.2".parse().unwrap(),
                id: id as u16,
                flags_frag: 0x4000,
                src_port: 0xc001,
            };
            let (body, tail) = segment.split_at(segment.len() - 4);
            assert_eq!(tail, icrc_v4(&net, body).to_le_bytes());
        }
    }

    #[test]
    fn over_ipv6_the_sum_covers_ipv6() {
        let path = Path::new("fd77::1".parse().unwrap(), "fd77::2".parse().unwrap(), 0xc001);
        let mut burst = Burst::default();
        let filled: Result<(), ()> = burst.push(&path, &middle(9), 256, |_| Ok(()));
        filled.unwrap();
        let net =
            IcrcV6 { src: "fd77::1".parse().unwrap(), dst: "fd77::2".parse().unwrap(), src_port: 0xc001 };
        let (body, tail) = burst.bytes().split_at(burst.bytes().len() - 4);
        assert_eq!(tail, icrc_v6(&net, body).to_le_bytes());
    }

    #[test]
    fn a_refused_payload_leaves_the_burst_as_it_was() {
        let mut burst = Burst::default();
        push(&mut burst, 1, 64);
        assert_eq!(burst.push(&path(), &middle(2), 64, |_| Err("gone")), Err("gone"));
        assert_eq!((burst.packets(), burst.bytes().len()), (1, 80));
        assert_eq!(burst.segment_size(), None, "one packet needs no segmentation");
        push(&mut burst, 3, 64);
        assert_eq!(burst.segment_size(), Some(80));
    }

    #[test]
    fn a_burst_fits_a_datagram() {
        let mut burst = Burst::default();
        let mut n = 0;
        while burst.admits(12, 4096) {
            push(&mut burst, n, 4096);
            n += 1;
        }
        assert_eq!(n, 15);
    }
}
