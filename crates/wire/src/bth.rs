//! Base Transport Header: the twelve bytes that begin every InfiniBand transport packet.
//!
//! Read IBTA §9.2 first. All bits are kept, the reserved ones as well, so that a packet re-emits exactly. What follows the
//! header is told by its opcode ([`crate::opcode`]). No judgement here of P_Key, version or PSN.

use crate::field::{get16, get24, head, head_mut, put16, put24};
use crate::{Opcode, PKey, Psn, Qpn, WireError};

/// Base Transport Header (IBTA §9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bth {
    /// What the packet is, and which headers follow.
    pub opcode: Opcode,
    /// Solicited event: the receiver raises a completion event for this message.
    pub solicited: bool,
    /// Migration request; set where path migration is not in use.
    pub mig_req: bool,
    /// How many bytes (0 to 3) fill the payload up to a multiple of four.
    pub pad_count: u8,
    /// Transport header version, 4 bits; 0.
    pub tver: u8,
    /// Partition.
    pub pkey: PKey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Six reserved bits beside FECN and BECN (outside the ICRC).
    pub reserved6: u8,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// The receiver shall acknowledge this packet.
    pub ack_req: bool,
    /// Seven reserved bits beside AckReq.
    pub reserved7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Bth, WireError> {
        let b = head::<{ Bth::LEN }>("BTH", bytes)?;
        Ok(Bth {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad_count: b[1] >> 4 & 3,
            tver: b[1] & 0x0f,
            pkey: PKey(get16(b, 2)),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            reserved6: b[4] & 0x3f,
            dest_qp: Qpn::new(get24(b, 5)),
            ack_req: b[8] & 0x80 != 0,
            reserved7: b[8] & 0x7f,
            psn: Psn::new(get24(b, 9)),
        })
    }

    /// Writes the header at the start of `out`. Panics where `out` is shorter than [`Bth::LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ Bth::LEN }>("BTH", out);
        b[0] = self.opcode.0;
        b[1] = (self.solicited as u8) << 7
            | (self.mig_req as u8) << 6
            | (self.pad_count & 3) << 4
            | self.tver & 0x0f;
        put16(b, 2, self.pkey.0);
        b[4] = (self.fecn as u8) << 7 | (self.becn as u8) << 6 | self.reserved6 & 0x3f;
        put24(b, 5, self.dest_qp.get());
        b[8] = (self.ack_req as u8) << 7 | self.reserved7 & 0x7f;
        put24(b, 9, self.psn.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A RC SEND Only with AckReq, solicited, two pad bytes: laid out by hand from IBTA §9.2.
    const SAMPLE: [u8; 12] = [0x04, 0xe0, 0xff, 0xff, 0x40, 0x00, 0x00, 0x11, 0x80, 0xab, 0xcd, 0xef];

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        let bth = Bth::parse(&SAMPLE).unwrap();
        let expected = Bth {
            opcode: Opcode::RC_SEND_ONLY,
            solicited: true,
            mig_req: true,
            pad_count: 2,
            pkey: PKey::DEFAULT,
            becn: true,
            dest_qp: Qpn::new(17),
            ack_req: true,
            psn: Psn::new(0xabcdef),
            ..Bth::default()
        };
        assert_eq!(bth, expected);
        let mut out = [0; 12];
        bth.emit(&mut out);
        assert_eq!(out, SAMPLE);
    }

    #[test]
    fn eleven_bytes_are_too_few() {
        assert_eq!(Bth::parse(&SAMPLE[..11]), Err(WireError::Truncated { what: "BTH", need: 12, have: 11 }));
    }
}
