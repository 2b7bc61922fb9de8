//! One end of a connection, or a datagram queue pair: the queue pair and what the workload knows of its work requests.

use std::collections::{BTreeMap, VecDeque};

use everywire_verbs::{Connection as CmConnection, Qp, WcStatus};

use super::node::AreaId;
use super::slots::{Layout, Slot};
use crate::checkers::atomics::OpId;
use crate::checkers::completions::{Excuses, RecvLedger, SendLedger};
use crate::checkers::delivery::{LossyStream, ReliableStream};

/// A slot of a node.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The host.
    pub host: usize,
    /// The life of the host.
    pub node: u64,
    /// The part of its main region.
    pub area: AreaId,
    /// The bytes.
    pub slot: Slot,
}

/// Which of a node's words an atomic works on.
#[derive(Debug, Clone, Copy)]
pub enum Word {
    /// The counter, by one.
    Counter,
    /// The word with a history.
    History(OpId),
}

/// What ending a key operation means for an opening.
#[derive(Debug, Clone, Copy)]
pub enum KeyStep {
    /// It is open under this key now.
    Open(everywire_verbs::RKey),
    /// It is shut now.
    Shut,
}

/// What hangs on a send work request until it ends.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    /// Slots of the poster that nothing is written to.
    pub sources: Vec<Slot>,
    /// The same, behind a fast-register key of the poster's own.
    pub behind: Option<Place>,
    /// Where a READ or an atomic lands at the poster: a claim is open there.
    pub sink: Option<Slot>,
    /// The sink is also the source of a later request, which gives it back.
    pub sink_is_lent: bool,
    /// A slot of the peer that is read.
    pub reads: Option<Place>,
    /// A slot of the peer that is written: a claim is open there.
    pub writes: Option<Place>,
    /// The peer answers it, after everything that was posted before: a READ or an atomic.
    pub answered: bool,
    /// The atomic word of a node.
    pub atomic: Option<(usize, u64, Word)>,
    /// An opening of the poster or the peer that changes: host, node, index, step.
    pub key: Option<(usize, u64, usize, KeyStep)>,
    /// It is a message that takes a receive at the peer.
    pub message: bool,
}

/// What is known of a queue pair's messages to its peer.
#[derive(Debug, Clone)]
pub enum Stream {
    /// RC.
    Reliable(ReliableStream),
    /// UC.
    Lossy(LossyStream),
}

/// An end.
pub struct End {
    /// The host.
    pub host: usize,
    /// The life of the host.
    pub node: u64,
    /// The queue pair.
    pub qp: Qp,
    /// The connection manager's view of it, if it was made that way.
    pub cm: Option<CmConnection>,
    /// By send and receive: the node's completion queue.
    pub queues: [usize; 2],
    /// Its sends.
    pub sends: SendLedger,
    /// What hangs on them.
    pub pending: BTreeMap<u64, Pending>,
    /// Its receives, unless they are shared.
    pub recvs: Option<RecvLedger>,
    /// Buffers of those.
    pub recv_open: BTreeMap<u64, Layout>,
    /// By shared receive queue: what [`RecvLedger`] holds for the others.
    pub may_flush: bool,
    /// The same.
    pub may_fail: Vec<WcStatus>,
    /// Messages to the peer.
    pub out: Stream,
    /// WRITEs that have succeeded on a wire where that does not say that they have landed: told by their tokens.
    pub not_landed: VecDeque<(u64, Pending)>,
    /// Requests whose end is known only to be unknown; their claims stay open until both ends are gone.
    pub unknown: Vec<Pending>,
    /// Messages among them.
    pub unknown_messages: u64,
    /// Messages that were flushed before they were sent.
    pub unsent_messages: u64,
    /// A request failed in a way that tells that none after it was executed.
    pub rest_not_done: bool,
    /// Every send makes a completion.
    pub all_signaled: bool,
    /// An unreliable end whose send queue is about to stop (SQE): its failures do not break the connection.
    pub stopping: bool,
}

impl End {
    /// An end in use, with nothing posted.
    pub fn new(
        name: &str,
        host: usize,
        node: u64,
        qp: Qp,
        queues: [usize; 2],
        shared: bool,
        reliable: bool,
    ) -> Self {
        End {
            host,
            node,
            qp,
            cm: None,
            queues,
            sends: SendLedger::new(format!("send queue of {name}")),
            pending: BTreeMap::new(),
            recvs: (!shared).then(|| RecvLedger::new(format!("receive queue of {name}"))),
            recv_open: BTreeMap::new(),
            may_flush: false,
            may_fail: Vec::new(),
            out: if reliable {
                Stream::Reliable(ReliableStream::default())
            } else {
                Stream::Lossy(LossyStream::default())
            },
            not_landed: VecDeque::new(),
            unknown: Vec::new(),
            unknown_messages: 0,
            unsent_messages: 0,
            rest_not_done: false,
            all_signaled: false,
            stopping: false,
        }
    }

    /// It may be put to ERR by something that is not its own failure.
    pub fn may_be_flushed(&mut self) {
        self.sends.excuses.flush = true;
        self.receives_may_flush();
    }

    /// Its receives may be flushed, since a send may fail.
    pub fn receives_may_flush(&mut self) {
        self.may_flush = true;
        if let Some(recvs) = &mut self.recvs {
            recvs.may_flush = true;
        }
    }

    /// A receive may end in one of these.
    pub fn receive_may_fail(&mut self, status: WcStatus) {
        self.may_fail.push(status);
        if let Some(recvs) = &mut self.recvs {
            recvs.may_fail.push(status);
        }
    }

    /// What the environment may do to its sends.
    pub fn excuse(&mut self, excuses: Excuses) {
        let have = &mut self.sends.excuses;
        have.retry |= excuses.retry;
        have.rnr |= excuses.rnr;
        have.flush |= excuses.flush;
        if have.retry || have.rnr || have.flush {
            self.receives_may_flush();
        }
    }

    /// Whether nothing of its own is open: receives of a shared queue are not its own.
    pub fn is_drained(&self) -> bool {
        self.sends.owed() == 0 && self.recvs.as_ref().is_none_or(|r| r.open() == 0)
    }
}
