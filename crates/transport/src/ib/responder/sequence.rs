//! Opcode sequence and packet length: whether a packet may follow the one before it.
//!
//! Read IBTA vol. 1 §9.7.4.1.4 (opcode sequence, table 35) and §9.7.4.1.6–7 (length checks). Pure functions of the
//! responder's place within a message; nothing is changed here.

use everywire_wire::{Opcode, RocePacket};

use super::{Refusal, Responder};
use crate::ib::shared::Shared;
use crate::ib::wr::MAX_MESSAGE;

/// Place within a message, by the last request packet executed. READs and atomics may not come between the packets of a
/// message, and duplicates of them do not count (cases RX-01).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Inbound {
    /// Between messages.
    #[default]
    Idle,
    /// Within a SEND.
    Send,
    /// Within a WRITE.
    Write,
}

impl Responder {
    /// IBTA table 35: first and only start a message, middle and last go on with one of the same kind.
    pub(super) fn check_sequence(&self, sh: &Shared, packet: &RocePacket<'_>) -> Result<(), Refusal> {
        if follows(self.inbound, packet.bth.opcode) && fits_its_kind(sh, packet) {
            Ok(())
        } else {
            Err(Refusal::INVALID)
        }
    }
}

pub(super) fn follows(inbound: Inbound, opcode: Opcode) -> bool {
    match inbound {
        Inbound::Idle => opcode.starts_message(),
        Inbound::Send => opcode.is_send() && !opcode.starts_message(),
        Inbound::Write => opcode.is_write() && !opcode.starts_message(),
    }
}

/// Payload length by kind of packet, and the RETH's length within the standard's limit.
pub(super) fn fits_its_kind(sh: &Shared, packet: &RocePacket<'_>) -> bool {
    let (opcode, len) = (packet.bth.opcode, packet.payload.len());
    let payload_fits = if opcode.is_first() || opcode.is_middle() {
        // IBTA C9-52: full packets, without pad.
        len == sh.mtu
    } else if opcode.is_last() {
        // IBTA C9-53.
        (1..=sh.mtu).contains(&len)
    } else if opcode.has_payload() {
        len <= sh.mtu
    } else {
        len == 0
    };
    let length_fits = packet.reth.is_none_or(|r| u64::from(r.length) <= MAX_MESSAGE);
    payload_fits && length_fits
}
