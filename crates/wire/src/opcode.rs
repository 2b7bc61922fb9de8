//! BTH opcodes: what a packet is and which extended headers follow it.
//!
//! Read IBTA §9.2.1 (table of opcodes) and §9.3 first. The three high bits name the transport service, the five low ones
//! the operation, so each question is answered by a small table. RD and XRC opcodes are named but their own headers are not
//! modelled: nothing in the project runs those services. Whether a packet may come at this moment is the transport's affair.

use crate::bth::Bth;
use crate::ext_headers::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth};

/// The transport service that an opcode belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification packet (annex A17).
    Cnp,
    /// Extended reliable connection (annex A14).
    Xrc,
    /// Reserved or manufacturer's own.
    Other,
}

/// BTH opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Opcode {
            $(#[doc = $text] pub const $name: Opcode = Opcode($value);)*

            /// The name as analysers print it, or `"Unknown opcode"`.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "Unknown opcode",
                }
            }

            /// Whether the table has this opcode.
            #[inline]
            pub const fn is_known(self) -> bool {
                matches!(self.0, $($value)|*)
            }
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00, "RC Send First";
    RC_SEND_MIDDLE = 0x01, "RC Send Middle";
    RC_SEND_LAST = 0x02, "RC Send Last";
    RC_SEND_LAST_IMM = 0x03, "RC Send Last Immediate";
    RC_SEND_ONLY = 0x04, "RC Send Only";
    RC_SEND_ONLY_IMM = 0x05, "RC Send Only Immediate";
    RC_WRITE_FIRST = 0x06, "RC RDMA Write First";
    RC_WRITE_MIDDLE = 0x07, "RC RDMA Write Middle";
    RC_WRITE_LAST = 0x08, "RC RDMA Write Last";
    RC_WRITE_LAST_IMM = 0x09, "RC RDMA Write Last Immediate";
    RC_WRITE_ONLY = 0x0a, "RC RDMA Write Only";
    RC_WRITE_ONLY_IMM = 0x0b, "RC RDMA Write Only Immediate";
    RC_READ_REQUEST = 0x0c, "RC RDMA Read Request";
    RC_READ_RESPONSE_FIRST = 0x0d, "RC RDMA Read Response First";
    RC_READ_RESPONSE_MIDDLE = 0x0e, "RC RDMA Read Response Middle";
    RC_READ_RESPONSE_LAST = 0x0f, "RC RDMA Read Response Last";
    RC_READ_RESPONSE_ONLY = 0x10, "RC RDMA Read Response Only";
    RC_ACK = 0x11, "RC Acknowledge";
    RC_ATOMIC_ACK = 0x12, "RC Atomic Acknowledge";
    RC_COMPARE_SWAP = 0x13, "RC Compare Swap";
    RC_FETCH_ADD = 0x14, "RC Fetch Add";
    RC_SEND_LAST_INV = 0x16, "RC Send Last Invalidate";
    RC_SEND_ONLY_INV = 0x17, "RC Send Only Invalidate";
    UC_SEND_FIRST = 0x20, "UC Send First";
    UC_SEND_MIDDLE = 0x21, "UC Send Middle";
    UC_SEND_LAST = 0x22, "UC Send Last";
    UC_SEND_LAST_IMM = 0x23, "UC Send Last Immediate";
    UC_SEND_ONLY = 0x24, "UC Send Only";
    UC_SEND_ONLY_IMM = 0x25, "UC Send Only Immediate";
    UC_WRITE_FIRST = 0x26, "UC RDMA Write First";
    UC_WRITE_MIDDLE = 0x27, "UC RDMA Write Middle";
    UC_WRITE_LAST = 0x28, "UC RDMA Write Last";
    UC_WRITE_LAST_IMM = 0x29, "UC RDMA Write Last Immediate";
    UC_WRITE_ONLY = 0x2a, "UC RDMA Write Only";
    UC_WRITE_ONLY_IMM = 0x2b, "UC RDMA Write Only Immediate";
    RD_SEND_FIRST = 0x40, "RD Send First";
    RD_SEND_MIDDLE = 0x41, "RD Send Middle";
    RD_SEND_LAST = 0x42, "RD Send Last";
    RD_SEND_LAST_IMM = 0x43, "RD Send Last Immediate";
    RD_SEND_ONLY = 0x44, "RD Send Only";
    RD_SEND_ONLY_IMM = 0x45, "RD Send Only Immediate";
    RD_WRITE_FIRST = 0x46, "RD RDMA Write First";
    RD_WRITE_MIDDLE = 0x47, "RD RDMA Write Middle";
    RD_WRITE_LAST = 0x48, "RD RDMA Write Last";
    RD_WRITE_LAST_IMM = 0x49, "RD RDMA Write Last Immediate";
    RD_WRITE_ONLY = 0x4a, "RD RDMA Write Only";
    RD_WRITE_ONLY_IMM = 0x4b, "RD RDMA Write Only Immediate";
    RD_READ_REQUEST = 0x4c, "RD RDMA Read Request";
    RD_READ_RESPONSE_FIRST = 0x4d, "RD RDMA Read Response First";
    RD_READ_RESPONSE_MIDDLE = 0x4e, "RD RDMA Read Response Middle";
    RD_READ_RESPONSE_LAST = 0x4f, "RD RDMA Read Response Last";
    RD_READ_RESPONSE_ONLY = 0x50, "RD RDMA Read Response Only";
    RD_ACK = 0x51, "RD Acknowledge";
    RD_ATOMIC_ACK = 0x52, "RD Atomic Acknowledge";
    RD_COMPARE_SWAP = 0x53, "RD Compare Swap";
    RD_FETCH_ADD = 0x54, "RD Fetch Add";
    RD_RESYNC = 0x55, "RD Resync";
    UD_SEND_ONLY = 0x64, "UD Send Only";
    UD_SEND_ONLY_IMM = 0x65, "UD Send Only Immediate";
    CNP = 0x81, "CNP";
    XRC_SEND_FIRST = 0xa0, "XRC Send First";
    XRC_SEND_MIDDLE = 0xa1, "XRC Send Middle";
    XRC_SEND_LAST = 0xa2, "XRC Send Last";
    XRC_SEND_LAST_IMM = 0xa3, "XRC Send Last Immediate";
    XRC_SEND_ONLY = 0xa4, "XRC Send Only";
    XRC_SEND_ONLY_IMM = 0xa5, "XRC Send Only Immediate";
    XRC_WRITE_FIRST = 0xa6, "XRC RDMA Write First";
    XRC_WRITE_MIDDLE = 0xa7, "XRC RDMA Write Middle";
    XRC_WRITE_LAST = 0xa8, "XRC RDMA Write Last";
    XRC_WRITE_LAST_IMM = 0xa9, "XRC RDMA Write Last Immediate";
    XRC_WRITE_ONLY = 0xaa, "XRC RDMA Write Only";
    XRC_WRITE_ONLY_IMM = 0xab, "XRC RDMA Write Only Immediate";
    XRC_READ_REQUEST = 0xac, "XRC RDMA Read Request";
    XRC_READ_RESPONSE_FIRST = 0xad, "XRC RDMA Read Response First";
    XRC_READ_RESPONSE_MIDDLE = 0xae, "XRC RDMA Read Response Middle";
    XRC_READ_RESPONSE_LAST = 0xaf, "XRC RDMA Read Response Last";
    XRC_READ_RESPONSE_ONLY = 0xb0, "XRC RDMA Read Response Only";
    XRC_ACK = 0xb1, "XRC Acknowledge";
    XRC_ATOMIC_ACK = 0xb2, "XRC Atomic Acknowledge";
    XRC_COMPARE_SWAP = 0xb3, "XRC Compare Swap";
    XRC_FETCH_ADD = 0xb4, "XRC Fetch Add";
    XRC_SEND_LAST_INV = 0xb6, "XRC Send Last Invalidate";
    XRC_SEND_ONLY_INV = 0xb7, "XRC Send Only Invalidate";
}

/// A set of operations, one bit for each value of the five low bits.
const fn set(ops: &[u8]) -> u32 {
    let mut bits = 0;
    let mut i = 0;
    while i < ops.len() {
        bits |= 1 << ops[i];
        i += 1;
    }
    bits
}

// IBTA §9.2.1 and §9.3, by operation; the same in every service that has the operation.
const FIRST: u32 = set(&[0x00, 0x06, 0x0d]);
const MIDDLE: u32 = set(&[0x01, 0x07, 0x0e]);
const LAST: u32 = set(&[0x02, 0x03, 0x08, 0x09, 0x0f, 0x16]);
const RESPONSE: u32 = set(&[0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12]);
const SEND: u32 = set(&[0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x16, 0x17]);
const WRITE: u32 = set(&[0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b]);
const READ_RESPONSE: u32 = set(&[0x0d, 0x0e, 0x0f, 0x10]);
const RETH: u32 = set(&[0x06, 0x0a, 0x0b, 0x0c]);
const AETH: u32 = set(&[0x0d, 0x0f, 0x10, 0x11, 0x12]);
const IMMDT: u32 = set(&[0x03, 0x05, 0x09, 0x0b]);
const IETH: u32 = set(&[0x16, 0x17]);
const ATOMIC: u32 = set(&[0x13, 0x14]);
const ATOMIC_ACK: u32 = set(&[0x12]);

impl Opcode {
    /// The transport service.
    #[inline]
    pub const fn service(self) -> Service {
        match self.0 >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Rd,
            3 => Service::Ud,
            4 if self.0 == Opcode::CNP.0 => Service::Cnp,
            5 => Service::Xrc,
            _ => Service::Other,
        }
    }

    /// Whether the operation is in `ops` and the opcode exists.
    #[inline]
    const fn is_in(self, ops: u32) -> bool {
        OPERATION[self.0 as usize] & ops != 0
    }

    /// First packet of several.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.is_in(FIRST)
    }

    /// Neither first nor last of several.
    #[inline]
    pub const fn is_middle(self) -> bool {
        self.is_in(MIDDLE)
    }

    /// Last packet of several.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.is_in(LAST)
    }

    /// A message (or response) of one packet.
    #[inline]
    pub const fn is_only(self) -> bool {
        self.is_in(!(FIRST | MIDDLE | LAST))
    }

    /// First or only.
    #[inline]
    pub const fn starts_message(self) -> bool {
        self.is_in(!(MIDDLE | LAST))
    }

    /// Last or only.
    #[inline]
    pub const fn ends_message(self) -> bool {
        self.is_in(!(FIRST | MIDDLE))
    }

    /// From requester to responder.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.is_in(!RESPONSE)
    }

    /// From responder to requester: read responses and acknowledges.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.is_in(RESPONSE)
    }

    /// A SEND, in whole or in part.
    #[inline]
    pub const fn is_send(self) -> bool {
        self.is_in(SEND)
    }

    /// An RDMA WRITE, in whole or in part.
    #[inline]
    pub const fn is_write(self) -> bool {
        self.is_in(WRITE)
    }

    /// An RDMA READ response, in whole or in part.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        self.is_in(READ_RESPONSE)
    }

    /// Compare-and-swap or fetch-and-add request.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        self.is_in(ATOMIC)
    }

    /// RDMA extended transport header follows.
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.is_in(RETH)
    }

    /// Acknowledge extended transport header follows.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.is_in(AETH)
    }

    /// Immediate data follows.
    #[inline]
    pub const fn has_immdt(self) -> bool {
        self.is_in(IMMDT)
    }

    /// Invalidate extended transport header follows.
    #[inline]
    pub const fn has_ieth(self) -> bool {
        self.is_in(IETH)
    }

    /// Atomic extended transport header follows.
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        self.is_in(ATOMIC)
    }

    /// Atomic acknowledge extended transport header follows.
    #[inline]
    pub const fn has_atomic_ack_eth(self) -> bool {
        self.is_in(ATOMIC_ACK)
    }

    /// Datagram extended transport header follows.
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.is_known() && matches!(self.service(), Service::Ud | Service::Rd)
    }

    /// A packet of this kind may carry payload (IBTA §9.3): SENDs, WRITEs, read responses, and the CNP's 16 reserved bytes.
    #[inline]
    pub const fn has_payload(self) -> bool {
        self.0 == Opcode::CNP.0 || self.is_in(SEND | WRITE | READ_RESPONSE)
    }

    /// Bytes of BTH and the modelled extended headers. RD's RDETH and XRC's XRCETH, four bytes each, are counted too.
    #[inline]
    pub const fn header_len(self) -> usize {
        HEADER_LEN[self.0 as usize] as usize
    }

    /// See [`Opcode::header_len`].
    const fn sum_header_len(self) -> usize {
        let mut len = Bth::LEN;
        if self.is_known() && matches!(self.service(), Service::Rd | Service::Xrc) {
            len += 4;
        }
        len += self.has_deth() as usize * Deth::LEN;
        len += self.has_reth() as usize * Reth::LEN;
        len += self.has_aeth() as usize * Aeth::LEN;
        len += self.has_atomic_eth() as usize * AtomicEth::LEN;
        len += self.has_atomic_ack_eth() as usize * AtomicAckEth::LEN;
        len += self.has_immdt() as usize * ImmDt::LEN;
        len + self.has_ieth() as usize * Ieth::LEN
    }
}

/// The operation as a set of one; empty for opcodes that do not exist.
static OPERATION: [u32; 256] = {
    let mut table = [0; 256];
    let mut op = 0;
    while op < 256 {
        // CNP (0x81) shares its low bits with SEND Middle and is none of the operations.
        if Opcode(op as u8).is_known() && op as u8 != Opcode::CNP.0 {
            table[op] = 1 << (op & 0x1f);
        }
        op += 1;
    }
    table
};

static HEADER_LEN: [u8; 256] = {
    let mut table = [0; 256];
    let mut op = 0;
    while op < 256 {
        table[op] = Opcode(op as u8).sum_header_len() as u8;
        op += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lengths_follow_the_standard() {
        // IBTA §9.3: 12 + RETH 16, AETH 4, AtomicETH 28, AtomicAckETH 8, ImmDt 4, IETH 4, DETH 8.
        let expect: [(Opcode, usize); 16] = [
            (Opcode::RC_SEND_FIRST, 12),
            (Opcode::RC_SEND_ONLY_IMM, 16),
            (Opcode::RC_WRITE_FIRST, 28),
            (Opcode::RC_WRITE_MIDDLE, 12),
            (Opcode::RC_WRITE_LAST_IMM, 16),
            (Opcode::RC_WRITE_ONLY_IMM, 32),
            (Opcode::RC_READ_REQUEST, 28),
            (Opcode::RC_READ_RESPONSE_FIRST, 16),
            (Opcode::RC_READ_RESPONSE_MIDDLE, 12),
            (Opcode::RC_ACK, 16),
            (Opcode::RC_ATOMIC_ACK, 24),
            (Opcode::RC_COMPARE_SWAP, 40),
            (Opcode::RC_SEND_ONLY_INV, 16),
            (Opcode::UD_SEND_ONLY, 20),
            (Opcode::UD_SEND_ONLY_IMM, 24),
            (Opcode::CNP, 12),
        ];
        for (op, len) in expect {
            assert_eq!(op.header_len(), len, "{}", op.name());
        }
    }

    #[test]
    fn every_known_opcode_is_one_of_first_middle_last_only() {
        for op in (0..=255).map(Opcode).filter(|op| op.is_known() && *op != Opcode::CNP) {
            let kinds = [op.is_first(), op.is_middle(), op.is_last(), op.is_only()];
            assert_eq!(kinds.iter().filter(|k| **k).count(), 1, "{}", op.name());
            assert_eq!(op.starts_message(), op.is_first() || op.is_only());
            assert_eq!(op.ends_message(), op.is_last() || op.is_only());
            assert_ne!(op.is_request(), op.is_response());
            let word = |w: &str| op.name().split(' ').any(|x| x == w);
            assert_eq!((word("First"), word("Middle"), word("Last")), (kinds[0], kinds[1], kinds[2]));
            assert_eq!((word("Immediate"), word("Invalidate")), (op.has_immdt(), op.has_ieth()));
            assert_eq!(word("Response") || word("Acknowledge"), op.is_response());
        }
    }

    #[test]
    fn unknown_opcodes_and_cnp_are_nothing() {
        for op in [0x15, 0x18, 0x2c, 0x60, 0x80, 0xc0, 0xff].map(Opcode) {
            assert!(
                !op.is_known() && !op.is_only() && !op.is_request() && !op.is_response() && !op.has_payload()
            );
        }
        assert_eq!(Opcode::CNP.service(), Service::Cnp);
        assert!(!Opcode::CNP.is_middle() && !Opcode::CNP.is_send() && Opcode::CNP.has_payload());
    }
}
