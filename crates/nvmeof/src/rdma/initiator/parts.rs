//! Queue pair, completion queue and memory of a queue on the host's side: how many of each, and in what state.
//!
//! Sizes follow from the number of entries: a receive for each response that may come, a slot for each command that waits
//! for its completion or for the acknowledgement of its SEND. NVMe-oF 1.1 §2.4.
//! What this does not do: connect, send.

use everywire_verbs::{Access, Cq, MemoryRegion, Qp, QpCaps, QpInit, QpType, RecvWr, VerbsError};

use super::queue::Open;
use crate::pdu::{Cqe, Sqe};

/// Most entries of a queue: slot numbers take ten bits of the command identifier.
pub(super) const MAX_ENTRIES: u16 = 1024;
pub(super) const SLOT_BITS: u32 = 10;

/// Slots of a queue with so many entries: commands that are complete but for the acknowledgement of their SEND hold one too.
pub(super) fn slots_of(entries: u16) -> u16 {
    (2 * entries).min(MAX_ENTRIES)
}

/// A queue pair with its receives posted, and what it works with.
pub(super) struct Made {
    pub(super) qp: Qp,
    pub(super) cq: Cq,
    pub(super) capsules: MemoryRegion,
    pub(super) responses: MemoryRegion,
}

/// The receive of response slot `index`.
pub(super) fn response(responses: &MemoryRegion, index: u16) -> RecvWr {
    let at = usize::from(index) * Cqe::LEN;
    RecvWr::new(index.into(), [responses.sge(at..at + Cqe::LEN)])
}

/// Makes them, in INIT.
pub(super) fn make(open: &Open<'_>) -> Result<Made, VerbsError> {
    let (entries, slots) = (u32::from(open.entries), u32::from(slots_of(open.entries)));
    let cq = open.device.create_cq(slots + 2 * entries + 8)?;
    // A slot is free again only when its SEND is acknowledged, so as many entries as slots are enough.
    let caps = QpCaps {
        max_send_wr: slots + 1,
        max_recv_wr: entries,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let qp = open.pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) })?;
    let capsules = open.pd.register(Sqe::LEN * slots as usize, Access::empty())?;
    let responses = open.pd.register(Cqe::LEN * usize::from(open.entries), Access::LOCAL_WRITE)?;
    // The controller reads what is written and writes what is read.
    qp.to_init(Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    for index in 0..open.entries {
        let posted = qp.post_recv(response(&responses, index));
        posted.expect("an empty receive queue of this depth takes as many receives");
    }
    Ok(Made { qp, cq, capsules, responses })
}
