//! The start frames of MPA: request and reply, with RFC 6581's negotiation block.
//!
//! Read RFC 5044 §7.1.1 and RFC 6581 §9. A frame is a 16-byte key, flags, a revision and up to 512 bytes of private data; in
//! revision 2 with the S flag the private data begins with the [`Enhanced`] block. The eight bytes of IRD and ORD that SMB
//! Direct puts after it (cases IW-14) are the upper layer's private data and not known here.

use crate::WireError;
use crate::field::{array, get16, put16};

const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";

/// Which of the two start frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartKind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

impl StartKind {
    /// The 16 bytes it begins with.
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            StartKind::Request => REQUEST_KEY,
            StartKind::Reply => REPLY_KEY,
        }
    }
}

/// A start frame (RFC 5044 §7.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartFrame<'a> {
    /// Request or reply.
    pub kind: StartKind,
    /// M: the sender of this frame wants markers in what it receives.
    pub markers: bool,
    /// C: the sender of this frame wants CRCs; one wish is enough.
    pub crc: bool,
    /// R: a reply that refuses the connection.
    pub reject: bool,
    /// S (RFC 6581): private data begins with an [`Enhanced`] block.
    pub enhanced: bool,
    /// Four reserved bits; sent as zero.
    pub reserved: u8,
    /// Revision of MPA: 1, or 2 with RFC 6581.
    pub revision: u8,
    /// Private data, the enhanced block included; at most 512 bytes.
    pub private_data: &'a [u8],
}

impl<'a> StartFrame<'a> {
    /// Bytes before the private data.
    pub const HEADER_LEN: usize = 20;
    /// Most bytes of private data (RFC 5044 §7.1.1).
    pub const MAX_PRIVATE_DATA: usize = 512;
    /// The longest frame.
    pub const MAX_LEN: usize = StartFrame::HEADER_LEN + StartFrame::MAX_PRIVATE_DATA;

    /// The length of the frame of this kind that `bytes` begin, as soon as that can be told; an error as soon as they can't
    /// be one.
    pub fn length(kind: StartKind, bytes: &[u8]) -> Result<Option<usize>, WireError> {
        let key = kind.key();
        let have = bytes.len().min(key.len());
        if bytes[..have] != key[..have] {
            let mut first = [0; 8];
            let shown = bytes.len().min(8);
            first[..shown].copy_from_slice(&bytes[..shown]);
            let value = u64::from_be_bytes(first);
            return Err(WireError::Invalid { what: "the key of the MPA start frame", value });
        }
        let Some(header) = bytes.first_chunk::<{ StartFrame::HEADER_LEN }>() else { return Ok(None) };
        let private = usize::from(get16(header, 18));
        if private > StartFrame::MAX_PRIVATE_DATA {
            let value = private as u64;
            return Err(WireError::Invalid { what: "PD_Length of the MPA start frame", value });
        }
        Ok(Some(StartFrame::HEADER_LEN + private))
    }

    /// Reads the frame at the start of `bytes`.
    pub fn parse(kind: StartKind, bytes: &'a [u8]) -> Result<StartFrame<'a>, WireError> {
        let what = "MPA start frame";
        let have = bytes.len();
        let need = StartFrame::length(kind, bytes)?.unwrap_or(StartFrame::HEADER_LEN);
        let frame = bytes.get(..need).filter(|f| f.len() >= StartFrame::HEADER_LEN);
        let Some(frame) = frame else { return Err(WireError::Truncated { what, need, have }) };
        let flags = frame[16];
        Ok(StartFrame {
            kind,
            markers: flags & 0x80 != 0,
            crc: flags & 0x40 != 0,
            reject: flags & 0x20 != 0,
            enhanced: flags & 0x10 != 0,
            reserved: flags & 0x0f,
            revision: frame[17],
            private_data: &frame[StartFrame::HEADER_LEN..],
        })
    }

    /// Appends it to `out`.
    ///
    /// # Panics
    /// With more than [`StartFrame::MAX_PRIVATE_DATA`] bytes of private data: that is the caller's own.
    pub fn emit(&self, out: &mut Vec<u8>) {
        assert!(self.private_data.len() <= StartFrame::MAX_PRIVATE_DATA, "too much private data");
        out.extend_from_slice(self.kind.key());
        let flags = (self.markers as u8) << 7
            | (self.crc as u8) << 6
            | (self.reject as u8) << 5
            | (self.enhanced as u8) << 4
            | self.reserved & 0x0f;
        out.extend_from_slice(&[flags, self.revision]);
        out.extend_from_slice(&(self.private_data.len() as u16).to_be_bytes());
        out.extend_from_slice(self.private_data);
    }
}

/// The block that begins the private data of an enhanced start frame (RFC 6581 §9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Enhanced {
    /// A: the peer-to-peer model: the initiator sends a ready-to-receive frame first.
    pub peer_to_peer: bool,
    /// B: a zero-length FPDU (no tagged message) can be that frame.
    pub rtr_send: bool,
    /// READs the sender of this block can hold as responder, 14 bits.
    pub ird: u16,
    /// C: a zero-length RDMA WRITE can be the ready-to-receive frame.
    pub rtr_write: bool,
    /// D: a zero-length RDMA READ can be the ready-to-receive frame.
    pub rtr_read: bool,
    /// READs the sender of this block wants outstanding, 14 bits.
    pub ord: u16,
}

impl Enhanced {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// The largest IRD or ORD. RFC 6581 §9.1: all ones says that this side does not negotiate it here.
    pub const MAX_DEPTH: u16 = 0x3fff;

    /// Reads it from the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Enhanced, WireError> {
        let b: &[u8; Enhanced::LEN] = crate::field::head("enhanced MPA data", bytes)?;
        let (ird, ord) = (get16(b, 0), get16(b, 2));
        Ok(Enhanced {
            peer_to_peer: ird & 0x8000 != 0,
            rtr_send: ird & 0x4000 != 0,
            ird: ird & Enhanced::MAX_DEPTH,
            rtr_write: ord & 0x8000 != 0,
            rtr_read: ord & 0x4000 != 0,
            ord: ord & Enhanced::MAX_DEPTH,
        })
    }

    /// The bytes.
    pub fn to_bytes(self) -> [u8; Enhanced::LEN] {
        let mut b = [0; Enhanced::LEN];
        let flags = |high: bool, low: bool| (high as u16) << 15 | (low as u16) << 14;
        put16(&mut b, 0, flags(self.peer_to_peer, self.rtr_send) | self.ird & Enhanced::MAX_DEPTH);
        put16(&mut b, 2, flags(self.rtr_write, self.rtr_read) | self.ord & Enhanced::MAX_DEPTH);
        array(&b, 0)
    }
}
