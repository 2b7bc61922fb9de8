//! The controller side of NVMe over Fabrics, sans-IO. NVMe Base 2.0 §3, NVMe-oF 1.1 §§1.5, 2, 3.
//!
//! A binding opens a [`Target::open_queue`] per connection, hands every capsule to [`Target::begin`] and does what the
//! [`Step`] says: answer, hold, or move data and [`Target::run`] the job; every answer goes through [`Target::respond`],
//! which keeps SQHD. What must happen elsewhere (an asynchronous event, a queue to close) comes out of
//! [`Target::poll_event`]. Queue states: awaiting Connect, connected, gone.
//! What this does not do: touch a connection, read a clock, or move host memory.

mod admin;
pub mod config;
mod connect;
mod controller;
mod discovery;
mod events;
mod features;
mod identify;
mod ids;
mod io;
mod logs;
mod manage;
mod property;
mod queue;
mod subsystem;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::Nqn;
use crate::pdu::cm::{CmRequest, CmStatus};
use crate::pdu::command::{FLAGS_FUSE_MASK, FLAGS_PSDT_MASK, FLAGS_SGL};
use crate::pdu::sgl::DataPointer;
use crate::pdu::{AdminOpcode, Cqe, Sqe, Status, fabrics};
pub use config::{ConfigError, Limits, Listener, NamespaceConfig, SubsystemConfig};
use controller::Controller;
pub use events::{CloseReason, TargetEvent};
use everywire_block::IoBuf;
use everywire_verbs::ids::IdMap;
use everywire_verbs::peer_log::PeerLog;
pub(crate) use ids::ControllerKey;
pub use ids::QueueId;
pub use io::{IoJob, IoKind, Ran};
pub use queue::QueueInfo;
use queue::{Phase, Queue};
use subsystem::Subsystem;
pub use subsystem::{Namespace, NamespaceIds};

/// What to do with a command.
#[derive(Debug)]
pub enum Step {
    /// Answer now: `respond` with this.
    Respond(Outcome),
    /// The command is kept until an event answers it; its capsule is free.
    Held,
    /// Bring `job.len` bytes from the host if `job.direction` says so, `run`, send bytes back if it says so, `respond`.
    Run(Job),
}

/// Dword 0 and 1 of a success, or a status and dword 0 of a failure.
pub type Outcome = Result<u64, Failure>;

/// An unsuccessful completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Status field.
    pub status: Status,
    /// Command specific dwords 0 and 1.
    pub result: u64,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

/// Which way a command's data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From the host.
    FromHost,
    /// To the host.
    ToHost,
}

/// A command that passed its first checks.
#[derive(Debug)]
pub struct Job {
    /// Command identifier.
    pub cid: u16,
    /// Which way its data goes.
    pub direction: Direction,
    /// Bytes to move.
    pub len: u32,
    /// Where the host's side of the data is.
    pub data: DataPointer,
    /// What to do.
    pub(crate) kind: JobKind,
}

impl Job {
    /// Whether it may make its queue part of an association.
    pub fn is_connect(&self) -> bool {
        matches!(self.kind, JobKind::Connect(_))
    }
}

#[derive(Debug)]
pub(crate) enum JobKind {
    Connect(fabrics::Connect),
    Admin(Sqe),
    Io(IoJob),
}

/// Who opened a queue.
#[derive(Debug, Clone)]
pub struct QueueOrigin {
    /// The listener it came in by.
    pub port_id: u16,
    /// The host's address.
    pub peer: SocketAddr,
    /// The address it reached us at.
    pub local: SocketAddr,
    /// The interface that link-local addresses belong to, for logs.
    pub interface: Option<Arc<str>>,
}

/// Subsystems, their controllers and their queues.
pub struct Target {
    limits: Limits,
    subsystems: HashMap<Nqn, Subsystem>,
    listeners: HashMap<u16, Listener>,
    controllers: IdMap<ControllerKey, Controller>,
    queues: IdMap<QueueId, Queue>,
    events: VecDeque<TargetEvent>,
    /// What the peers of each listener may still write into the log.
    logs: HashMap<u16, Rc<PeerLog>>,
    /// Discovery generation counter. Starts at 1: 0 reads as "no log yet" to some hosts.
    generation: u64,
    next_queue: u64,
    next_controller: u64,
    started: Option<Instant>,
}

impl Target {
    /// A target with nothing to serve yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            subsystems: HashMap::new(),
            listeners: HashMap::new(),
            controllers: IdMap::default(),
            queues: IdMap::default(),
            events: VecDeque::new(),
            logs: HashMap::new(),
            generation: 1,
            next_queue: 1,
            next_controller: 1,
            started: None,
        }
    }

    /// The limits it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the connection that a host asks for could be opened now: its CM private data against the limits.
    pub fn admits(&self, request: &CmRequest) -> Result<(), CmStatus> {
        if request.qid > self.limits.max_io_queues {
            return Err(CmStatus::INVALID_QID);
        }
        if self.queues.len() >= self.limits.max_connections && self.awaiting_connect().next().is_none() {
            return Err(CmStatus::NO_RESOURCES);
        }
        Ok(())
    }

    /// The queues that have no Connect command yet.
    fn awaiting_connect(&self) -> impl Iterator<Item = QueueId> {
        let awaiting = self.queues.iter().filter(|(_, queue)| queue.phase == Phase::AwaitingConnect);
        awaiting.map(|(id, _)| *id)
    }

    /// A connection is there, and [`Target::admits`] what its request said. The Connect command must follow. Where all
    /// connections are taken, the one that has been without its own for longest has to go: a host that means it sends Connect
    /// within a round trip, and whoever only connects takes nothing from others.
    pub fn open_queue(
        &mut self,
        now: Instant,
        origin: QueueOrigin,
        request: &CmRequest,
    ) -> Result<QueueId, CmStatus> {
        self.started.get_or_insert(now);
        self.admits(request)?;
        if self.queues.len() >= self.limits.max_connections
            && let Some(oldest) = self.awaiting_connect().min()
        {
            self.close(oldest, CloseReason::Displaced);
        }
        let log = self.peer_log(origin.port_id);
        let id = QueueId::new(self.next_queue);
        self.next_queue += 1;
        self.queues.insert(id, Queue::new(now, origin, request, log));
        Ok(id)
    }

    /// The queue's connection is gone. An admin queue takes its association with it.
    pub fn close_queue(&mut self, id: QueueId) {
        let Some(queue) = self.queues.remove(&id) else { return };
        let Phase::Connected { controller: key, qid } = queue.phase else { return };
        if qid == 0 {
            self.end_association(key, CloseReason::AdminQueueGone);
        } else if let Some(controller) = self.controllers.get_mut(&key) {
            controller.queues.remove(&qid);
        }
    }

    /// Takes a command. `extra` is the capsule after the entry: in-capsule data or descriptors.
    pub fn begin(&mut self, now: Instant, id: QueueId, sqe: &Sqe, extra: &IoBuf) -> Step {
        let Some(queue) = self.queues.get(&id) else {
            return Step::Respond(Err(Status::ABORTED_SQ_DELETION.into()));
        };
        let step = match queue.phase {
            Phase::AwaitingConnect => {
                let step = self.begin_connect(sqe, extra);
                step.inspect_err(|failure| self.log_refusal(id, "the first command", failure, None))
            }
            Phase::Connected { controller, qid } => self.begin_connected(now, controller, qid, sqe, extra),
        };
        step.unwrap_or_else(|failure| Step::Respond(Err(failure)))
    }

    fn begin_connect(&mut self, sqe: &Sqe, extra: &IoBuf) -> Result<Step, Failure> {
        // NVMe-oF 1.1 §3.3: Connect is the first command of a queue.
        if sqe.opcode != AdminOpcode::FABRICS.0 || sqe.fctype() != fabrics::CONNECT {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        check_flags(sqe)?;
        let data = self.data(sqe, extra)?;
        let len = fabrics::ConnectData::LEN as u32;
        let kind = JobKind::Connect(fabrics::Connect::from_sqe(sqe));
        Ok(Step::Run(exact(sqe, Direction::FromHost, len, data, kind)?))
    }

    fn begin_connected(
        &mut self,
        now: Instant,
        key: ControllerKey,
        qid: u16,
        sqe: &Sqe,
        extra: &IoBuf,
    ) -> Result<Step, Failure> {
        let Some(controller) = self.controllers.get_mut(&key) else {
            return Err(Status::ABORTED_SQ_DELETION.into());
        };
        // Traffic-based keep alive (CTRATT.TBKAS): any command shows that the host lives.
        controller.last_seen = now;
        check_flags(sqe)?;
        if qid != 0 {
            return self.begin_io(key, sqe, extra);
        }
        if sqe.opcode == AdminOpcode::FABRICS.0 {
            return self.begin_fabrics(now, key, sqe).map(|result| Step::Respond(Ok(result)));
        }
        self.begin_admin(now, key, sqe, extra)
    }

    fn data(&self, sqe: &Sqe, extra: &IoBuf) -> Result<DataPointer, Status> {
        DataPointer::resolve(&sqe.sgl, extra.len(), self.limits.sgl_descriptors(), |at, into| {
            extra.load(at, into)
        })
    }

    /// Does the work of a job whose incoming data is in `buf` or whose outgoing data goes there; `buf` holds `job.len`
    /// bytes.
    pub fn run(&mut self, now: Instant, id: QueueId, job: &Job, buf: &IoBuf) -> Ran {
        match &job.kind {
            JobKind::Io(io) => io.run(buf, &|| {
                let queue = self.queues.get(&id)?;
                Some((queue.info.clone(), queue.log.clone()))
            }),
            JobKind::Connect(connect) => Ran::Done(self.connect(now, id, connect, buf)),
            JobKind::Admin(sqe) => Ran::Done(self.run_admin(now, id, sqe, buf)),
        }
    }

    /// Makes the completion of `cid`: SQHD, and the error log. `None` when the queue is gone.
    pub fn respond(&mut self, id: QueueId, cid: u16, outcome: Outcome) -> Option<Cqe> {
        let queue = self.queues.get_mut(&id)?;
        let (mut status, result) = match outcome {
            Ok(result) => (Status::SUCCESS, result),
            Err(failure) => (failure.status, failure.result),
        };
        if !status.is_success()
            && let Phase::Connected { controller, qid } = queue.phase
            && let Some(controller) = self.controllers.get_mut(&controller)
        {
            status = controller.log_error(qid, cid, status);
        }
        let mut cqe = Cqe::new(cid, status, result);
        cqe.sqhd = queue.advance();
        Some(cqe)
    }

    /// Next thing that must happen outside; drain after every call.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// When `id` must be looked at again with [`Target::handle_timeout`]: its Connect or its keep alive is due.
    pub fn queue_deadline(&self, id: QueueId) -> Option<Instant> {
        let queue = self.queues.get(&id)?;
        match queue.phase {
            Phase::AwaitingConnect => Some(queue.opened + self.limits.connect_timeout),
            Phase::Connected { controller, qid: 0 } => {
                self.controllers.get(&controller)?.keep_alive_deadline(self.limits.connect_timeout)
            }
            Phase::Connected { .. } => None,
        }
    }

    /// Closes the queue if its deadline has passed. NVMe Base 2.0 §3.9 for keep alive.
    pub fn handle_timeout(&mut self, now: Instant, id: QueueId) {
        if self.queue_deadline(id).is_none_or(|deadline| deadline > now) {
            return;
        }
        match self.queues.get(&id).map(|queue| queue.phase) {
            Some(Phase::AwaitingConnect) => self.close(id, CloseReason::NoConnect),
            Some(Phase::Connected { controller, .. }) => {
                self.end_association(controller, CloseReason::KeepAliveExpired);
            }
            None => {}
        }
    }

    /// Whose a queue is, for logs.
    pub fn queue_info(&self, id: QueueId) -> Option<Rc<QueueInfo>> {
        self.queues.get(&id).map(|queue| queue.info.clone())
    }

    /// The log's allowance of a listener's peers; the binding renews it.
    pub(crate) fn peer_log(&mut self, port_id: u16) -> Rc<PeerLog> {
        self.logs.entry(port_id).or_default().clone()
    }

    /// Open queues.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Live controllers.
    pub fn controller_count(&self) -> usize {
        self.controllers.len()
    }
}

/// PSDT must say SGL (NVMe-oF 1.1 §2.1.2), and no fused operation is supported (FUSES is 0).
fn check_flags(sqe: &Sqe) -> Result<(), Failure> {
    if sqe.flags & FLAGS_PSDT_MASK != FLAGS_SGL || sqe.flags & FLAGS_FUSE_MASK != 0 {
        return Err(Status::INVALID_FIELD.dnr().into());
    }
    Ok(())
}

/// A job whose data must be exactly `len` bytes: SGLS bit 18 is not set, so a longer buffer is an error too.
fn exact(
    sqe: &Sqe,
    direction: Direction,
    len: u32,
    data: DataPointer,
    kind: JobKind,
) -> Result<Job, Failure> {
    if data.len() != u64::from(len) {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr().into());
    }
    if direction == Direction::ToHost && matches!(data, DataPointer::InCapsule { .. }) {
        return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr().into());
    }
    Ok(Job { cid: sqe.cid, direction, len, data, kind })
}

#[cfg(test)]
mod tests;
