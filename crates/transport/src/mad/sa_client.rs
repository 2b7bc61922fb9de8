//! Asking the subnet administrator: paths, and membership in multicast groups.
//!
//! Read first: IBTA volume 1 §15.2 (the administrator's records) and §15.4. Every request is a MAD to the administrator's
//! QP1, answered by one MAD or, for a table, by RMPP. A request is repeated while nothing comes, with more and more patience,
//! and again later when the administrator is busy. Paths are remembered until the port's circumstances change. Who sends the
//! MADs, and to which LID, is the device's affair.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use everywire_wire::mad::{Mad, method, status};
use everywire_wire::sa::{self, McMemberRecord, PathRecord, Record, SaMad, join_state};
use everywire_wire::{Gid, PKey, QKey};

use super::rmpp::{Receiver, Step};

/// Requests that may be open at once.
pub const MAX_OPEN: usize = 4096;
/// Paths that are remembered.
pub const MAX_CACHED: usize = 4096;
/// How long a path is believed.
const CACHED_FOR: Duration = Duration::from_secs(60);
/// How long the first request waits for its answer; each repetition waits twice as long as the one before.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Transmissions of a request, the first included.
const MAX_TRIES: u32 = 6;
/// Bytes of a table that is asked for.
const MAX_TABLE: usize = 1 << 20;
/// One path is enough.
const ONE_PATH: u8 = 1;

/// Names a request of the caller's.
pub type Token = u64;

/// What to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// A path between two ports, in a partition.
    Path {
        /// From.
        sgid: Gid,
        /// To.
        dgid: Gid,
        /// Partition.
        pkey: PKey,
    },
    /// Paths between two ports in a partition: several where they have several LIDs.
    Paths {
        /// From.
        sgid: Gid,
        /// To.
        dgid: Gid,
        /// Partition.
        pkey: PKey,
        /// The most that are wanted, at most 127 (IBTA §15.2.5.16: seven bits).
        most: u8,
    },
    /// Membership in a group, which is made if it is not there.
    Join {
        /// The group.
        mgid: Gid,
        /// The member.
        port_gid: Gid,
        /// Partition of the group.
        pkey: PKey,
        /// Q_Key, if the group has to be made.
        qkey: QKey,
        /// Bits of [`join_state`].
        join: u8,
    },
    /// The end of a membership.
    Leave {
        /// The group.
        mgid: Gid,
        /// The member.
        port_gid: Gid,
        /// Bits of [`join_state`].
        join: u8,
    },
}

/// What the administrator says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A path.
    Path(PathRecord),
    /// Paths.
    Paths(Vec<PathRecord>),
    /// The group, as the member has joined or left it.
    Member(McMemberRecord),
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SaError {
    /// Nothing came.
    #[error("the subnet administrator did not answer {MAX_TRIES} requests")]
    NoAnswer,
    /// A status other than success (IBTA §13.4.7, §15.2.3.1).
    #[error("the subnet administrator refused with status {0:#06x}")]
    Status(u16),
    /// An answer that makes no sense, or is too long.
    #[error("the subnet administrator's answer is malformed")]
    Malformed,
    /// Too many requests are open.
    #[error("{MAX_OPEN} requests to the subnet administrator are open")]
    TooMany,
}

/// A request that has no answer yet.
#[derive(Debug)]
struct Open {
    token: Token,
    ask: Ask,
    tries: u32,
    due: Option<Instant>,
    transfer: Option<Receiver>,
}

/// The client of one port.
#[derive(Debug)]
pub struct SaClient {
    /// Upper half of every transaction id.
    tid_high: u32,
    last: u32,
    open: BTreeMap<u64, Open>,
    timers: BTreeSet<(Instant, u64)>,
    /// Requests to be sent, and answers to segments.
    to_send: VecDeque<u64>,
    acks: VecDeque<Box<Mad>>,
    answers: VecDeque<(Token, Result<Answer, SaError>)>,
    paths: HashMap<(Gid, Gid, u16), (PathRecord, Instant)>,
}

impl SaClient {
    /// A client whose transaction ids begin with `tid_high`.
    pub fn new(tid_high: u32) -> SaClient {
        SaClient {
            tid_high,
            last: 0,
            open: BTreeMap::new(),
            timers: BTreeSet::new(),
            to_send: VecDeque::new(),
            acks: VecDeque::new(),
            answers: VecDeque::new(),
            paths: HashMap::new(),
        }
    }

    /// Asks; the answer comes out of [`SaClient::poll_answer`] under the same token, at once for a path that is known.
    pub fn ask(&mut self, now: Option<Instant>, token: Token, ask: Ask) {
        if let Some(known) = now.and_then(|now| self.known(now, &ask)) {
            return self.answers.push_back((token, Ok(Answer::Path(known))));
        }
        if self.open.len() >= MAX_OPEN {
            return self.answers.push_back((token, Err(SaError::TooMany)));
        }
        self.last = self.last.wrapping_add(1);
        let tid = u64::from(self.tid_high) << 32 | u64::from(self.last);
        self.open.insert(tid, Open { token, ask, tries: 0, due: None, transfer: None });
        self.to_send.push_back(tid);
    }

    fn known(&self, now: Instant, ask: &Ask) -> Option<PathRecord> {
        let Ask::Path { sgid, dgid, pkey } = *ask else { return None };
        let (path, at) = self.paths.get(&(sgid, dgid, pkey.base()))?;
        (now.saturating_duration_since(*at) < CACHED_FOR).then_some(*path)
    }

    /// Nobody waits for the answer any more.
    pub fn withdraw(&mut self, token: Token) {
        let tids: Vec<u64> =
            self.open.iter().filter(|(_, open)| open.token == token).map(|(t, _)| *t).collect();
        for tid in tids {
            self.close(tid);
        }
        self.answers.retain(|(of, _)| *of != token);
    }

    /// LIDs or the administrator have changed: what was known of paths is not any more, and what is open is asked anew.
    pub fn circumstances_changed(&mut self) {
        self.paths.clear();
        self.timers.clear();
        self.to_send.clear();
        for (tid, open) in &mut self.open {
            (open.tries, open.due, open.transfer) = (0, None, None);
            self.to_send.push_back(*tid);
        }
    }

    fn close(&mut self, tid: u64) -> Option<Open> {
        let open = self.open.remove(&tid)?;
        if let Some(due) = open.due {
            self.timers.remove(&(due, tid));
        }
        self.to_send.retain(|waiting| *waiting != tid);
        Some(open)
    }

    fn finish(&mut self, tid: u64, answer: Result<Answer, SaError>) {
        if let Some(open) = self.close(tid) {
            self.answers.push_back((open.token, answer));
        }
    }

    /// The next MAD to the administrator.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Box<Mad>> {
        if let Some(ack) = self.acks.pop_front() {
            return Some(ack);
        }
        let tid = self.to_send.pop_front()?;
        let open = self.open.get_mut(&tid)?;
        let due = now + FIRST_WAIT * 2u32.pow(open.tries.min(MAX_TRIES));
        open.tries += 1;
        open.due = Some(due);
        self.timers.insert((due, tid));
        Some(Box::new(request(&open.ask, tid).to_mad()))
    }

    /// The next answer.
    pub fn poll_answer(&mut self) -> Option<(Token, Result<Answer, SaError>)> {
        self.answers.pop_front()
    }

    /// When [`SaClient::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Time has passed: what has no answer is asked again, or given up.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, tid)) = self.timers.first()
            && at <= now
        {
            self.timers.remove(&(at, tid));
            let Some(open) = self.open.get_mut(&tid) else { continue };
            open.due = None;
            open.transfer = None;
            if open.tries >= MAX_TRIES {
                self.finish(tid, Err(SaError::NoAnswer));
            } else {
                self.to_send.push_back(tid);
            }
        }
    }

    /// A MAD of the administrator's class has arrived from it.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) {
        let Ok(answer) = SaMad::from_mad(mad) else { return };
        let tid = answer.header.transaction_id;
        let Some(open) = self.open.get_mut(&tid) else { return };
        let asked = request(&open.ask, tid).header;
        let expected = match asked.method {
            method::SET => method::GET_RESP,
            other => other | method::RESPONSE_BIT,
        };
        if answer.header.method != expected || answer.header.attribute_id != asked.attribute_id {
            return;
        }
        match answer.header.status {
            0 => {}
            // The timer asks again (IBTA §13.4.7).
            status::BUSY => return,
            other => return self.finish(tid, Err(SaError::Status(other))),
        }
        if let Ask::Paths { .. } = open.ask {
            return self.table(tid, mad, answer.attribute_offset);
        }
        let found = match open.ask {
            Ask::Path { .. } | Ask::Paths { .. } => PathRecord::parse(&answer.data).map(Answer::Path),
            Ask::Join { .. } | Ask::Leave { .. } => McMemberRecord::parse(&answer.data).map(Answer::Member),
        };
        if let (Ask::Path { sgid, dgid, pkey }, Ok(Answer::Path(path))) = (open.ask, &found)
            && self.paths.len() < MAX_CACHED
        {
            self.paths.insert((sgid, dgid, pkey.base()), (*path, now));
        }
        self.finish(tid, found.map_err(|_| SaError::Malformed));
    }

    /// A segment of a table.
    fn table(&mut self, tid: u64, mad: &Mad, attribute_offset: u16) {
        let Some(open) = self.open.get_mut(&tid) else { return };
        let new = || Receiver::new(sa::HEADER_LEN, sa::RMPP_CLASS_HEADER_LEN, MAX_TABLE);
        match open.transfer.get_or_insert_with(new).handle(mad) {
            Step::Wait => {}
            Step::Answer(ack) => self.acks.push_back(ack),
            Step::Failed(abort) => {
                self.acks.extend(abort);
                self.finish(tid, Err(SaError::Malformed));
            }
            Step::Done(ack, data) => {
                self.acks.push_back(ack);
                let stride = usize::from(attribute_offset) * 8;
                let answer = if stride < <PathRecord as Record>::LEN {
                    if data.is_empty() { Ok(Answer::Paths(Vec::new())) } else { Err(SaError::Malformed) }
                } else {
                    let records = data.chunks(stride).map_while(|bytes| PathRecord::parse(bytes).ok());
                    Ok(Answer::Paths(records.collect()))
                };
                self.finish(tid, answer);
            }
        }
    }

    /// Entries in all tables.
    pub fn footprint(&self) -> usize {
        self.open.len() + self.timers.len() + self.to_send.len() + self.acks.len() + self.answers.len()
    }
}

/// The request for what is asked.
fn request(ask: &Ask, tid: u64) -> SaMad {
    match *ask {
        Ask::Path { sgid, dgid, pkey } => paths(method::GET, (sgid, dgid, pkey), ONE_PATH, tid),
        Ask::Paths { sgid, dgid, pkey, most } => paths(sa::method::GET_TABLE, (sgid, dgid, pkey), most, tid),
        Ask::Join { mgid, port_gid, pkey, qkey, join } => {
            let record =
                McMemberRecord { mgid, port_gid, pkey, qkey, join_state: join, ..McMemberRecord::default() };
            // Who only sends does not make groups (IBTA §15.2.5.17.3): nothing of the group is asked for then.
            let mask = match join {
                join_state::FULL => McMemberRecord::MGID | McMemberRecord::CREATE,
                _ => McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE,
            };
            SaMad::with_record(method::SET, &record, mask, tid)
        }
        Ask::Leave { mgid, port_gid, join } => {
            let record = McMemberRecord { mgid, port_gid, join_state: join, ..McMemberRecord::default() };
            let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
            SaMad::with_record(sa::method::DELETE, &record, mask, tid)
        }
    }
}

/// A request for so many reversible paths at most, between two ports in a partition.
fn paths(method: u8, (sgid, dgid, pkey): (Gid, Gid, PKey), numb_path: u8, tid: u64) -> SaMad {
    let record = PathRecord { sgid, dgid, pkey, reversible: true, numb_path, ..PathRecord::default() };
    let mask = PathRecord::SGID
        | PathRecord::DGID
        | PathRecord::PKEY
        | PathRecord::REVERSIBLE
        | PathRecord::NUMB_PATH;
    SaMad::with_record(method, &record, mask, tid)
}

#[cfg(test)]
mod tests;
