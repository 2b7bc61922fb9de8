//! How a channel ends: by the initiator, by the connection manager, by SRP_T_LOGOUT. SRP r16a §6.8.
//!
//! The first cause is what the log says; flushed work is only its consequence. Tasks leave their sets and buffers go back at once, the
//! queue pair and its memory when the initiator has confirmed or the time for that is over.

use std::fmt;
use std::rc::Rc;

use everywire_verbs::peer_log::About;
use everywire_verbs::{SendOp, SendWr};

use super::{Channel, PATIENCE, RESPONSE_LEN, TAG_LOGOUT};
use crate::iu::LogoutReason;
use crate::rdma::target::Shared;
use crate::target;

impl Channel {
    /// Flushed work is the consequence of something that [`Channel::watch`] is about to hear of: the peer's disconnect, mostly.
    pub(super) fn flush_began(self: &Rc<Self>, why: String) {
        if self.flushed.replace(true) {
            return;
        }
        let channel = self.clone();
        self.shared.rt.spawn(async move {
            match channel.shared.rt.timeout(PATIENCE, channel.cm.closed()).await {
                Ok(reason) => channel.ended(reason),
                Err(_) => channel.tear_down(&why),
            }
        });
    }

    /// Tells the initiator that the channel ends, then ends it.
    pub(in crate::rdma::target) fn log_out(self: &Rc<Self>, reason: LogoutReason, why: &dyn fmt::Display) {
        if self.torn_down.get() || self.logging_out.get() {
            return;
        }
        self.post();
        self.logging_out.set(true);
        let wr = SendWr::new(TAG_LOGOUT, SendOp::Send).with_sges([self.logout_iu(reason)]);
        let why = format!("{why} ({reason})");
        if self.qp.post_send(wr).is_err() {
            return self.tear_down(&why);
        }
        // Counted now, so that a shutdown waits for it.
        self.shared.closing.set(self.shared.closing.get() + 1);
        let channel = self.clone();
        self.shared.rt.spawn(async move {
            let rt = channel.shared.rt.clone();
            let _ = rt.timeout(PATIENCE, channel.logged_out.notified()).await;
            channel.tear_down(&why);
            channel.shared.one_closed();
        });
    }

    /// SRP_T_LOGOUT, in the room that is kept for it.
    fn logout_iu(&self, reason: LogoutReason) -> everywire_verbs::Sge {
        let (bytes, at) = (target::Channel::logout(reason), self.parts.slots * RESPONSE_LEN);
        self.parts.responses.write_at(at, &bytes).expect("the last response slot is the logout's");
        self.parts.responses.sge(at..at + bytes.len())
    }

    /// Ends the channel, once; the nexus goes with its last one.
    pub(in crate::rdma::target) fn tear_down(self: &Rc<Self>, why: &dyn fmt::Display) {
        if self.torn_down.replace(true) {
            return;
        }
        let shared = &self.shared;
        if shared.log.may(About::Event) {
            tracing::info!("{self}: closed: {why}");
        }
        shared.channels.borrow_mut().remove(&self.id);
        shared.gate.borrow_mut().remove(self.id);
        // To ERR at once: what is outstanding is flushed instead of retried against an initiator that has gone.
        let ended = self.cm.disconnect();
        {
            let state = &mut *self.state.borrow_mut();
            // Tasks leave their sets, buffers go back to the pool.
            state.slots.clear();
            state.free.clear();
            state.waiting.clear();
            state.outgoing.clear();
            state.backlog.clear();
        }
        let nexus = self.nexus.borrow_mut().take();
        if let Some(nexus) = nexus {
            nexus.ended.notify_waiters();
        }
        self.poke.notify_one();
        shared.closing.set(shared.closing.get() + 1);
        let channel = self.clone();
        shared.rt.spawn(async move {
            let shared = &channel.shared;
            // An initiator that has died never confirms; its queue pair and memory are not kept for it.
            if shared.rt.timeout(shared.options.disconnect_timeout, ended).await.is_err() {
                tracing::debug!("{channel}: the initiator does not confirm");
            }
            shared.one_closed();
        });
    }

    pub(in crate::rdma::target) fn is_over(&self) -> bool {
        self.torn_down.get() || self.logging_out.get()
    }
}

impl Shared {
    fn one_closed(&self) {
        self.closing.set(self.closing.get() - 1);
        self.closed.notify_waiters();
    }
}
