//! Acknowledgements that are not in vain: what smoltcp leaves out of them is put right on their way out.
//!
//! Read RFC 9293 §3.10.7.4. A segment below the window is answered by an acknowledgement, and dropped with its own. smoltcp
//! sends acknowledgements from where it sends again, not from the highest sequence number it has sent (SND.NXT): when both
//! ends send again what the other has, each drops the other's acknowledgements, until they give each other up.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::TcpSeqNumber;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket,
};

/// A connection, one way: from, to, and both ports.
type Flow = (IpAddr, IpAddr, u16, u16);

/// The next sequence number of every connection that a host has sent on.
#[derive(Debug, Default)]
pub(super) struct Sent(BTreeMap<Flow, TcpSeqNumber>);

impl Sent {
    /// A connection is over: of our end and the peer's.
    pub(super) fn forget(&mut self, (our, peer): (SocketAddr, SocketAddr)) {
        self.0.remove(&(our.ip(), peer.ip(), our.port(), peer.port()));
    }

    /// Looks at a frame that leaves; an acknowledgement without data gets the sequence number it should have.
    pub(super) fn mend(&mut self, frame: &mut [u8]) {
        let Ok(mut frame) = EthernetFrame::new_checked(frame) else { return };
        match frame.ethertype() {
            EthernetProtocol::Ipv4 => {
                if let Ok(mut packet) = Ipv4Packet::new_checked(frame.payload_mut())
                    && packet.next_header() == IpProtocol::Tcp
                {
                    let (src, dst) = (packet.src_addr().into(), packet.dst_addr().into());
                    self.segment(src, dst, packet.payload_mut());
                }
            }
            EthernetProtocol::Ipv6 => {
                if let Ok(mut packet) = Ipv6Packet::new_checked(frame.payload_mut())
                    && packet.next_header() == IpProtocol::Tcp
                {
                    let (src, dst) = (packet.src_addr().into(), packet.dst_addr().into());
                    self.segment(src, dst, packet.payload_mut());
                }
            }
            _ => {}
        }
    }

    fn segment(&mut self, src: IpAddress, dst: IpAddress, bytes: &mut [u8]) {
        let Ok(mut segment) = TcpPacket::new_checked(bytes) else { return };
        let flow = (src.into(), dst.into(), segment.src_port(), segment.dst_port());
        if segment.rst() {
            self.0.remove(&flow);
            return;
        }
        let next = segment.seq_number() + segment.segment_len();
        let highest = self.0.entry(flow).or_insert(next);
        if segment.syn() || next > *highest {
            *highest = next;
        } else if segment.segment_len() == 0 && next < *highest {
            segment.set_seq_number(*highest);
            segment.fill_checksum(&src, &dst);
        }
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::TcpRepr;

    use super::*;

    const A: IpAddress = IpAddress::v4(192, 0, 2, 1);
    const B: IpAddress = IpAddress::v4(192, 0, 2, 2);

    fn segment(seq: i32, payload: &[u8]) -> Vec<u8> {
        let repr = TcpRepr {
            src_port: 1,
            dst_port: 2,
            control: smoltcp::wire::TcpControl::None,
            seq_number: TcpSeqNumber(seq),
            ack_number: Some(TcpSeqNumber(7)),
            window_len: 1000,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut TcpPacket::new_unchecked(&mut bytes), &A, &B, &ChecksumCapabilities::default());
        bytes
    }

    #[test]
    fn an_acknowledgement_says_what_was_sent() {
        let mut sent = Sent::default();
        for (seq, payload, leaves) in [
            (i32::MAX, &b"four"[..], i32::MAX),
            (i32::MAX, b"fo", i32::MAX), // sent again: as it was
            (i32::MIN + 1, b"", i32::MIN + 3),
            (i32::MIN + 3, b"", i32::MIN + 3),
        ] {
            let mut bytes = segment(seq, payload);
            sent.segment(A, B, &mut bytes);
            let packet = TcpPacket::new_checked(&bytes).unwrap();
            assert_eq!((packet.seq_number(), packet.verify_checksum(&A, &B)), (TcpSeqNumber(leaves), true));
        }
    }
}
