//! Requests out: a command or a function takes a slot and a credit, and a future waits for its answer. SRP r16a §5.4.
//!
//! Dropped before the answer came, it leaves its slot occupied until then, because the target may still use the request's memory.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use everywire_verbs::{MemoryRegion, SendOp, SendWr};

use super::{Answer, Channel, SLOT_BITS, Slot, TAG_REQUEST};
use crate::initiator::{Broken, Data, Request};
use crate::iu::Function;
use crate::rdma::initiator::TagCell;
use crate::rdma::initiator::error::SrpErrorKind;

impl Channel {
    /// Sends a command and waits for its end. `immediate` are the data of [`Data::Immediate`].
    pub(in crate::rdma::initiator) async fn command(
        self: &Rc<Self>,
        request: &Request<'_>,
        immediate: Option<(&MemoryRegion, usize)>,
        regions: Vec<MemoryRegion>,
        tag: &TagCell,
    ) -> Result<Answer, SrpErrorKind> {
        let slot = loop {
            self.check()?;
            // One slot is kept for task management, as one credit is: it may be there to end what holds the others.
            let free = if self.free.borrow().len() > 1 { self.free.borrow_mut().pop() } else { None };
            if let Some(slot) = free {
                let begun = self.begin(slot, request, immediate, &regions, tag);
                match begun {
                    Ok(true) => break slot,
                    Ok(false) => self.free.borrow_mut().push(slot),
                    Err(error) => {
                        self.free.borrow_mut().push(slot);
                        return Err(error.into());
                    }
                }
            }
            self.room.notified().await;
        };
        // Others may have waited for the same notification.
        self.room.notify_one();
        Submitted { channel: self, slot }.await
    }

    fn begin(
        self: &Rc<Self>,
        slot: u16,
        request: &Request<'_>,
        immediate: Option<(&MemoryRegion, usize)>,
        regions: &[MemoryRegion],
        cell: &TagCell,
    ) -> Result<bool, Broken> {
        let tag = self.next_tag(slot);
        let Some(bytes) = self.session.borrow_mut().command(tag, request)? else { return Ok(false) };
        cell.set(tag, self);
        self.occupy(slot, regions);
        let at = usize::from(slot) * self.it_iu_len;
        self.requests.write_at(at, &bytes).expect("a request slot lies inside its region");
        let mut sges = vec![self.requests.sge(at..at + bytes.len())];
        if let (Some((region, from)), Data::Immediate(len)) = (immediate, request.data) {
            // What is between the command and the data is zeroes.
            let offset = self.session.borrow().immediate_offset();
            let gap = vec![0; offset.saturating_sub(bytes.len())];
            self.requests.write_at(at + bytes.len(), &gap).expect("immediate data begin inside");
            sges[0] = self.requests.sge(at..at + offset);
            sges.push(region.sge(from..from + len as usize));
        }
        self.send(SendWr::new(TAG_REQUEST | u64::from(slot), SendOp::Send).with_sges(sges));
        Ok(true)
    }

    fn next_tag(&self, slot: u16) -> u64 {
        let generation = self.slots.borrow()[usize::from(slot)].generation + 1;
        generation << SLOT_BITS | u64::from(slot)
    }

    fn occupy(&self, slot: u16, regions: &[MemoryRegion]) {
        let s = &mut self.slots.borrow_mut()[usize::from(slot)];
        let generation = s.generation + 1;
        let since = self.ticks.get();
        *s = Slot { generation, busy: true, since, _regions: regions.to_vec(), ..Slot::default() };
    }

    /// Sends a task management function and waits for its end.
    pub(in crate::rdma::initiator) async fn manage(
        self: &Rc<Self>,
        lun: u64,
        function: Function,
        task: u64,
    ) -> Result<Answer, SrpErrorKind> {
        let slot = loop {
            self.check()?;
            let free = self.free.borrow_mut().pop();
            if let Some(slot) = free {
                let tag = self.next_tag(slot);
                let bytes = self.session.borrow_mut().manage(tag, lun, function, task);
                if let Some(bytes) = bytes {
                    self.occupy(slot, &[]);
                    let at = usize::from(slot) * self.it_iu_len;
                    self.requests.write_at(at, &bytes).expect("a request slot lies inside its region");
                    let wr = SendWr::new(TAG_REQUEST | u64::from(slot), SendOp::Send);
                    self.send(wr.with_sges([self.requests.sge(at..at + bytes.len())]));
                    break slot;
                }
                self.free.borrow_mut().push(slot);
            }
            self.room.notified().await;
        };
        self.room.notify_one();
        Submitted { channel: self, slot }.await
    }
}

/// A request on its way.
pub(super) struct Submitted<'a> {
    pub(super) channel: &'a Rc<Channel>,
    pub(super) slot: u16,
}

impl Future for Submitted<'_> {
    type Output = Result<Answer, SrpErrorKind>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slots = self.channel.slots.borrow_mut();
        let slot = &mut slots[usize::from(self.slot)];
        if let Some(answer) = &slot.answer {
            return Poll::Ready(Ok(answer.clone()));
        }
        if let Some(why) = &*self.channel.dead.borrow() {
            return Poll::Ready(Err(why.clone()));
        }
        if slot.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            slot.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        let mut slots = self.channel.slots.borrow_mut();
        let slot = &mut slots[usize::from(self.slot)];
        // On a dead channel nothing more comes; its memory is safe, because its queue pair is in ERR.
        if slot.sent && slot.answer.is_some() || self.channel.dead.borrow().is_some() {
            self.channel.release(self.slot, slot);
        } else {
            slot.abandoned = true;
        }
    }
}
