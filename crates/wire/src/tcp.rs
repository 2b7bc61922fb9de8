//! TCP headers and their checksum over both IP versions.
//!
//! Read RFC 9293 §3.1 first. Options are kept as bytes. This is for captures and decoders: no device here speaks TCP itself.

use std::net::IpAddr;

use crate::WireError;
use crate::field::{get16, get32, put16, put32};
use crate::ip::Checksum;

/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;

/// A TCP header without its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Next sequence number expected from the peer; meaningful with [`TcpHeader::ACK`].
    pub ack: u32,
    /// Header length in bytes, options included: 20 to 60, a multiple of four.
    pub header_len: u8,
    /// CWR to FIN.
    pub flags: u8,
    /// Window, unscaled.
    pub window: u16,
    /// As on the wire.
    pub checksum: u16,
    /// Urgent pointer.
    pub urgent: u16,
}

impl TcpHeader {
    /// Bytes without options.
    pub const LEN: usize = 20;
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Sequence numbers begin.
    pub const SYN: u8 = 0x02;
    /// The connection is reset.
    pub const RST: u8 = 0x04;
    /// To be handed over at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;

    /// Reads the header at the start of `bytes`; the checksum is not verified, options are skipped.
    pub fn parse(bytes: &[u8]) -> Result<TcpHeader, WireError> {
        let b = crate::field::head::<{ TcpHeader::LEN }>("TCP header", bytes)?;
        let header_len = (b[12] >> 4) * 4;
        if usize::from(header_len) < TcpHeader::LEN {
            return Err(WireError::Invalid { what: "TCP data offset", value: u64::from(b[12] >> 4) });
        }
        if bytes.len() < usize::from(header_len) {
            let (need, have) = (usize::from(header_len), bytes.len());
            return Err(WireError::Truncated { what: "TCP options", need, have });
        }
        Ok(TcpHeader {
            src_port: get16(b, 0),
            dst_port: get16(b, 2),
            seq: get32(b, 4),
            ack: get32(b, 8),
            header_len,
            flags: b[13],
            window: get16(b, 14),
            checksum: get16(b, 16),
            urgent: get16(b, 18),
        })
    }

    /// Writes the header at the start of `out`, without options and with the checksum as given. Panics where `out` is shorter
    /// than [`TcpHeader::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let b = crate::field::head_mut::<{ TcpHeader::LEN }>("TCP header", out);
        put16(b, 0, self.src_port);
        put16(b, 2, self.dst_port);
        put32(b, 4, self.seq);
        put32(b, 8, self.ack);
        b[12] = (self.header_len / 4) << 4;
        b[13] = self.flags;
        put16(b, 14, self.window);
        put16(b, 16, self.checksum);
        put16(b, 18, self.urgent);
    }

    /// The checksum that this header, which has no options, should have before `payload`.
    pub fn expected_checksum(&self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> u16 {
        let mut header = [0; TcpHeader::LEN];
        TcpHeader { checksum: 0, ..*self }.emit(&mut header);
        let mut sum = Checksum::new();
        for ip in [src, dst] {
            match ip {
                IpAddr::V4(v4) => sum.add(&v4.octets()),
                IpAddr::V6(v6) => sum.add(&v6.octets()),
            }
        }
        sum.add(&[0, PROTOCOL_TCP]);
        sum.add(&((TcpHeader::LEN + payload.len()) as u32).to_be_bytes());
        sum.add(&header);
        sum.add(payload);
        sum.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SYN of a Linux kernel, without its options and so with another offset and checksum: fields at their places.
    #[test]
    fn fields_are_where_rfc_9293_has_them() {
        let bytes = [
            0xb0, 0x22, 0x1c, 0x06, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 0x50, 0x18, 0xfa, 0xf0,
            0xab, 0xcd, 0x00, 0x07,
        ];
        let header = TcpHeader::parse(&bytes).unwrap();
        assert_eq!((header.src_port, header.dst_port), (45090, 7174));
        assert_eq!((header.seq, header.ack), (0x1234_5678, 0x9abc_def0));
        assert_eq!((header.header_len, header.flags), (20, TcpHeader::PSH | TcpHeader::ACK));
        assert_eq!((header.window, header.checksum, header.urgent), (64240, 0xabcd, 7));
        let mut again = [0; 20];
        header.emit(&mut again);
        assert_eq!(again, bytes);
    }

    #[test]
    fn bad_offsets_are_refused() {
        let mut bytes = [0; 20];
        for offset in 0..16_u8 {
            bytes[12] = offset << 4;
            assert_eq!(TcpHeader::parse(&bytes).is_ok(), offset == 5, "{offset}");
        }
        assert!(TcpHeader::parse(&bytes[..19]).is_err());
    }
}
