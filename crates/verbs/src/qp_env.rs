//! What queue pairs ask of their device while they run: memory, completions, receives, events, counters, windows.
//!
//! [`Core`] is the device without its queue pairs, so that one of those can be borrowed beside it. What a call leads to
//! elsewhere (queue pairs of an overflowed completion queue, the connection manager) is noted here and drawn by
//! `State::settle`. Wakers and memory wait in [`Core::wakes`] and [`Core::trash`] until the lock is free.

use std::net::IpAddr;
use std::sync::Arc;

use everywire_transport::congestion::window::PeerWindow;
use everywire_transport::ib::{Completion, Counter, CqId, QpEnv, QpEvent, RecvWr, SrqId};
use everywire_wire::Qpn;
use smallvec::SmallVec;

use crate::config::DeviceConfig;
use crate::counters::{Counters, DeviceCounter};
use crate::cq::{CqState, Pushed};
use crate::events::{AsyncEvent, EventQueue};
use crate::keys::KeyTable;
use crate::memory::Region;
use crate::srq::SrqState;
use crate::table::Table;
use crate::waker::Wakers;
use crate::windows::Windows;

/// What queue pairs ask of their device.
pub(crate) struct Core {
    pub(crate) keys: KeyTable,
    pub(crate) cqs: Table<CqState>,
    pub(crate) srqs: Table<SrqState>,
    pub(crate) counters: Counters,
    pub(crate) events: EventQueue,
    pub(crate) windows: Windows,
    pub(crate) read_window: PeerWindow,
    /// To be woken once the lock is free.
    pub(crate) wakes: Wakers,
    /// To be dropped once the lock is free.
    pub(crate) trash: Trash,
    /// Completion queues that have overflowed and whose queue pairs do not know yet.
    pub(crate) overflowed: SmallVec<[CqId; 2]>,
    /// Queue pairs that have received their first packet, for the connection manager.
    pub(crate) established: SmallVec<[Qpn; 4]>,
}

/// What must not be dropped under the lock.
#[derive(Default)]
pub(crate) struct Trash {
    pub(crate) wakers: Wakers,
    pub(crate) regions: SmallVec<[Arc<Region>; 2]>,
}

impl Trash {
    /// Whether there is nothing in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.wakers.is_empty() && self.regions.is_empty()
    }
}

impl QpEnv for Core {
    type Mem = KeyTable;

    #[inline]
    fn memory(&mut self) -> &mut KeyTable {
        &mut self.keys
    }

    #[inline]
    fn complete(&mut self, cq: CqId, completion: Completion, solicited: bool) {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        match queue.push(completion, solicited, &mut self.wakes) {
            Pushed::Added => {}
            Pushed::Overflow => {
                self.counters.add_device(DeviceCounter::CqOverflow, 1);
                self.counters.add_device(DeviceCounter::CompletionsLost, 1);
                self.overflowed.push(cq);
                self.raise(AsyncEvent::CqError(cq));
            }
            Pushed::Lost => self.counters.add_device(DeviceCounter::CompletionsLost, 1),
        }
    }

    fn srq_take(&mut self, srq: SrqId) -> Option<RecvWr> {
        let (taken, reached) = self.srqs.get_mut(srq.0)?.take();
        if reached {
            self.raise(AsyncEvent::SrqLimitReached(srq));
        }
        taken
    }

    fn event(&mut self, qpn: Qpn, event: QpEvent) {
        if event == QpEvent::CommEstablished {
            self.established.push(qpn);
        }
        self.raise(AsyncEvent::Qp { qpn, event });
    }

    #[inline]
    fn count(&mut self, counter: Counter, by: u64) {
        self.counters.add(counter, by);
    }

    #[inline]
    fn window(&mut self, peer: IpAddr) -> &mut PeerWindow {
        self.windows.get(peer)
    }

    #[inline]
    fn read_window(&mut self) -> &mut PeerWindow {
        &mut self.read_window
    }
}

impl Core {
    /// Empty, with the device's limits; keys come from `seed`.
    pub(crate) fn new(config: &DeviceConfig, seed: u64) -> Core {
        let limits = &config.limits;
        Core {
            keys: KeyTable::new(seed, limits.max_mr, limits.max_mw),
            cqs: Table::new(limits.max_cq),
            srqs: Table::new(limits.max_srq),
            counters: Counters::default(),
            events: EventQueue::default(),
            windows: Windows::default(),
            read_window: PeerWindow::default(),
            wakes: Wakers::new(),
            trash: Trash::default(),
            overflowed: SmallVec::new(),
            established: SmallVec::new(),
        }
    }

    /// Queues an asynchronous event.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if !self.events.push(event, &mut self.wakes) {
            self.counters.add_device(DeviceCounter::EventsLost, 1);
        }
    }
}
