//! Moving a command's data: READs of data-out and of tables, WRITEs of data-in, as the send queue has room. SRP r16a §5.6.
//!
//! One entry is always left for a response. READs and WRITEs are posted a part at a time; the last of a part is signalled, and
//! completes after all before it.

use std::rc::Rc;

use everywire_verbs::{RKey, Remote, SendOp, SendWr};

use super::channel::{Channel, State, TAG_DATA};
use super::slot::Phase;
use crate::iu::{Buffer, Descriptor, parse_table};
use crate::target::channel::{buffer_of, check_lengths};

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

impl Channel {
    /// Reads the table of an indirect buffer; false while there is no room.
    pub(super) fn fetch_table(self: &Rc<Self>, slot: u32) -> bool {
        let table = self.with(slot, |s| match s.command.as_deref().map(buffer_of) {
            Some(Buffer::Indirect(indirect)) => Some(indirect.table),
            _ => None,
        });
        let Some(table) = table else { return true };
        if !self.have_buffer(slot, table.len as usize) {
            return false;
        }
        let state = &mut *self.state.borrow_mut();
        let s = &mut state.slots[slot as usize];
        let Some(data) = &s.data else { return false };
        if state.room <= 1 {
            return false;
        }
        let remote = Remote { addr: table.addr, rkey: RKey(table.key) };
        let wr = SendWr::new(TAG_DATA | u64::from(slot), SendOp::Read { remote });
        state.sends.push(wr.with_sges([data.sge(0, table.len)]));
        state.room -= 1;
        (s.entries, s.phase) = (1, Phase::FetchingTable);
        true
    }

    /// The table is there.
    fn table_came(self: &Rc<Self>, slot: u32) {
        let parsed = self.with(slot, |s| {
            let (Some(data), Some(Buffer::Indirect(indirect))) =
                (s.data.take(), s.command.as_deref().map(buffer_of))
            else {
                return None;
            };
            let mut bytes = vec![0; indirect.table.len as usize];
            self.parts.context.io(&data, bytes.len()).load(0, &mut bytes);
            let len = indirect.len;
            Some(
                parse_table(&bytes)
                    .map_err(Into::into)
                    .and_then(|all| check_lengths(&all, len).map(|()| all)),
            )
        });
        match parsed {
            Some(Ok(segments)) => {
                self.with(slot, |s| s.segments = segments);
                self.submit(slot);
            }
            Some(Err(fault)) => self.refuse(slot, &fault),
            None => {}
        }
    }

    /// Takes a buffer of the pool, if the slot has none; false while there is none.
    fn have_buffer(self: &Rc<Self>, slot: u32, len: usize) -> bool {
        if self.with(slot, |s| s.data.is_some()) {
            return true;
        }
        let pool = &self.parts.context.pool;
        let buffer = pool.take(len).map(Rc::new);
        if buffer.is_none() {
            pool.wait(&self.poke);
        }
        let taken = buffer.is_some();
        self.with(slot, |s| s.data = buffer);
        taken
    }

    /// Takes the buffer for the data, and goes on to read or to run; false while there is none.
    pub(super) fn take_buffer(self: &Rc<Self>, slot: u32) -> bool {
        let Some((out, into)) = self.with(slot, |s| s.task.as_ref().map(|t| (t.data_out(), t.data_in())))
        else {
            return true;
        };
        let len = out.max(into) as usize;
        if !self.have_buffer(slot, len) {
            return false;
        }
        self.with(slot, |s| {
            s.memory = s.data.as_ref().map(|data| self.parts.context.io(data, len));
            (s.segment, s.moved, s.phase) = (0, 0, Phase::NeedsRead);
        });
        if out == 0 {
            self.run(slot);
            return true;
        }
        self.read_some(slot)
    }

    /// Posts READs for as much of the data as there is room for; false if there is none.
    pub(super) fn read_some(self: &Rc<Self>, slot: u32) -> bool {
        let Some(out) = self.with(slot, |s| s.task.as_ref().map(|task| task.data_out())) else { return true };
        let posted = post_some(&mut self.state.borrow_mut(), slot, Way::Read, out);
        if posted {
            self.with(slot, |s| s.phase = Phase::Reading);
        }
        posted
    }

    /// Posts WRITEs for as much of the data as there is room for, and the response behind the last; false if there is none.
    pub(super) fn write_some(self: &Rc<Self>, slot: u32) -> bool {
        let len = self.with(slot, |s| s.outcome.as_ref().map_or(0, |outcome| outcome.data_in));
        if !post_some(&mut self.state.borrow_mut(), slot, Way::Write, len) {
            return false;
        }
        let whole = self.with(slot, |s| s.moved >= len || s.segment >= s.segments.len());
        if !whole {
            self.with(slot, |s| s.phase = Phase::Writing);
            return true;
        }
        // The room that was left is the response's, whose completion stands for the WRITEs before it.
        if let Some(last) = self.state.borrow_mut().sends.last_mut() {
            last.signaled = false;
        }
        self.with(slot, |s| s.phase = Phase::NeedsResponse);
        self.respond(slot)
    }

    /// What was posted last is done.
    pub(super) fn data_moved(self: &Rc<Self>, slot: u32) {
        let (phase, aborted, whole) = {
            let state = &mut *self.state.borrow_mut();
            let Some(s) = state.slots.get_mut(slot as usize) else { return };
            state.room += std::mem::take(&mut s.entries);
            let out = s.task.as_ref().map_or(0, |task| task.data_out());
            (s.phase, s.aborted, s.moved >= out || s.segment >= s.segments.len())
        };
        match phase {
            Phase::FetchingTable | Phase::Reading if aborted => self.finished(slot, None),
            Phase::FetchingTable => self.table_came(slot),
            Phase::Reading if whole => self.run(slot),
            Phase::Reading => {
                self.with(slot, |s| s.phase = Phase::NeedsRead);
                self.go_on(slot);
            }
            Phase::Writing => {
                self.with(slot, |s| s.phase = Phase::NeedsWrite);
                self.go_on(slot);
            }
            _ => {}
        }
    }
}

/// Posts what there is room for of the first `len` bytes of a slot's data, one entry being left for a response.
fn post_some(state: &mut State, slot: u32, way: Way, len: u32) -> bool {
    let s = &mut state.slots[slot as usize];
    let Some(data) = &s.data else { return false };
    let mut count = 0;
    while count + 1 < state.room
        && s.moved < len
        && let Some(Descriptor { addr, key, len: segment }) = s.segments.get(s.segment).copied()
    {
        s.segment += 1;
        let piece = segment.min(len - s.moved);
        if piece == 0 {
            continue;
        }
        let remote = Remote { addr, rkey: RKey(key) };
        let op = if way == Way::Read { SendOp::Read { remote } } else { SendOp::Write { remote } };
        let wr = SendWr::new(TAG_DATA | u64::from(slot), op).with_sges([data.sge(s.moved as usize, piece)]);
        state.sends.push(wr.unsignaled());
        s.moved += piece;
        count += 1;
    }
    if count == 0 {
        return false;
    }
    if let Some(last) = state.sends.last_mut() {
        last.signaled = true;
    }
    s.entries = count;
    state.room -= count;
    true
}
