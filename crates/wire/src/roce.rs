//! A RoCE packet: BTH, extended headers, payload, pad, ICRC; the payload of a UDP datagram (v2) or of a GRH (v1).
//!
//! Read IBTA annexes A16 and A17 first. [`RocePacket`] borrows the payload and owns the headers, so it parses without
//! allocating. It checks the shape only (known opcode, lengths, alignment): not the ICRC (see [`crate::icrc`]), not keys,
//! not whether the packet is expected.

use crate::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Opcode, Reth, Service, WireError};

/// The UDP destination port of RoCE v2 (IANA).
pub const ROCE_UDP_PORT: u16 = 4791;

/// The Ethertype of RoCE v1.
pub const ROCE_V1_ETHERTYPE: u16 = 0x8915;

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;

/// One RoCE packet, headers by value, payload by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RocePacket<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// UD packets.
    pub deth: Option<Deth>,
    /// First or only packet of a WRITE, and READ requests.
    pub reth: Option<Reth>,
    /// Acknowledges and read responses (but not their middles).
    pub aeth: Option<Aeth>,
    /// Atomic requests.
    pub atomic_eth: Option<AtomicEth>,
    /// Atomic acknowledges.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Messages with immediate data.
    pub immdt: Option<ImmDt>,
    /// SENDs with invalidate.
    pub ieth: Option<Ieth>,
    /// Payload without the pad.
    pub payload: &'a [u8],
    /// The 0 to 3 bytes after the payload.
    pub pad: &'a [u8],
    /// The ICRC as it stands on the wire: little-endian CRC-32.
    pub icrc: [u8; ICRC_LEN],
}

impl<'a> RocePacket<'a> {
    /// Takes a UDP payload (or what follows a GRH) apart.
    ///
    /// Errors: shorter than its headers, pad and ICRC; not a multiple of four bytes long; an opcode that is unknown or of a
    /// service that is not modelled (RD, XRC).
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<RocePacket<'a>, WireError> {
        let bth = Bth::parse(udp_payload)?;
        let op = bth.opcode;
        if !RocePacket::models(op) {
            return Err(WireError::Invalid { what: "BTH opcode", value: u64::from(op.0) });
        }
        let pad_len = usize::from(bth.pad_count);
        let header_len = op.header_len();
        let need = header_len + pad_len + ICRC_LEN;
        let have = udp_payload.len();
        if have < need {
            return Err(WireError::Truncated { what: "RoCE packet", need, have });
        }
        // IBTA §9.2.3: pad bytes make the packet a multiple of four bytes.
        if !have.is_multiple_of(4) {
            return Err(WireError::Invalid { what: "length of RoCE packet", value: have as u64 });
        }
        let (headers, rest) = udp_payload.split_at(header_len);
        let (body, icrc) = rest.split_at(rest.len() - ICRC_LEN);
        let (payload, pad) = body.split_at(body.len() - pad_len);
        let mut packet =
            RocePacket { bth, payload, pad, icrc: crate::field::array(icrc, 0), ..RocePacket::default() };
        packet.parse_ext_headers(&headers[Bth::LEN..])?;
        Ok(packet)
    }

    /// Reads the extended headers in the standard's order; `b` holds exactly those of the opcode.
    #[inline]
    fn parse_ext_headers(&mut self, mut b: &[u8]) -> Result<(), WireError> {
        let op = self.bth.opcode;
        if op.has_deth() {
            self.deth = Some(Deth::parse(b)?);
            b = &b[Deth::LEN..];
        }
        if op.has_reth() {
            self.reth = Some(Reth::parse(b)?);
            b = &b[Reth::LEN..];
        }
        if op.has_aeth() {
            self.aeth = Some(Aeth::parse(b)?);
            b = &b[Aeth::LEN..];
        }
        if op.has_atomic_eth() {
            self.atomic_eth = Some(AtomicEth::parse(b)?);
            b = &b[AtomicEth::LEN..];
        }
        if op.has_atomic_ack_eth() {
            self.atomic_ack = Some(AtomicAckEth::parse(b)?);
            b = &b[AtomicAckEth::LEN..];
        }
        if op.has_immdt() {
            self.immdt = Some(ImmDt::parse(b)?);
            b = &b[ImmDt::LEN..];
        }
        if op.has_ieth() {
            self.ieth = Some(Ieth::parse(b)?);
        }
        Ok(())
    }

    /// Whether [`RocePacket`] can hold packets with this opcode.
    #[inline]
    pub const fn models(op: Opcode) -> bool {
        op.is_known() && matches!(op.service(), Service::Rc | Service::Uc | Service::Ud | Service::Cnp)
    }

    /// Bytes from the BTH to the end of the pad: what the ICRC covers beside the masked network headers.
    #[inline]
    pub fn covered_len(&self) -> usize {
        self.bth.opcode.header_len() + self.payload.len() + self.pad.len()
    }

    /// Appends the packet to `out`: headers that are `Some`, payload, pad, ICRC as given. The BTH's pad count is written as
    /// `pad.len()`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.reserve(self.covered_len() + ICRC_LEN);
        // The largest modelled combination is BTH + AtomicETH; 80 bytes hold one of each.
        let mut headers = [0; 80];
        let n = self.emit_headers(&mut headers);
        out.extend_from_slice(&headers[..n]);
        out.extend_from_slice(self.payload);
        out.extend_from_slice(self.pad);
        out.extend_from_slice(&self.icrc);
    }

    /// Writes BTH and extended headers at the start of `out` and says how many bytes they are. Panics where `out` is too
    /// short; 80 bytes always suffice.
    #[inline]
    pub fn emit_headers(&self, out: &mut [u8]) -> usize {
        let bth = Bth { pad_count: self.pad.len() as u8, ..self.bth };
        bth.emit(out);
        let mut at = Bth::LEN;
        macro_rules! emit {
            ($($field:ident: $ty:ident),*) => {
                $(if let Some(h) = &self.$field {
                    h.emit(&mut out[at..]);
                    at += $ty::LEN;
                })*
            };
        }
        emit!(deth: Deth, reth: Reth, aeth: Aeth, atomic_eth: AtomicEth, atomic_ack: AtomicAckEth, immdt: ImmDt, ieth: Ieth);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PKey, Psn, Qpn, RKey};

    #[test]
    fn write_only_with_immediate_has_reth_then_immdt() {
        let mut bytes = vec![0x0b, 0x10, 0xff, 0xff, 0, 0, 0, 5, 0x80, 0, 0, 9];
        bytes.extend([0, 0, 0, 0, 0, 0, 0x10, 0]); // va
        bytes.extend([0, 0, 0, 7, 0, 0, 0, 3]); // rkey, length
        bytes.extend([0xde, 0xad, 0xbe, 0xef]); // immediate
        bytes.extend([1, 2, 3, 0, 0xaa, 0xbb, 0xcc, 0xdd]); // payload, pad, ICRC
        let p = RocePacket::parse(&bytes).unwrap();
        let expected = RocePacket {
            bth: Bth {
                opcode: Opcode::RC_WRITE_ONLY_IMM,
                pad_count: 1,
                pkey: PKey::DEFAULT,
                dest_qp: Qpn::new(5),
                ack_req: true,
                psn: Psn::new(9),
                ..Bth::default()
            },
            reth: Some(Reth { va: 0x1000, rkey: RKey(7), length: 3 }),
            immdt: Some(ImmDt(0xdead_beef)),
            payload: &[1, 2, 3],
            pad: &[0],
            icrc: [0xaa, 0xbb, 0xcc, 0xdd],
            ..RocePacket::default()
        };
        assert_eq!(p, expected);
        let mut out = Vec::new();
        p.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn pad_longer_than_the_rest_is_cut_short() {
        let mut bytes = [0u8; 16];
        bytes[0] = Opcode::RC_SEND_ONLY.0;
        assert!(RocePacket::parse(&bytes).is_ok());
        bytes[1] = 0x10;
        assert_eq!(
            RocePacket::parse(&bytes),
            Err(WireError::Truncated { what: "RoCE packet", need: 17, have: 16 })
        );
    }

    #[test]
    fn odd_lengths_and_foreign_opcodes_are_refused() {
        let mut bytes = [0u8; 17];
        bytes[0] = Opcode::RC_SEND_ONLY.0;
        assert!(matches!(RocePacket::parse(&bytes), Err(WireError::Invalid { value: 17, .. })));
        for op in [0x15, 0x44, 0xa4, 0xff] {
            bytes[0] = op;
            assert!(matches!(
                RocePacket::parse(&bytes[..16]),
                Err(WireError::Invalid { what: "BTH opcode", .. })
            ));
        }
    }
}
