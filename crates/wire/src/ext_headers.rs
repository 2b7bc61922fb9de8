//! Extended transport headers: what stands between the BTH and the payload.
//!
//! Read IBTA §9.3 first, and §9.7.5.2 for the AETH's syndrome. Which of them a packet has is told by its opcode. Each type
//! is parsed from and written to the start of a slice and keeps all bits.

use crate::field::{get24, get32, get64, head, head_mut, put24, put32, put64};
use crate::{QKey, Qpn, RKey, WireError};

macro_rules! ext_header {
    ($ty:ident, $len:literal, $name:literal, parse($b:ident) $parse:expr, emit($this:ident, $out:ident) $emit:block) => {
        impl $ty {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// Reads the header at the start of `bytes`.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<$ty, WireError> {
                let $b = head::<$len>($name, bytes)?;
                Ok($parse)
            }

            /// Writes the header at the start of `out`. Panics where `out` is shorter than `LEN`.
            #[inline]
            pub fn emit(&self, out: &mut [u8]) {
                let $this = self;
                let $out = head_mut::<$len>($name, out);
                $emit
            }
        }
    };
}

/// Datagram extended transport header (IBTA §9.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Deth {
    /// Queue key.
    pub qkey: QKey,
    /// Reserved byte.
    pub reserved: u8,
    /// The sender's queue pair.
    pub src_qp: Qpn,
}

ext_header!(Deth, 8, "DETH",
    parse(b) Deth { qkey: QKey(get32(b, 0)), reserved: b[4], src_qp: Qpn::new(get24(b, 5)) },
    emit(h, b) {
        put32(b, 0, h.qkey.0);
        b[4] = h.reserved;
        put24(b, 5, h.src_qp.get());
    }
);

/// RDMA extended transport header (IBTA §9.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Key of the region there.
    pub rkey: RKey,
    /// Bytes of the whole operation.
    pub length: u32,
}

ext_header!(Reth, 16, "RETH",
    parse(b) Reth { va: get64(b, 0), rkey: RKey(get32(b, 8)), length: get32(b, 12) },
    emit(h, b) {
        put64(b, 0, h.va);
        put32(b, 8, h.rkey.0);
        put32(b, 12, h.length);
    }
);

/// Atomic extended transport header (IBTA §9.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8.
    pub va: u64,
    /// Key of the region there.
    pub rkey: RKey,
    /// What is swapped in, or added.
    pub swap_add: u64,
    /// What is compared; unused by fetch-and-add.
    pub compare: u64,
}

ext_header!(AtomicEth, 28, "AtomicETH",
    parse(b) AtomicEth { va: get64(b, 0), rkey: RKey(get32(b, 8)), swap_add: get64(b, 12), compare: get64(b, 20) },
    emit(h, b) {
        put64(b, 0, h.va);
        put32(b, 8, h.rkey.0);
        put64(b, 12, h.swap_add);
        put64(b, 20, h.compare);
    }
);

/// Acknowledge extended transport header (IBTA §9.3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK, with its detail.
    pub syndrome: Syndrome,
    /// Message sequence number: 24 bits, messages completed at the responder. Higher bits are not written.
    pub msn: u32,
}

ext_header!(Aeth, 4, "AETH",
    parse(b) Aeth { syndrome: Syndrome(b[0]), msn: get24(b, 1) },
    emit(h, b) {
        b[0] = h.syndrome.0;
        put24(b, 1, h.msn);
    }
);

/// Atomic acknowledge extended transport header (IBTA §9.3.5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: u64,
}

ext_header!(AtomicAckEth, 8, "AtomicAckETH",
    parse(b) AtomicAckEth { original: get64(b, 0) },
    emit(h, b) {
        put64(b, 0, h.original);
    }
);

/// Immediate data (IBTA §9.3.6): 32 bits handed to the receiver's completion, here as a big-endian number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ImmDt(pub u32);

ext_header!(ImmDt, 4, "ImmDt",
    parse(b) ImmDt(get32(b, 0)),
    emit(h, b) {
        put32(b, 0, h.0);
    }
);

/// Invalidate extended transport header (IBTA §9.3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ieth {
    /// The key that the receiver invalidates.
    pub rkey: RKey,
}

ext_header!(Ieth, 4, "IETH",
    parse(b) Ieth { rkey: RKey(get32(b, 0)) },
    emit(h, b) {
        put32(b, 0, h.rkey.0);
    }
);

/// The AETH's first byte: a reserved bit, two bits of kind, five of detail (IBTA §9.7.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Syndrome(pub u8);

/// A [`Syndrome`], taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SyndromeKind {
    /// Positive acknowledgement with the encoded end-to-end credit count; 31 means that no credits are kept.
    Ack {
        /// 5-bit code.
        credits: u8,
    },
    /// Receiver not ready.
    Rnr {
        /// 5-bit code of the time to wait (IBTA table 45).
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// A reserved kind or NAK code.
    Reserved,
}

/// Why a responder refused a request (IBTA §9.7.5.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing; the expected PSN is in the BTH.
    PsnSequence = 0,
    /// The request is malformed, unsupported or does not fit.
    InvalidRequest = 1,
    /// The R_Key does not give this access.
    RemoteAccess = 2,
    /// The responder failed on its own account.
    RemoteOperational = 3,
    /// RD only.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// The standard's name.
    pub const fn name(self) -> &'static str {
        match self {
            NakCode::PsnSequence => "PSN Sequence Error",
            NakCode::InvalidRequest => "Invalid Request",
            NakCode::RemoteAccess => "Remote Access Error",
            NakCode::RemoteOperational => "Remote Operational Error",
            NakCode::InvalidRdRequest => "Invalid RD Request",
        }
    }
}

impl Syndrome {
    /// ACK of a responder that keeps no end-to-end credits.
    pub const ACK_NO_CREDITS: Syndrome = Syndrome::ack(31);

    /// Positive acknowledgement with a 5-bit credit code.
    #[inline]
    pub const fn ack(credits: u8) -> Syndrome {
        Syndrome(credits & 0x1f)
    }

    /// Receiver not ready, with a 5-bit timer code.
    #[inline]
    pub const fn rnr(timer: u8) -> Syndrome {
        Syndrome(0x20 | timer & 0x1f)
    }

    /// Negative acknowledgement.
    #[inline]
    pub const fn nak(code: NakCode) -> Syndrome {
        Syndrome(0x60 | code as u8)
    }

    /// What it says. The top bit is reserved and ignored.
    #[inline]
    pub const fn kind(self) -> SyndromeKind {
        let detail = self.0 & 0x1f;
        match (self.0 >> 5 & 3, detail) {
            (0, _) => SyndromeKind::Ack { credits: detail },
            (1, _) => SyndromeKind::Rnr { timer: detail },
            (3, 0) => SyndromeKind::Nak(NakCode::PsnSequence),
            (3, 1) => SyndromeKind::Nak(NakCode::InvalidRequest),
            (3, 2) => SyndromeKind::Nak(NakCode::RemoteAccess),
            (3, 3) => SyndromeKind::Nak(NakCode::RemoteOperational),
            (3, 4) => SyndromeKind::Nak(NakCode::InvalidRdRequest),
            _ => SyndromeKind::Reserved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_as_the_standard_codes_them() {
        // Linux's rxe acknowledges with 0x1f; ibv's AETH constants are 0x20 RNR, 0x60 NAK.
        assert_eq!(Syndrome::ACK_NO_CREDITS.0, 0x1f);
        assert_eq!(Syndrome(0x1f).kind(), SyndromeKind::Ack { credits: 31 });
        assert_eq!(Syndrome(0x2c).kind(), SyndromeKind::Rnr { timer: 12 });
        assert_eq!(Syndrome(0x60).kind(), SyndromeKind::Nak(NakCode::PsnSequence));
        assert_eq!(Syndrome(0x61).kind(), SyndromeKind::Nak(NakCode::InvalidRequest));
        assert_eq!(Syndrome(0x62).kind(), SyndromeKind::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome(0x63).kind(), SyndromeKind::Nak(NakCode::RemoteOperational));
        assert_eq!(Syndrome(0x64).kind(), SyndromeKind::Nak(NakCode::InvalidRdRequest));
        assert_eq!(Syndrome(0x65).kind(), SyndromeKind::Reserved);
        assert_eq!(Syndrome(0x40).kind(), SyndromeKind::Reserved);
        for code in [NakCode::PsnSequence, NakCode::RemoteAccess, NakCode::InvalidRdRequest] {
            assert_eq!(Syndrome::nak(code).kind(), SyndromeKind::Nak(code));
        }
        assert_eq!(Syndrome::rnr(31).kind(), SyndromeKind::Rnr { timer: 31 });
    }

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        let bytes: [u8; 28] = core::array::from_fn(|i| i as u8 + 1);
        let reth = Reth::parse(&bytes).unwrap();
        assert_eq!((reth.va, reth.rkey.0, reth.length), (0x0102_0304_0506_0708, 0x090a_0b0c, 0x0d0e_0f10));
        let atomic = AtomicEth::parse(&bytes).unwrap();
        assert_eq!((atomic.va, atomic.rkey.0), (0x0102_0304_0506_0708, 0x090a_0b0c));
        assert_eq!((atomic.swap_add, atomic.compare), (0x0d0e_0f10_1112_1314, 0x1516_1718_191a_1b1c));
        let deth = Deth::parse(&bytes).unwrap();
        assert_eq!((deth.qkey.0, deth.reserved, deth.src_qp.get()), (0x0102_0304, 5, 0x06_0708));
        let aeth = Aeth::parse(&bytes).unwrap();
        assert_eq!((aeth.syndrome.0, aeth.msn), (1, 0x02_0304));
        assert!(AtomicEth::parse(&bytes[1..]).is_err() && Aeth::parse(&bytes[..3]).is_err());
    }
}
