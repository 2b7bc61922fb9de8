//! The queue pairs of a device, found by number in one step.
//!
//! The low bits of a queue pair number are its slot, the others a generation that starts at random and moves on each time
//! the slot is used again: a number comes back only after all generations of its slot, and freed slots rest. With an id
//! slot (several processes on one address) the top byte is fixed and generations are fewer.

use std::collections::VecDeque;
use std::net::IpAddr;

use everywire_transport::ib::QpConfig;
use everywire_wire::Qpn;
use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

use crate::any_qp::AnyQp;

/// Freed slots that rest before one is used again, while the table may still grow.
const REUSE_DISTANCE: usize = 256;

/// Generations of a slot, and slots, that are tried for a number that is free.
const MAX_DRAWS: usize = 64;

/// Bits of a queue pair number.
const QPN_BITS: u32 = 24;

/// One queue pair and what the device keeps beside it.
pub(crate) struct QpEntry {
    pub(crate) qp: AnyQp,
    /// In the ready queue.
    pub(crate) ready: bool,
    /// Whose window it uses.
    pub(crate) peer: Option<IpAddr>,
    /// Multicast groups it is attached to.
    pub(crate) groups: u32,
}

struct Slot {
    generation: u32,
    qpn: Qpn,
    entry: Option<Box<QpEntry>>,
}

/// All queue pairs of a device.
pub(crate) struct QpTable {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    live: usize,
    max: usize,
    slot_bits: u32,
    prefix: Option<u8>,
    rng: ChaCha8Rng,
}

impl QpTable {
    /// A table of at most `max` queue pairs, whose numbers begin with the byte `prefix` if there is one.
    pub(crate) fn new(max: u32, prefix: Option<u8>, rng: ChaCha8Rng) -> QpTable {
        let slot_bits = max.max(2).next_power_of_two().trailing_zeros();
        let max = max as usize;
        QpTable { slots: Vec::new(), free: VecDeque::new(), live: 0, max, slot_bits, prefix, rng }
    }

    /// Creates a queue pair under a fresh number that is not `held` in a time-wait; `None` if the table is full.
    pub(crate) fn insert(
        &mut self,
        make: impl FnOnce(Qpn) -> AnyQp,
        held: impl Fn(Qpn) -> bool,
    ) -> Option<(u32, Qpn)> {
        for _ in 0..MAX_DRAWS {
            let slot = self.reserve()?;
            let Some(qpn) = self.next_number(slot, &held) else {
                self.free.push_back(slot);
                continue;
            };
            let entry = QpEntry { qp: make(qpn), ready: false, peer: None, groups: 0 };
            let place = &mut self.slots[slot as usize];
            place.qpn = qpn;
            place.entry = Some(Box::new(entry));
            self.live += 1;
            return Some((slot, qpn));
        }
        None
    }

    fn reserve(&mut self) -> Option<u32> {
        if self.live >= self.max {
            return None;
        }
        if self.slots.len() < self.max && self.free.len() < REUSE_DISTANCE {
            let generation = self.rng.next_u32();
            self.slots.push(Slot { generation, qpn: Qpn::default(), entry: None });
            return Some(self.slots.len() as u32 - 1);
        }
        self.free.pop_front()
    }

    fn next_number(&mut self, slot: u32, held: impl Fn(Qpn) -> bool) -> Option<Qpn> {
        let place = &mut self.slots[slot as usize];
        for _ in 0..MAX_DRAWS {
            place.generation = place.generation.wrapping_add(1);
            let number = (place.generation << self.slot_bits) | slot;
            let qpn = match self.prefix {
                Some(prefix) => Qpn::new((u32::from(prefix) << 16) | (number & 0xffff)),
                None => Qpn::new(number % (1 << QPN_BITS)),
            };
            // QP0, QP1 and the multicast number are not for anyone. A fixed zero prefix leaves other generations to
            // slots 0 and 1 as long as there are generations at all, which MAX_QPS_WITH_PREFIX sees to.
            if qpn.get() > 1 && qpn != Qpn::MULTICAST && !held(qpn) {
                return Some(qpn);
            }
        }
        None
    }

    /// The slot of a number that is in use.
    #[inline]
    pub(crate) fn slot(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.get() & ((1 << self.slot_bits) - 1);
        let place = self.slots.get(slot as usize)?;
        if place.qpn == qpn && place.entry.is_some() { Some(slot) } else { None }
    }

    /// What is in a slot.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut QpEntry> {
        self.slots.get_mut(slot as usize)?.entry.as_deref_mut()
    }

    /// A queue pair by number.
    #[inline]
    pub(crate) fn get(&mut self, qpn: Qpn) -> Option<&mut QpEntry> {
        let slot = self.slot(qpn)?;
        self.at(slot)
    }

    /// Takes a queue pair out.
    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Box<QpEntry>> {
        let slot = self.slot(qpn)?;
        let entry = self.slots[slot as usize].entry.take();
        self.free.push_back(slot);
        self.live -= 1;
        entry
    }

    /// Slots whose queue pair uses what `uses` looks for.
    pub(crate) fn slots_where(&self, uses: impl Fn(&QpConfig) -> bool) -> Vec<u32> {
        let slots = self.slots.iter().enumerate();
        let found =
            slots.filter(|(_, slot)| slot.entry.as_ref().is_some_and(|entry| uses(entry.qp.config())));
        found.map(|(index, _)| index as u32).collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.live
    }
}

/// The most queue pairs where the top byte of their numbers is fixed: 16 bits are left, two of them for generations.
pub(crate) const MAX_QPS_WITH_PREFIX: u32 = 1 << 14;
