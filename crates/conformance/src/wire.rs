//! What the wires lack and where they differ: data, each row with its clause. Nothing else may be left out of a run.
//!
//! Read IBTA vol. 1 §9.9 and table 58 (how the InfiniBand family shows errors), RFC 5040 §7 and RFC 5041 §7 (how iWARP
//! does: a TERMINATE message and the end of the stream) first. Which features a device lacks is also in its own
//! attributes; the suite holds those against this table.

use everywire_verbs::{Wire, WireFeature};

/// How a wire shows errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The InfiniBand transport: acknowledgements and NAKs by PSN; an error at the requester is not heard of by the peer.
    Ib,
    /// RDMAP on TCP: no acknowledgements above TCP; every error ends the stream, and so both ends.
    Iwarp,
}

/// One wire.
#[derive(Debug)]
pub struct Row {
    /// Which one.
    pub wire: Wire,
    /// How it shows errors.
    pub family: Family,
    /// What it lacks, and why.
    pub lacks: &'static [(WireFeature, Lack)],
    /// Why SEND has no immediate, even where WRITE has.
    pub no_send_immediate: Option<&'static str>,
    /// Why a READ lands in one segment only.
    pub one_read_segment: Option<&'static str>,
    /// Private data of a connection request, an acceptance and a rejection: the most bytes, with the clause.
    pub private_data: PrivateData,
    /// Payload bytes around which lengths are tested where a queue pair has no path MTU.
    pub segment: usize,
    /// Whether every datagram brings a GRH with it.
    pub always_grh: bool,
}

/// Why something is left out.
#[derive(Clone, Copy, Debug)]
pub struct Lack {
    /// The reason and its clause.
    pub why: &'static str,
    /// Present after all where the device is opened with the extension of RFC 7306.
    pub unless_rfc7306: bool,
}

/// How much private data the connection manager's messages carry, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct PrivateData {
    /// In a connection request.
    pub connect: usize,
    /// In an acceptance.
    pub accept: usize,
    /// In a rejection.
    pub reject: usize,
    /// The clause.
    pub clause: &'static str,
}

const IB_PRIVATE_DATA: PrivateData = PrivateData {
    connect: 56,
    accept: 196,
    reject: 148,
    clause: "IBTA §12.6 (REQ 92 less the 36 of annex A11, REP 196, REJ 148)",
};

/// Every wire there is.
pub const ROWS: [Row; 4] = [
    Row {
        wire: Wire::RoceV2,
        family: Family::Ib,
        lacks: &[],
        no_send_immediate: None,
        one_read_segment: None,
        private_data: IB_PRIVATE_DATA,
        segment: 1024,
        always_grh: true, // IBTA A17.4.5.2
    },
    Row {
        wire: Wire::RoceV1,
        family: Family::Ib,
        lacks: &[],
        no_send_immediate: None,
        one_read_segment: None,
        private_data: IB_PRIVATE_DATA,
        segment: 1024,
        always_grh: true, // IBTA A16.4.2: the GRH is part of every packet
    },
    Row {
        wire: Wire::Iwarp,
        family: Family::Iwarp,
        lacks: &[
            (WireFeature::Uc, lack("a queue pair is one reliable stream (RFC 5044 §3)")),
            (WireFeature::Ud, lack("RDMAP runs on streams and has no datagrams (RFC 5040 §1.1)")),
            (WireFeature::Multicast, lack("a TCP connection has two ends (RFC 5040 §1.1)")),
            (WireFeature::Atomics, extension("RFC 5040 §4 has no atomics; they came with RFC 7306 §5")),
            (WireFeature::Immediate, extension("RFC 5040 §4 has no immediate; it came with RFC 7306 §6")),
        ],
        no_send_immediate: Some(
            "RFC 7306 §6 has immediate data as a message of its own, behind a WRITE only",
        ),
        one_read_segment: Some("a READ request names one sink STag (RFC 5040 §4.4)"),
        private_data: PrivateData {
            connect: 508,
            accept: 508,
            reject: 508,
            clause: "RFC 5044 §7.1.1 (512 bytes), less the 4 of RFC 6581 §9.1",
        },
        segment: 1 << 14, // a sender's own choice (RFC 5041 §5.1): here the longest that our own makes of a message
        always_grh: false,
    },
    Row {
        wire: Wire::InfiniBand,
        family: Family::Ib,
        lacks: &[],
        no_send_immediate: None,
        one_read_segment: None,
        private_data: IB_PRIVATE_DATA,
        segment: 1024,
        always_grh: false, // IBTA §8.3: a GRH only where the packet leaves the subnet or is multicast
    },
];

const fn lack(why: &'static str) -> Lack {
    Lack { why, unless_rfc7306: false }
}

const fn extension(why: &'static str) -> Lack {
    Lack { why, unless_rfc7306: true }
}

impl Row {
    /// The row of a wire.
    ///
    /// # Panics
    /// If the table does not know the wire.
    pub fn of(wire: Wire) -> &'static Row {
        ROWS.iter().find(|row| row.wire == wire).expect("the table has every wire")
    }

    /// Why a feature is left out; `None` if it must be there.
    pub fn lacks(&self, feature: WireFeature, rfc7306: bool) -> Option<&'static str> {
        let (_, lack) = self.lacks.iter().find(|(lacked, _)| *lacked == feature)?;
        (!(lack.unless_rfc7306 && rfc7306)).then_some(lack.why)
    }
}
