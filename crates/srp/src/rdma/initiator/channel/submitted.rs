//! A request on its way: the future that waits for its answer.
//!
//! Dropped before the answer came, it leaves its slot occupied until then, because the target may still use the request's memory.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Answer, Channel};
use crate::rdma::initiator::error::SrpErrorKind;

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
