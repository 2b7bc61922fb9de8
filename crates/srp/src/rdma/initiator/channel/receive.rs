//! What comes on a channel: completions, the target's information units, answers to waiting requests. SRP r16a §5.4–§5.7.
//!
//! SRP_CRED_REQ and SRP_AER_REQ are answered from memory of their own, as entries for that are free.

use std::rc::Rc;
use std::time::Duration;

use everywire_verbs::{Completion, SendOp, SendWr, WcOpcode, WcStatus};

use super::parts::receive;
use super::{Answer, BATCH, Channel, REPLY_LEN, SLOT_BITS, Slot, TAG_LOGOUT, TAG_REPLY, TI_IU_LEN};
use crate::initiator::Event;
use crate::rdma::initiator::error::SrpErrorKind;

impl Channel {
    pub(super) async fn completions(self: Rc<Self>) {
        let mut batch: Vec<Completion> = Vec::with_capacity(BATCH);
        let mut receives = Vec::with_capacity(BATCH);
        while self.dead.borrow().is_none() {
            if let Err(error) = self.cq.wait(&mut batch, BATCH).await {
                return self.fail(SrpErrorKind::Lost(error.to_string()));
            }
            for completion in batch.drain(..) {
                if completion.status != WcStatus::Success {
                    // Who flushed it is told by the connection manager in a moment.
                    let why = format!("{:?}: {}", completion.opcode, completion.status);
                    if completion.status == WcStatus::WrFlushErr {
                        self.rt.sleep(Duration::from_millis(1)).await;
                    }
                    return self.fail(SrpErrorKind::Lost(why));
                }
                let index = completion.wr_id as u32;
                match (completion.opcode, completion.wr_id & !0xffff_ffff) {
                    (WcOpcode::Recv, _) => {
                        let at = index as usize * TI_IU_LEN;
                        let len = (completion.byte_len as usize).min(TI_IU_LEN);
                        let bytes = self.responses.read_vec(at, len).unwrap_or_default();
                        receives.push(receive(&self.responses, index));
                        self.received(&bytes);
                    }
                    (_, TAG_REPLY) => {
                        self.reply_room.borrow_mut().push(index);
                        self.send_replies();
                    }
                    (_, TAG_LOGOUT) => self.logged_out.notify_one(),
                    _ => self.finish(index as u16, |slot| slot.sent = true),
                }
            }
            // Before whoever was woken sends the next requests.
            if let Err(error) = self.qp.post_recv_list(receives.drain(..)) {
                self.fail(SrpErrorKind::Lost(error.to_string()));
            }
        }
    }

    fn received(&self, bytes: &[u8]) {
        let received = self.session.borrow_mut().receive(bytes);
        let (event, reply) = match received {
            Ok(received) => received,
            Err(error) => return self.fail(error.into()),
        };
        if let Some(reply) = reply {
            self.reply_queue.borrow_mut().push_back(reply);
            self.send_replies();
        }
        match event {
            Event::Done { tag, response } => self.answer(tag, Answer::Done(response)),
            Event::Managed { tag, code, ended } => {
                ended.into_iter().for_each(|tag| self.answer(tag, Answer::Aborted));
                self.answer(tag, Answer::Managed(code));
            }
            Event::Credit => {}
            Event::Event { lun, sense } => {
                let sense = everywire_scsi::Sense::parse(&sense);
                let text = sense.map_or_else(|| "no sense data".to_owned(), |sense| sense.to_string());
                tracing::info!("{}: LUN {lun:#x} reports: {text}", self.cm);
            }
            Event::LoggedOut(reason) => self.fail(SrpErrorKind::LoggedOut(reason)),
        }
        // Credits may have come with any of them.
        self.room.notify_one();
    }

    fn send_replies(&self) {
        loop {
            if self.reply_queue.borrow().is_empty() {
                return;
            }
            let Some(index) = self.reply_room.borrow_mut().pop() else { return };
            let Some(bytes) = self.reply_queue.borrow_mut().pop_front() else { return };
            let at = index as usize * REPLY_LEN;
            self.replies.write_at(at, &bytes).expect("a reply lies inside its region");
            let wr = SendWr::new(TAG_REPLY | u64::from(index), SendOp::Send);
            self.send(wr.with_sges([self.replies.sge(at..at + bytes.len())]));
        }
    }

    pub(super) fn answer(&self, tag: u64, answer: Answer) {
        let slot = tag as u16;
        let same =
            self.slots.borrow().get(usize::from(slot)).is_some_and(|s| s.generation == tag >> SLOT_BITS);
        if same {
            self.finish(slot, |s| s.answer = Some(answer));
        }
    }

    /// Notes one of the two ends of a request: its answer wakes whoever waits; after the second the slot is free.
    fn finish(&self, index: u16, note: impl FnOnce(&mut Slot)) {
        let waker = {
            let mut slots = self.slots.borrow_mut();
            let slot = &mut slots[usize::from(index)];
            note(slot);
            if slot.answer.is_none() {
                return;
            }
            if slot.abandoned && slot.sent {
                self.release(index, slot);
                return;
            }
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn release(&self, index: u16, slot: &mut Slot) {
        *slot = Slot { generation: slot.generation, ..Slot::default() };
        self.free.borrow_mut().push(index);
        self.room.notify_one();
    }
}
