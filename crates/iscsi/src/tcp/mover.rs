//! The target's datamover on a byte stream: R2Ts and the Data-Out they bring, Data-In and the status that may ride in it.
//!
//! Read RFC 7143 §4.2.5.2, §11.7 and §11.8. DataPDUInOrder and DataSequenceInOrder are Yes, so that every Data-Out PDU has one
//! place; a PDU in another ends its task. Data-Out is copied once, into the command's memory; Data-In not at all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use everywire_block::{IoBuf, IoMemory};

use super::Outbox;
use crate::pdu::{DataIn, DataOut, FINAL, NO_TAG, Pdu, R2t};
use crate::session::Numbers;
use crate::session::target::{Response, Session, TaskId};

/// A command's memory.
#[derive(Debug)]
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn with<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl IoMemory for Memory {
    fn load(&self, at: usize, into: &mut [u8]) {
        self.with(|bytes| into.copy_from_slice(&bytes[at..at + into.len()]));
    }

    fn store(&self, at: usize, from: &[u8]) {
        self.with(|bytes| bytes[at..at + from.len()].copy_from_slice(from));
    }
}

/// What a command still has to fetch.
struct Fetch {
    lun: u64,
    /// Start of what no R2T has asked for.
    next: usize,
    end: usize,
    outstanding: usize,
}

struct Moving {
    memory: Arc<Memory>,
    fetch: Option<Fetch>,
    /// R2Ts sent: with Data-In PDUs what ExpDataSN counts.
    r2ts: u32,
}

/// One R2T that is being answered.
struct Burst {
    task: TaskId,
    at: usize,
    end: usize,
    data_sn: u32,
}

/// Transfers of one connection.
#[derive(Default)]
pub(super) struct Mover {
    tasks: HashMap<TaskId, Moving>,
    bursts: HashMap<u32, Burst>,
    last_ttt: u32,
}

impl Mover {
    /// Memory for a command.
    pub(super) fn allocate(&mut self, task: TaskId, len: usize) -> IoBuf {
        let memory = Arc::new(Memory(Mutex::new(vec![0; len])));
        self.tasks.insert(task, Moving { memory: memory.clone(), fetch: None, r2ts: 0 });
        IoBuf::new(memory, 0, len)
    }

    /// Nothing of this task is wanted any more; Data-Out under way for it is dropped when it comes.
    pub(super) fn release(&mut self, task: TaskId) {
        self.tasks.remove(&task);
        self.bursts.retain(|_, burst| burst.task != task);
    }

    /// Nothing of this task is wanted any more, but the session waits for the Data-Out that was asked for.
    pub(super) fn drain(&mut self, session: &mut Session, task: TaskId) {
        self.tasks.remove(&task);
        self.fetched_if_drained(session, task);
    }

    fn fetched_if_drained(&mut self, session: &mut Session, task: TaskId) {
        if self.bursts.values().all(|burst| burst.task != task) {
            session.fetched(task);
        }
    }

    /// Asks for bytes `from..to`.
    pub(super) fn get_data(
        &mut self,
        session: &Session,
        task: TaskId,
        lun: u64,
        from: usize,
        to: usize,
        out: &mut Outbox,
    ) {
        let Some(moving) = self.tasks.get_mut(&task) else { return };
        moving.fetch = Some(Fetch { lun, next: from, end: to, outstanding: 0 });
        self.ask(session, task, out);
    }

    /// Sends as many R2Ts as may be outstanding (RFC 7143 §13.17).
    fn ask(&mut self, session: &Session, task: TaskId, out: &mut Outbox) {
        let params = session.params();
        let Some(moving) = self.tasks.get_mut(&task) else { return };
        let Some(fetch) = &mut moving.fetch else { return };
        while fetch.next < fetch.end && fetch.outstanding < usize::from(params.max_r2t) {
            let length = (fetch.end - fetch.next).min(params.max_burst as usize);
            let ttt = loop {
                self.last_ttt = self.last_ttt.wrapping_add(1);
                if self.last_ttt != NO_TAG && !self.bursts.contains_key(&self.last_ttt) {
                    break self.last_ttt;
                }
            };
            let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = session.numbers();
            out.push(&Pdu::new(R2t {
                flags: FINAL,
                lun: fetch.lun,
                itt: task.itt,
                ttt,
                stat_sn,
                exp_cmd_sn,
                max_cmd_sn,
                r2t_sn: moving.r2ts,
                offset: fetch.next as u32,
                length: length as u32,
            }));
            let end = fetch.next + length;
            self.bursts.insert(ttt, Burst { task, at: fetch.next, end, data_sn: 0 });
            moving.r2ts += 1;
            fetch.outstanding += 1;
            fetch.next = end;
        }
    }

    /// Data that an R2T asked for.
    pub(super) fn data_out(
        &mut self,
        session: &mut Session,
        header: &DataOut,
        data: &[u8],
        out: &mut Outbox,
    ) {
        let Some(burst) = self.bursts.get_mut(&header.ttt) else {
            tracing::debug!("Data-Out of TTT {:#x}, which has ended, is dropped", header.ttt);
            return;
        };
        let task = burst.task;
        let end = burst.at + data.len();
        let last = header.flags & FINAL != 0;
        if !self.tasks.contains_key(&task) {
            // It was aborted. The initiator may end the sequence early (RFC 7143 §11.5.1).
            if last {
                self.bursts.remove(&header.ttt);
                self.fetched_if_drained(session, task);
            }
            return;
        }
        let in_place =
            header.itt == task.itt && header.data_sn == burst.data_sn && header.offset as usize == burst.at;
        if !in_place || end > burst.end || last != (end == burst.end) {
            self.release(task);
            return session.transfer_failed(task);
        }
        let Some(moving) = self.tasks.get_mut(&task) else { return };
        moving.memory.store(burst.at, data);
        (burst.at, burst.data_sn) = (end, burst.data_sn + 1);
        if !last {
            return;
        }
        self.bursts.remove(&header.ttt);
        let Some(fetch) = &mut moving.fetch else { return };
        fetch.outstanding -= 1;
        if fetch.outstanding == 0 && fetch.next == fetch.end {
            moving.fetch = None;
            session.fetched(task);
        } else {
            self.ask(session, task, out);
        }
    }

    /// Sends a command's data and status. GOOD rides in the last Data-In PDU (RFC 7143 §11.7.3).
    pub(super) fn respond(&mut self, session: &mut Session, response: &Response, out: &mut Outbox) {
        let moving = self.tasks.remove(&response.task);
        self.bursts.retain(|_, burst| burst.task != response.task);
        let mut exp_data_sn = moving.as_ref().map_or(0, |moving| moving.r2ts);
        if response.data_in > 0
            && let Some(moving) = moving
        {
            let mut bytes = moving.memory.with(std::mem::take);
            bytes.truncate(response.data_in);
            let collapse = response.status == 0 && response.sense.is_empty();
            exp_data_sn += Self::data_in(session, response, &bytes.into(), collapse, out);
            if collapse {
                return;
            }
        }
        out.push(&session.scsi_response(response, exp_data_sn));
    }

    /// Cuts data into PDUs of what the initiator takes, in sequences of MaxBurstLength; how many they were.
    fn data_in(
        session: &mut Session,
        response: &Response,
        data: &Bytes,
        collapse: bool,
        out: &mut Outbox,
    ) -> u32 {
        let (segment, burst) = (session.params().max_send, session.params().max_burst as usize);
        let (mut at, mut data_sn) = (0, 0);
        while at < data.len() {
            let sequence_end = (at / burst + 1) * burst;
            let end = (at + segment).min(sequence_end).min(data.len());
            let last = end == data.len();
            let mut header = DataIn {
                flags: if last || end == sequence_end { FINAL } else { 0 },
                itt: response.task.itt,
                ttt: NO_TAG,
                data_sn,
                offset: at as u32,
                ..DataIn::default()
            };
            let numbers = if last && collapse {
                let (bits, residual) = response.residual_bits();
                header.flags |= DataIn::STATUS | bits;
                (header.status, header.residual) = (response.status, residual);
                session.status_numbers()
            } else {
                // StatSN has no meaning here (RFC 7143 §11.7.3).
                Numbers { stat_sn: 0, ..session.numbers() }
            };
            (header.stat_sn, header.exp_cmd_sn, header.max_cmd_sn) =
                (numbers.stat_sn, numbers.exp_cmd_sn, numbers.max_cmd_sn);
            out.push(&Pdu::with_data(header, data.slice(at..end)));
            (at, data_sn) = (end, data_sn + 1);
        }
        data_sn
    }
}
