//! The initiator's datamover on RDMA: commands with their data in registered memory, opened to the target one by one.
//!
//! Read RFC 7145 §7.3.1, §7.3.2 and §9.3. A command's data lies in its caller's memory, if that is registered, or in a buffer of
//! a pool; a fast registration under a new key opens just that, to be written or to be read, and is closed again before anybody
//! learns of the command's end: by the target's SEND with Invalidate, whose key must be this command's, or here. What a command
//! sends unasked is not opened (TaggedBufferForSolicitedDataOnly, §6.8).

use std::rc::Rc;
use std::time::Instant;

use everywire_verbs::ids::IdMap;
use everywire_verbs::rt::Notify;
use everywire_verbs::{
    Access, FastRegMr, FastRegister, LKey, MemoryRegion, RKey, SendOp, SendWr, VerbsError, next_key,
};
use smallvec::{SmallVec, smallvec};

use super::link::{Link, message};
use super::place::{MAX_BUFFER, Memory, Place};
use super::{ControlHeader, HEADER_LEN, Header, Tagged};
use crate::initiator::Transfer;
use crate::keys::Params;
use crate::pdu::{self, BHS_LEN, DataOut, FINAL, NO_TAG, Pdu};
use crate::session::initiator::{Failure, Session, Status};
use crate::session::scsi::Residual;

/// Commands that are with the target at once.
pub(super) const MAX_COMMANDS: u32 = 128;
/// Bytes of a command's header: iSER's, the PDU's, and as much of additional segments as the longest CDB needs.
const HEAD: usize = (HEADER_LEN + BHS_LEN + 256).next_multiple_of(64);

/// What has become complete on an initiator's connection.
pub(super) enum Done {
    /// A message that needs no more.
    Sent,
    /// A command has left this slot.
    Command(u16),
    /// This slot's memory is closed.
    Closed(u16),
}

/// A command's end, to be told.
pub(super) struct Ended {
    pub(super) itt: u32,
    pub(super) result: Result<Status, Failure>,
    /// Bytes that came.
    pub(super) came: usize,
    /// They, unless they lie in the caller's memory.
    pub(super) data: Vec<u8>,
}

#[derive(Default)]
struct Slot {
    itt: u32,
    want: usize,
    place: Place,
    /// The key by which the target reaches the buffer.
    key: Option<RKey>,
    /// The SEND is acknowledged.
    sent: bool,
    /// The end, until it can be told.
    ended: Option<Result<Status, Failure>>,
    told: bool,
}

/// By which the target reaches a command's data.
struct Door {
    /// Keeps its place among the device's keys.
    _region: FastRegMr,
    /// The key that the last registration gave it.
    key: RKey,
}

/// Commands of one connection.
pub(super) struct Commands {
    memory: Rc<Memory>,
    heads: MemoryRegion,
    doors: Vec<Door>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    by_tag: IdMap<u32, u16>,
    /// Data of commands that have no slot yet.
    data: IdMap<u32, Transfer>,
}

impl Commands {
    pub(super) fn new(memory: Rc<Memory>) -> Result<Commands, VerbsError> {
        let door = |_| {
            let region = memory.pd().alloc_fast_reg_mr(1)?;
            Ok(Door { key: region.key(), _region: region })
        };
        let doors = (0..MAX_COMMANDS).map(door).collect::<Result<Vec<Door>, VerbsError>>()?;
        Ok(Commands {
            heads: memory.pd().register(HEAD * MAX_COMMANDS as usize, Access::empty())?,
            memory,
            doors,
            slots: (0..MAX_COMMANDS).map(|_| Slot::default()).collect(),
            free: (0..MAX_COMMANDS as u16).rev().collect(),
            by_tag: IdMap::default(),
            data: IdMap::default(),
        })
    }

    /// A command that will start: its data.
    pub(super) fn add(&mut self, itt: u32, data: Transfer) {
        self.data.insert(itt, data);
    }

    /// Starts commands that there are slots and buffers for, in order; one that no buffer holds is refused.
    pub(super) fn pump(
        &mut self,
        session: &mut Session,
        now: Instant,
        link: &mut Link<Done>,
        poke: &Notify,
    ) -> Result<(), String> {
        while let (Some(itt), Some(&slot)) = (session.startable(), self.free.last()) {
            let data = self.data.remove(&itt).unwrap_or(Transfer::None);
            let (out, want) = (data.data_out(), data.data_in());
            let len = out.max(want);
            if len > MAX_BUFFER {
                session.refuse(itt, Failure::TooLong { len, most: MAX_BUFFER });
                continue;
            }
            let place = match self.memory.place(data, len) {
                Ok(place) => place,
                Err(data) => {
                    self.data.insert(itt, data);
                    self.memory.wait(poke);
                    return Ok(());
                }
            };
            let Some((itt, pdu)) = session.start(now) else { return Ok(()) };
            self.free.pop();
            self.by_tag.insert(itt, slot);
            self.slots[usize::from(slot)] = Slot { itt, want, place, ..Slot::default() };
            self.send(session, link, slot, pdu, out)?;
        }
        Ok(())
    }

    /// Sends the command of a slot, with the data that may go unasked (RFC 7143 §13.10, §13.11); `out` bytes go in all.
    fn send(
        &mut self,
        session: &Session,
        link: &mut Link<Done>,
        slot: u16,
        mut pdu: Pdu,
        out: usize,
    ) -> Result<(), String> {
        let (immediate, unsolicited) = unasked(session.params(), out);
        if unsolicited > immediate
            && let pdu::Header::ScsiCommand(header) = &mut pdu.header
        {
            header.flags &= !FINAL;
        }
        let door = self.open(slot, out, unsolicited);
        let tag = door.as_ref().map(|(tag, _)| *tag);
        let (write, read) = if out == 0 { (None, tag) } else { (tag, None) };
        let mut head =
            SmallVec::<[u8; 96]>::from_slice(&Header::Control(ControlHeader { write, read }).emit());
        head.extend_from_slice(&pdu.bhs_before(immediate));
        head.extend_from_slice(&pdu.ahs);
        let at = usize::from(slot) * HEAD;
        self.heads.write_at(at, &head).map_err(|e| e.to_string())?;
        let mut wr = SendWr::new(0, SendOp::Send).with_sge(self.heads.sge(at..at + head.len()));
        wr.solicited = true;
        if immediate > 0
            && let Some((region, at)) = self.slots[usize::from(slot)].place.region(self.memory.pd())
        {
            // The head goes from its own memory, the data from where it lies.
            wr = wr.with_sge(region.sge(at..at + immediate));
        }
        match door {
            Some((_, open)) => link.push([open, wr], Done::Command(slot)),
            None => link.push([wr], Done::Command(slot)),
        }
        self.data_out(session, link, slot, immediate, unsolicited)
    }

    /// Opens what the target is to reach of a slot's data.
    fn open(&mut self, slot: u16, out: usize, unsolicited: usize) -> Option<(Tagged, SendWr)> {
        let s = &mut self.slots[usize::from(slot)];
        let (region, at) = s.place.region(self.memory.pd())?;
        let (from, to, access) = match out {
            0 => (0, s.want, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            len => (unsolicited, len, Access::REMOTE_READ),
        };
        if from == to {
            return None;
        }
        let base = region.remote(at + from).addr;
        let door = &mut self.doors[usize::from(slot)];
        let (old, key) = (door.key, next_key(door.key));
        let registration = FastRegister {
            mr: LKey(old.0),
            new_key: key,
            iova: base,
            length: (to - from) as u64,
            access,
            pages: smallvec![region.sge(at + from..at + to)],
        };
        door.key = key;
        s.key = Some(key);
        Some((Tagged { stag: key.0, base }, SendWr::new(0, SendOp::FastReg(registration))))
    }

    /// Data-Out PDUs that nobody has to ask for (InitialR2T=No).
    fn data_out(
        &self,
        session: &Session,
        link: &mut Link<Done>,
        slot: u16,
        from: usize,
        to: usize,
    ) -> Result<(), String> {
        let Slot { itt, place, .. } = &self.slots[usize::from(slot)];
        let (mut at, mut data_sn) = (from, 0);
        while at < to {
            let end = to.min(at + session.params().max_send);
            let header = DataOut {
                flags: if end == to { FINAL } else { 0 },
                lun: 0,
                itt: *itt,
                ttt: NO_TAG,
                exp_stat_sn: session.exp_stat_sn(),
                data_sn,
                offset: at as u32,
            };
            let pdu = Pdu::with_data(header, place.read(self.memory.pd(), at, end - at));
            let bytes = message(&Header::Control(ControlHeader::default()), Some(&pdu));
            link.send(None, SendOp::Send, bytes, Done::Sent)?;
            (at, data_sn) = (end, data_sn + 1);
        }
        Ok(())
    }

    /// A message came that answers `itt`, if anything, and invalidated `key`, if anything.
    ///
    /// # Errors
    /// The key is none that was given to the target for that command.
    pub(super) fn invalidated(&mut self, itt: Option<u32>, key: Option<RKey>) -> Result<(), String> {
        let Some(key) = key else { return Ok(()) };
        let slot = itt.and_then(|itt| self.by_tag.get(&itt));
        let slot = slot.map(|&slot| &mut self.slots[usize::from(slot)]).filter(|slot| slot.key == Some(key));
        match slot {
            Some(slot) => {
                slot.key = None;
                Ok(())
            }
            None => Err(format!(
                "the target invalidated key {:#x}, which is not of the command it answers (RFC 7145 §7.3.2)",
                key.0
            )),
        }
    }

    /// A command ended: told at once if its memory is closed, else when it is.
    pub(super) fn ended(
        &mut self,
        link: &mut Link<Done>,
        itt: u32,
        result: Result<Status, Failure>,
    ) -> Option<Ended> {
        let Some(&slot) = self.by_tag.get(&itt) else {
            self.data.remove(&itt);
            return Some(Ended { itt, result, came: 0, data: Vec::new() });
        };
        let s = &mut self.slots[usize::from(slot)];
        s.ended = Some(result);
        match s.key {
            Some(key) => {
                link.push([SendWr::new(0, SendOp::LocalInv(key))], Done::Closed(slot));
                None
            }
            None => self.tell(slot),
        }
    }

    /// Work is complete.
    pub(super) fn done(&mut self, done: Done) -> Option<Ended> {
        match done {
            Done::Sent => None,
            Done::Command(slot) => {
                self.slots[usize::from(slot)].sent = true;
                self.reuse(slot);
                None
            }
            Done::Closed(slot) => {
                self.slots[usize::from(slot)].key = None;
                self.tell(slot)
            }
        }
    }

    /// The end of a slot's command. What came is what was wanted, less what the target says is missing.
    fn tell(&mut self, slot: u16) -> Option<Ended> {
        let s = &mut self.slots[usize::from(slot)];
        let result = s.ended.take()?;
        let came = match &result {
            Ok(Status { status: 0, residual: Residual::Under(missing), .. }) => {
                s.want.saturating_sub(*missing as usize)
            }
            Ok(Status { status: 0, .. }) => s.want,
            _ => 0,
        };
        let data = match &s.place {
            Place::Pooled(_) => s.place.read(self.memory.pd(), 0, came),
            // It lies where it is wanted.
            Place::Lent(_) | Place::Nowhere => Vec::new(),
        };
        s.told = true;
        let itt = s.itt;
        self.by_tag.remove(&itt);
        self.reuse(slot);
        Some(Ended { itt, result, came, data })
    }

    /// A slot is free again when its command is told of, and nothing of it will be sent again.
    fn reuse(&mut self, slot: u16) {
        let s = &mut self.slots[usize::from(slot)];
        if s.told && s.sent {
            *s = Slot::default();
            self.free.push(slot);
        }
    }
}

/// How much of a command's data goes with it, and how much before it is asked for.
fn unasked(params: &Params, len: usize) -> (usize, usize) {
    let first = len.min(params.first_burst as usize);
    let immediate = if params.immediate_data { first.min(params.max_send) } else { 0 };
    (immediate, if params.initial_r2t { immediate } else { first })
}
