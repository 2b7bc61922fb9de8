//! Everything a device is, behind its one lock.
//!
//! [`Core`] is what queue pairs ask for while they run; [`State`] adds the queue pairs themselves, who is ready to send,
//! who waits for time, and what the driver has to do. After every operation on a queue pair comes [`State::settle`],
//! which draws the consequences: timers, the ready queue, windows that opened, completion queues that overflowed.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use everywire_transport::ib;
use everywire_transport::mad::Gsi;
use everywire_wire::{Guid, Psn, Qpn};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::any_qp::AnyQp;
use crate::cm_id::CmState;
use crate::command::Command;
use crate::config::{DeviceConfig, GidType, PortState, Wire};
use crate::events::AsyncEvent;
use crate::ib::IbState;
use crate::memory::Region;
use crate::multicast::Group;
use crate::qp_env::Core;
use crate::qp_table::{MAX_QPS_WITH_PREFIX, QpEntry, QpTable};
use crate::route::{RouteToken, Routes};
use crate::streams::Streams;
use crate::table::Table;
use crate::timer::Timers;

/// Trains that a queue pair may leave behind: what it holds back fits one, after what it was about to send.
const MAX_LAST_WORDS: usize = 2;

/// Trains left behind that wait for the driver; more are dropped, and the peers' retries find nobody.
const MAX_LAST_WORDS_WAITING: usize = 1024;

/// Datagrams of a queue pair that is gone.
pub(crate) struct LastWords {
    pub(crate) path: ib::Path,
    pub(crate) segment: Option<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// A device's state.
pub(crate) struct State {
    pub(crate) config: Arc<DeviceConfig>,
    pub(crate) core: Core,
    pub(crate) qps: QpTable,
    pub(crate) pds: Table<()>,
    pub(crate) ahs: u32,
    pub(crate) groups: BTreeMap<Group, Vec<Qpn>>,
    pub(crate) routes: Routes,
    /// Of InfiniBand devices.
    pub(crate) ib: Option<Box<IbState>>,
    pub(crate) cm: CmState,
    /// TCP connections, on an iWARP device.
    pub(crate) streams: Streams,
    /// Management datagrams of programs.
    pub(crate) gmps: crate::gmp::Gmps,
    /// Wraps the connection manager's MADs for QP1.
    pub(crate) gsi: Gsi,
    pub(crate) port: PortState,
    /// Entropy for the connection manager and whoever else needs some.
    pub(crate) rng: ChaCha8Rng,
    /// Slots of queue pairs that may have something to send, each once, in turn.
    ready: VecDeque<u32>,
    timers: Timers,
    pub(crate) commands: VecDeque<Command>,
    last_words: VecDeque<LastWords>,
    /// Where last words are put together.
    spare: Option<Box<ib::Burst>>,
    due: Vec<u32>,
    /// The latest time the driver has told.
    pub(crate) now: Option<Instant>,
    /// Something was queued for the driver since the lock was taken.
    pub(crate) work: bool,
    /// The driver has been told to come and has not come yet.
    pub(crate) kicked: bool,
}

impl State {
    /// A device as configured; `config` is clamped already.
    pub(crate) fn new(config: Arc<DeviceConfig>) -> State {
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        let limits = &config.limits;
        let core = Core::new(&config, rng.next_u64());
        let qp_rng = ChaCha8Rng::seed_from_u64(rng.next_u64());
        State {
            core,
            qps: QpTable::new(limits.max_qp, config.id_slot, qp_rng),
            pds: Table::new(limits.max_pd),
            ahs: 0,
            groups: BTreeMap::new(),
            routes: Routes::default(),
            cm: CmState::new(&config, rng.next_u64()),
            streams: Streams::default(),
            gmps: crate::gmp::Gmps::default(),
            gsi: Gsi::new(Psn::new(rng.next_u32())),
            port: if config.wire == Wire::InfiniBand { PortState::Down } else { PortState::Active },
            ib: (config.wire == Wire::InfiniBand).then(|| Box::new(IbState::new(rng.next_u32()))),
            rng,
            ready: VecDeque::new(),
            timers: Timers::default(),
            commands: VecDeque::new(),
            last_words: VecDeque::new(),
            spare: None,
            due: Vec::new(),
            now: None,
            work: false,
            kicked: false,
            config,
        }
    }

    /// Whether an address is in the GID table.
    #[inline]
    pub(crate) fn is_our_address(&self, ip: IpAddr) -> bool {
        self.config.gids.iter().any(|gid| gid.ip == ip) || (self.ib.is_some() && self.is_ib_address(ip))
    }

    /// Whether an address is in the GID table with this type.
    #[inline]
    pub(crate) fn has_gid(&self, ip: IpAddr, ty: GidType) -> bool {
        self.config.gids.iter().any(|gid| gid.ip == ip && gid.ty == ty)
    }

    /// Queues a command for the driver. One that undoes what the driver has not seen yet takes that back instead, so that
    /// the queue is bounded by what exists.
    pub(crate) fn command(&mut self, command: Command) {
        let group = matches!(command, Command::JoinGroup { .. } | Command::LeaveGroup { .. });
        if group && let Some(undone) = self.commands.iter().rposition(|queued| command.undoes(queued)) {
            self.commands.remove(undone);
            return;
        }
        self.commands.push_back(command);
        self.work = true;
    }

    /// Forgets a request for a route; the driver is not asked if it has not been yet.
    pub(crate) fn withdraw_route(&mut self, withdrawn: RouteToken) {
        let waker = self.routes.withdraw(withdrawn);
        self.discard(waker);
        let it = |queued: &Command| matches!(queued, Command::ResolveRoute { token, .. } | Command::ResolveNeighbour { token, .. } if *token == withdrawn);
        self.commands.retain(|queued| !it(queued));
    }

    /// The next command.
    pub(crate) fn next_command(&mut self) -> Option<Command> {
        let command = self.commands.pop_front()?;
        if let Command::ResolveRoute { token, .. } | Command::ResolveNeighbour { token, .. } = command {
            self.route_asked(token);
        }
        Some(command)
    }

    /// Keeps a waker until the lock is free.
    pub(crate) fn discard(&mut self, waker: Option<std::task::Waker>) {
        self.core.trash.wakers.extend(waker);
    }

    /// Keeps memory until the lock is free: unmapping it takes time.
    pub(crate) fn discard_memory(&mut self, regions: impl IntoIterator<Item = Arc<Region>>) {
        self.core.trash.regions.extend(regions);
    }

    /// Runs an operation on the queue pair in `slot`, which may have something to send after it.
    #[inline]
    pub(crate) fn with_slot<T>(
        &mut self,
        slot: u32,
        run: impl FnOnce(&mut AnyQp, &mut Core) -> T,
    ) -> Option<T> {
        let entry = self.qps.at(slot)?;
        let result = run(&mut entry.qp, &mut self.core);
        self.settle(slot, true);
        Some(result)
    }

    /// Runs an operation on a queue pair by number; `poll` if it can make something to send.
    #[inline]
    pub(crate) fn with_qp<T>(
        &mut self,
        qpn: Qpn,
        poll: bool,
        run: impl FnOnce(&mut AnyQp, &mut Core) -> T,
    ) -> Option<T> {
        let slot = self.qps.slot(qpn)?;
        let entry = self.qps.at(slot)?;
        let result = run(&mut entry.qp, &mut self.core);
        self.settle(slot, poll);
        Some(result)
    }

    /// Destroys a queue pair: nothing of it completes or is sent any more.
    pub(crate) fn destroy_qp(&mut self, qpn: Qpn) -> Option<Box<QpEntry>> {
        self.cm_qp_destroyed(qpn);
        let slot = self.qps.slot(qpn)?;
        self.keep_last_words(slot);
        self.drop_stream(slot);
        let entry = self.qps.at(slot)?;
        entry.qp.close(&mut self.core);
        self.core.keys.forget_qp(qpn);
        let (peer, grouped) = (entry.peer, entry.groups > 0);
        if entry.ready {
            self.ready.retain(|waiting| *waiting != slot);
        }
        if grouped {
            self.leave_all_groups(qpn);
        }
        if let Some(ip) = peer {
            self.core.windows.remove_user(ip, qpn);
        }
        self.core.read_window.forget(qpn);
        self.timers.set(slot, None);
        self.core.events.forget(|event| matches!(event, AsyncEvent::Qp { qpn: of, .. } if *of == qpn));
        let entry = self.qps.remove(qpn)?;
        self.wake_waiters();
        Some(entry)
    }

    /// The consequences of an operation on the queue pair in `slot`; `poll` if it may have something to send now.
    #[inline]
    pub(crate) fn settle(&mut self, slot: u32, poll: bool) {
        if let Some(entry) = self.qps.at(slot) {
            let deadline = entry.qp.poll_timeout();
            let newly = poll && !entry.ready;
            entry.ready |= poll;
            self.timers.set(slot, deadline);
            self.work |= poll; // also if it waits for its turn already: the driver may have gone without giving it
            if newly {
                self.ready.push_back(slot);
            }
            if let AnyQp::Iwarp(qp) = &mut entry.qp
                && let Some(close) = qp.poll_close()
            {
                self.streams.note_close(slot, close);
                self.work = true;
            }
        }
        self.wake_waiters();
        if !self.core.overflowed.is_empty() {
            self.fail_overflowed();
        }
        if !self.core.established.is_empty() {
            self.report_established();
        }
    }

    /// What a queue pair owes its peer when its state ends, acknowledgements held back, is sent in its stead: otherwise the
    /// peer, whose message was taken, would retry until it gave up.
    pub(crate) fn keep_last_words(&mut self, slot: u32) {
        let (Some(now), Some(entry)) = (self.now, self.qps.at(slot)) else { return };
        let Some(qp) = entry.qp.ib() else { return };
        if qp.config().ty != ib::QpType::Rc || qp.poll_timeout().is_none() {
            return;
        }
        qp.hurry();
        let burst = self.spare.get_or_insert_with(|| Box::new(ib::Burst::default()));
        for _ in 0..MAX_LAST_WORDS {
            if self.last_words.len() >= MAX_LAST_WORDS_WAITING
                || !qp.poll_transmit(&mut self.core, now, burst)
            {
                break;
            }
            let Some(&path) = burst.path() else { break };
            let last = LastWords { path, segment: burst.segment_size(), bytes: burst.bytes().to_vec() };
            self.last_words.push_back(last);
            self.work = true;
        }
    }

    /// The oldest last words.
    #[inline]
    pub(crate) fn next_last_words(&mut self) -> Option<LastWords> {
        self.last_words.pop_front()
    }

    /// Queue pairs that waited for a window which now has room get their turn.
    #[inline]
    fn wake_waiters(&mut self) {
        while let Some(qpn) = self.core.windows.next_waiter() {
            self.mark_ready(qpn);
        }
        while let Some(qpn) = self.core.read_window.next_waiter() {
            self.mark_ready(qpn);
        }
    }

    fn mark_ready(&mut self, qpn: Qpn) {
        let Some(slot) = self.qps.slot(qpn) else { return };
        let Some(entry) = self.qps.at(slot) else { return };
        if !entry.ready {
            entry.ready = true;
            self.ready.push_back(slot);
            self.work = true;
        }
    }

    /// IBTA C10-113: queue pairs attached to a completion queue in error go to ERR. Rare, so a scan does.
    #[cold]
    fn fail_overflowed(&mut self) {
        // A failing queue pair flushes into its other queue, which may overflow too.
        while let Some(cq) = self.core.overflowed.pop() {
            for slot in self.qps.slots_where(|config| config.send_cq == cq || config.recv_cq == cq) {
                if let Some(entry) = self.qps.at(slot) {
                    entry.qp.fail(&mut self.core);
                    let deadline = entry.qp.poll_timeout();
                    self.timers.set(slot, deadline);
                    // The end of a connection is due: a TERMINATE, or a RST.
                    if let AnyQp::Iwarp(qp) = &mut entry.qp {
                        if let Some(close) = qp.poll_close() {
                            self.streams.note_close(slot, close);
                        }
                        self.work = true;
                        if !std::mem::replace(&mut entry.ready, true) {
                            self.ready.push_back(slot);
                        }
                    }
                }
                self.wake_waiters();
            }
        }
    }

    #[cold]
    fn report_established(&mut self) {
        let established = std::mem::take(&mut self.core.established);
        if let Some(now) = self.now {
            established.into_iter().for_each(|qpn| self.cm_communication_established(now, qpn));
        }
    }

    /// Fills `burst` from the next queue pair that has something to send.
    pub(crate) fn next_burst(&mut self, now: Instant, burst: &mut ib::Burst) -> bool {
        while let Some(slot) = self.ready.pop_front() {
            let Some(entry) = self.qps.at(slot) else { continue };
            entry.ready = false;
            let Some(qp) = entry.qp.ib() else { continue };
            let filled = qp.poll_transmit(&mut self.core, now, burst);
            self.settle(slot, filled); // one burst each, then to the end of the queue
            if filled {
                return true;
            }
        }
        false
    }

    /// The next queue pair that may have something to send; it is to be settled.
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        let slot = self.ready.pop_front()?;
        if let Some(entry) = self.qps.at(slot) {
            entry.ready = false;
        }
        Some(slot)
    }

    /// When a queue pair wants to be called.
    pub(crate) fn next_qp_timeout(&mut self) -> Option<Instant> {
        self.timers.next()
    }

    /// Calls the queue pairs whose time has come.
    pub(crate) fn fire_timers(&mut self, now: Instant) {
        // All that are due first: one that wants to be called again at once gets its turn the next time.
        let mut due = std::mem::take(&mut self.due);
        while let Some(slot) = self.timers.pop_due(now) {
            due.push(slot);
        }
        for slot in due.drain(..) {
            self.with_slot(slot, |qp, core| qp.handle_timeout(core, now));
        }
        self.due = due;
    }
}

/// The configuration as it can be kept: limits brought down, what was left open drawn from the seed.
pub(crate) fn settle_config(mut config: DeviceConfig) -> DeviceConfig {
    config.limits = config.limits.clamped();
    if config.id_slot.is_some() {
        config.limits.max_qp = config.limits.max_qp.min(MAX_QPS_WITH_PREFIX);
    }
    if config.source_ports.is_empty() {
        config.source_ports.push(crate::config::DEFAULT_SOURCE_PORT);
    }
    if config.node_guid == Guid(0) {
        let mut rng = ChaCha8Rng::seed_from_u64(!config.seed);
        // A locally administered EUI-64: bit 1 of the first byte is set.
        config.node_guid = Guid(rng.next_u64() | 0x0200_0000_0000_0000);
    }
    config
}
