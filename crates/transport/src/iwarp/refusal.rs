//! A stream whose start-up came to nothing at the initiator: the one FPDU that says so.
//!
//! Read RFC 6581 §8 (codes) and §9 (the initiator that cannot live with a reply sends a TERMINATE message) and RFC 5044 §4
//! (FPDU, markers). The queue pair never has that stream: it stays where it was, and may be connected again. A responder has
//! no such word: it sends no FPDU before it has received one (RFC 5044 §7.1), so it refuses in its reply or closes.

use everywire_wire::ddp::DdpHeader;
use everywire_wire::mpa::{self, CRC_LEN, Marker};
use everywire_wire::rdmap::{LlpError, RdmapOpcode, TermError, Terminate};

use super::requester::untagged;

/// The FPDU of a TERMINATE message of the lower layer, first and last of its stream; with a CRC and with the markers that the
/// start frames have agreed on.
pub(crate) fn refusal(crc: bool, markers: bool, error: LlpError) -> Vec<u8> {
    let mut head = [0; DdpHeader::UNTAGGED_LEN];
    untagged(RdmapOpcode::Terminate, true, 1, 0).emit(&mut head);
    let mut ulpdu = head.to_vec();
    Terminate::new(TermError::llp(error)).emit(&mut ulpdu);
    let mut out = Vec::new();
    if markers {
        // RFC 5044 §4.3: one stands where the stream begins; the FPDU ends long before the next.
        out.resize(Marker::LEN, 0);
    }
    out.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
    out.extend_from_slice(&ulpdu);
    out.resize(out.len() + mpa::pad_len(ulpdu.len()) + CRC_LEN, 0);
    if crc {
        mpa::seal(&mut out);
    }
    out
}
