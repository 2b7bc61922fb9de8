//! One life of one host in the workload: its memory and the models of it, its completion queues, its windows.
//!
//! Nodes are numbered over the whole run, so that an effect on a host that has died since is not taken for one on its successor.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use everywire_verbs::{
    Access, Arm, AsyncEvent, Completion, Cq, Device, FastRegMr, MemoryRegion, MemoryWindow, Pd, QpEvent,
    RKey, Remote, Srq, SrqInit, VerbsError, WcStatus, WindowType,
};

use super::slots::{Layout, Slot, Slots};
use crate::checkers::Violation;
use crate::checkers::atomics::{AtomicWord, Counter};
use crate::checkers::completions::SharedLedger;
use crate::checkers::shadow::{Outcome, Shadow};
use crate::world::{HostId, World};
use crate::{ensure, violation};

/// Bytes of the main region.
pub const REGION: usize = 1 << 20;
/// The counter and the word that atomics work on.
pub const COUNTER_AT: usize = 0;
/// See [`COUNTER_AT`].
pub const WORD_AT: usize = 8;
const GENERAL: Range<usize> = 64..896 << 10;
/// Keys that open parts of the main region: two type 2 windows, two fast-register regions.
pub const OPENINGS: usize = 4;
const OPENING_BYTES: usize = 32 << 10;
/// Receives of the shared queue are this long.
pub const SHARED_RECV: usize = 4097;
/// Completion queues a node has: one polled, one waited for, one armed for solicited events.
pub const QUEUES: usize = 3;
/// The queue that a task waits for.
pub const WAITED: usize = 1;
/// The queue that is armed for solicited events.
pub const ARMED: usize = 2;
const QUEUE_DEPTH: u32 = 4096;
/// Receives that the shared queue holds.
pub const SHARED_DEPTH: u32 = 64;

/// What peers may do with the main region, as far as they have its key.
pub const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
/// What windows and fast-register regions open.
pub const REMOTE_ACCESS: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A part of the main region that operations take slots from: 0 is the general part, the rest are openings.
pub type AreaId = usize;

/// What an opening is made of.
#[derive(Debug)]
pub enum Door {
    /// A type 2 memory window.
    Window(MemoryWindow),
    /// A fast-register region.
    Fast(FastRegMr),
}

/// The state of an opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Nobody may use it.
    Closed,
    /// Its owner has posted the request that opens it.
    Asked,
    /// Open.
    Open,
    /// Somebody has posted the request that closes it.
    Closing,
}

/// An opening and who uses it.
#[derive(Debug)]
pub struct OpeningSlot {
    /// The object.
    pub door: Door,
    /// The key it has or had last.
    pub key: RKey,
    /// Its state.
    pub state: Opening,
    /// The address that peers give for its first byte.
    pub base: u64,
    /// The connection and side of the end that opened it; the other side may use it.
    pub used_by: Option<(usize, usize)>,
    /// Requests of peers under way through it.
    pub users: usize,
    /// Requests of its owner whose payload is behind it.
    pub own_users: usize,
}

/// A node.
pub struct Node {
    /// Its number over the whole run.
    pub number: u64,
    /// Its device.
    pub device: Device,
    /// The protection domain of everything but `foreign`.
    pub pd: Pd,
    /// Completion queues.
    pub cqs: Vec<Cq>,
    /// Completions that the waiting task has fetched.
    pub inbox: Rc<RefCell<Vec<Completion>>>,
    /// The main region.
    pub main: MemoryRegion,
    /// Its model.
    pub shadow: Shadow,
    /// Free slots by area.
    pub areas: Vec<Slots>,
    /// Doors to the areas from 1 on.
    pub openings: Vec<OpeningSlot>,
    /// Keys that opened something once.
    pub dead_keys: Vec<RKey>,
    /// A region that peers may not touch, and that receives may not be written to.
    pub locked: MemoryRegion,
    /// A region in another protection domain.
    pub foreign: MemoryRegion,
    /// The shared receive queue.
    pub srq: Srq,
    /// Its ledger.
    pub shared: SharedLedger,
    /// Receives in it.
    pub shared_open: BTreeMap<u64, Layout>,
    /// The history of the counter.
    pub counter: Counter,
    /// The history of the word.
    pub word: AtomicWord,
    /// Queue pairs for which the device said that the last receive of the shared queue is through.
    pub last_receive: BTreeSet<u32>,
    /// Whether an event or a completion that asks for one came to the armed queue since it was armed.
    armed: bool,
}

impl Node {
    /// Sets a host up.
    pub fn new(world: &World, host: HostId, number: u64) -> Result<Node, Violation> {
        let mut node = Node::with_objects(world, host, number)
            .map_err(|e| violation!("setting up host {}: {e}", host.0))?;
        // Atomics have checkers of their own.
        node.shadow.claim_scribble(COUNTER_AT, 16)?;
        Ok(node)
    }

    fn with_objects(world: &World, host: HostId, number: u64) -> Result<Node, VerbsError> {
        let device = world.device(host);
        let pd = device.alloc_pd()?;
        let other_pd = device.alloc_pd()?;
        let cqs = (0..QUEUES).map(|_| device.create_cq(QUEUE_DEPTH)).collect::<Result<Vec<_>, _>>()?;
        let inbox = Rc::default();
        spawn_waiter(world, host, cqs[WAITED].clone(), Rc::clone(&inbox));
        let main = pd.register(REGION, ALL_ACCESS)?;
        let locked = pd.register(8192, Access::empty())?;
        let foreign = other_pd.register(8192, ALL_ACCESS)?;
        let srq = pd.create_srq(SrqInit { max_wr: SHARED_DEPTH, max_sge: 4 })?;
        let name = format!("node {number} (host {})", host.0);
        let mut areas = vec![Slots::new(GENERAL)];
        for i in 1..=OPENINGS {
            let range = opening_range(i);
            areas.push(Slots::new(range.offset..range.offset + range.len));
        }
        let mut node = Node {
            number,
            device,
            cqs,
            inbox,
            shadow: Shadow::new(format!("main region of {name}"), REGION),
            main,
            areas,
            openings: Vec::new(),
            dead_keys: Vec::new(),
            locked,
            foreign,
            srq,
            shared: SharedLedger::new(format!("shared receive queue of {name}")),
            shared_open: BTreeMap::new(),
            counter: Counter::new(format!("counter of {name}")),
            word: AtomicWord::new(format!("word of {name}"), 0),
            last_receive: BTreeSet::new(),
            armed: false,
            pd,
        };
        for i in 0..OPENINGS {
            let opening = node.new_opening(i)?;
            node.openings.push(opening);
        }
        Ok(node)
    }

    /// A closed opening for place `i`: windows and fast-register regions by turns.
    fn new_opening(&self, i: usize) -> Result<OpeningSlot, VerbsError> {
        let (door, key) = if i.is_multiple_of(2) {
            let window = self.pd.alloc_mw(WindowType::Type2)?;
            let key = window.rkey();
            (Door::Window(window), key)
        } else {
            let fast = self.pd.alloc_fast_reg_mr(4)?;
            let key = fast.key();
            (Door::Fast(fast), key)
        };
        Ok(OpeningSlot { door, key, state: Opening::Closed, base: 0, used_by: None, users: 0, own_users: 0 })
    }

    /// Replaces the opening at `i` by a new object: the queue pair that used it is gone.
    pub fn renew_opening(&mut self, i: usize) -> Result<(), VerbsError> {
        self.dead_keys.push(self.openings[i].key);
        self.openings[i] = self.new_opening(i)?;
        Ok(())
    }

    /// Where in the main region the peer reaches a slot of an area, and by which key; `None` while that is shut.
    pub fn remote(&self, area: AreaId, slot: Slot) -> Option<Remote> {
        if area == 0 {
            return Some(self.main.remote(slot.offset));
        }
        let opening = &self.openings[area - 1];
        let inside = (slot.offset - opening_range(area).offset) as u64;
        (opening.state == Opening::Open).then_some(Remote { addr: opening.base + inside, rkey: opening.key })
    }

    /// The bytes of a slot as they are.
    pub fn bytes(&self, slot: Slot) -> Result<Vec<u8>, Violation> {
        let mut bytes = vec![0; slot.len];
        self.main
            .read_at(slot.offset, &mut bytes)
            .map_err(|e| violation!("reading the main region of node {}: {e}", self.number))?;
        Ok(bytes)
    }

    /// The program writes a slot.
    pub fn write(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), Violation> {
        self.main
            .write_at(slot.offset, bytes)
            .map_err(|e| violation!("writing the main region of node {}: {e}", self.number))?;
        self.shadow.wrote(slot.offset, bytes);
        Ok(())
    }

    /// Settles a claim against what is in memory.
    pub fn settle(&mut self, slot: Slot, outcome: Outcome) -> Result<(), Violation> {
        if slot.len == 0 {
            return Ok(());
        }
        let actual = self.bytes(slot)?;
        self.shadow.settle(slot.offset, outcome, &actual)
    }

    /// Checks every byte of the main region.
    pub fn verify_memory(&self) -> Result<(), Violation> {
        self.shadow.verify(&self.bytes(Slot { offset: 0, len: REGION })?)
    }

    /// Reads an atomic word.
    pub fn word_at(&self, offset: usize) -> Result<u64, Violation> {
        let bytes = self.bytes(Slot { offset, len: 8 })?;
        Ok(u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
    }

    /// Fetches everything from every queue, with the number of the queue. Checks that an event came to the armed one
    /// exactly when a completion came that deserves it.
    pub fn poll(&mut self, out: &mut Vec<(usize, Completion)>) -> Result<(), Violation> {
        while let Some(event) = self.device.async_events().try_next() {
            if let AsyncEvent::Qp { qpn, event: QpEvent::LastWqeReached } = event {
                self.last_receive.insert(qpn.get());
            }
        }
        let mut batch = Vec::new();
        for index in 0..QUEUES {
            batch.clear();
            if index == WAITED {
                batch.append(&mut self.inbox.borrow_mut());
            }
            let event = index == ARMED && self.cqs[index].try_event();
            self.cqs[index]
                .poll(&mut batch, usize::MAX)
                .map_err(|e| violation!("polling queue {index} of node {}: {e}", self.number))?;
            if index == ARMED {
                let deserves = batch.iter().any(|wc| wc.solicited || wc.status != WcStatus::Success);
                ensure!(
                    !self.armed || event == deserves,
                    "node {}: event {event} on the armed queue, for {batch:?}",
                    self.number
                );
                self.armed &= !event;
                if !self.armed {
                    self.cqs[index].arm(Arm::Solicited);
                    self.armed = true;
                }
            }
            out.extend(batch.iter().map(|wc| (index, *wc)));
        }
        Ok(())
    }
}

/// The part of the main region behind area `i`, which is not 0.
pub fn opening_range(i: AreaId) -> Slot {
    Slot { offset: GENERAL.end + (i - 1) * OPENING_BYTES, len: OPENING_BYTES }
}

/// A task that sleeps until a completion comes, as a program does that does not poll.
fn spawn_waiter(world: &World, host: HostId, cq: Cq, inbox: Rc<RefCell<Vec<Completion>>>) {
    drop(world.rt(host).spawn(async move {
        let mut batch = Vec::new();
        while cq.wait(&mut batch, 64).await.is_ok() {
            inbox.borrow_mut().append(&mut batch);
        }
    }));
}
