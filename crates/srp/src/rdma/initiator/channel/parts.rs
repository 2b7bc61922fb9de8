//! Queue pair, completion queue and memory of a channel on the initiator's side: how many of each, and in what state.
//!
//! A receive for each response that may come and some for the target's own requests; a slot for each request that waits for its
//! answer or for the acknowledgement of its SEND. SRP r16a §5.4.
//! What this does not do: connect, send.

use everywire_verbs::{Access, Cq, MemoryRegion, Qp, QpCaps, QpInit, QpType, RecvWr, VerbsError};

use super::{Open, REPLY_LEN, SPARE_RECEIVES, SPARE_SENDS, TI_IU_LEN};

/// A queue pair with its receives posted, and what it works with.
pub(super) struct Made {
    pub(super) qp: Qp,
    pub(super) cq: Cq,
    pub(super) requests: MemoryRegion,
    pub(super) responses: MemoryRegion,
    pub(super) replies: MemoryRegion,
    pub(super) slots: u16,
}

pub(super) fn receive(responses: &MemoryRegion, index: u32) -> RecvWr {
    let at = index as usize * TI_IU_LEN;
    RecvWr::new(index.into(), [responses.sge(at..at + TI_IU_LEN)])
}

pub(super) fn make(open: &Open<'_>, it_iu_len: u32) -> Result<Made, VerbsError> {
    // A slot is free again when its SEND is acknowledged too, and one more request may be a function.
    let slots = open.options.queue.clamp(2, u16::MAX / 2);
    let receives = u32::from(slots) + SPARE_RECEIVES;
    let sends = u32::from(slots) + SPARE_SENDS;
    let cq = open.device.create_cq(receives + sends)?;
    let caps = QpCaps {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let qp = open.pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) })?;
    let requests = open.pd.register(it_iu_len as usize * usize::from(slots), Access::LOCAL_WRITE)?;
    let responses = open.pd.register(TI_IU_LEN * receives as usize, Access::LOCAL_WRITE)?;
    let replies = open.pd.register(REPLY_LEN * SPARE_SENDS as usize, Access::LOCAL_WRITE)?;
    // The target reads what is written and writes what is read.
    qp.to_init(Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    for index in 0..receives {
        qp.post_recv(receive(&responses, index)).expect("an empty receive queue of this depth takes as many");
    }
    Ok(Made { qp, cq, requests, responses, replies, slots })
}
