//! NVM commands: decode, check, carry out on the backend. NVM Command Set 1.0 §3.
//!
//! A command on a RAM backend completes inside [`IoJob::run`] without an allocation; one that must wait gives a future.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use everywire_block::{BlockError, BlockOp, IoBuf, IoFuture, IoResult, SharedBuffer};

use super::subsystem::Namespace;
use super::{ControllerKey, Direction, Failure, JobKind, Outcome, QueueInfo, Step, Target, exact};
use crate::pdu::Field;
use crate::pdu::command::{DSM_DEALLOCATE, DsmRange, NSID_ALL, WRITE_ZEROES_DEALLOCATE};
use crate::pdu::sgl::DataPointer;
use crate::pdu::{IoOpcode, Sqe, Status};
use everywire_verbs::peer_log::{About, PeerLog};

/// A checked I/O command.
#[derive(Debug)]
pub struct IoJob {
    /// What it does.
    pub kind: IoKind,
    namespaces: Targets,
    /// Byte offset.
    offset: u64,
    /// Bytes it covers (Write Zeroes moves none).
    len: u64,
    fua: bool,
}

/// Which namespaces a command touches: one, but for a broadcast Flush.
#[derive(Debug)]
enum Targets {
    One(Rc<Namespace>),
    All(Vec<Rc<Namespace>>),
}

/// Kinds of I/O command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoKind {
    /// Flush.
    Flush,
    /// Read.
    Read,
    /// Write.
    Write,
    /// Compare.
    Compare,
    /// Write Zeroes; true if it may deallocate.
    WriteZeroes(bool),
    /// Dataset Management: number of ranges, and whether to deallocate them.
    DatasetManagement(u16, bool),
}

/// How running a job ended.
pub enum Ran {
    /// Done.
    Done(Outcome),
    /// It goes on; the outcome comes from the future.
    Pending(Pin<Box<dyn Future<Output = Outcome>>>),
}

/// Bytes of the longest list of ranges: 256 of them (NVMe NVM Command Set 1.0 §3.2.3).
const MAX_DSM_BYTES: u32 = 256 * DsmRange::LEN as u32;

impl Target {
    pub(super) fn begin_io(&mut self, key: ControllerKey, sqe: &Sqe, extra: &IoBuf) -> Result<Step, Failure> {
        let controller = self.controllers.get(&key).ok_or(Status::ABORTED_SQ_DELETION)?;
        if !controller.takes_io() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        let opcode = IoOpcode(sqe.opcode);
        if opcode == IoOpcode::FABRICS {
            // Connect was done; nothing else of the fabrics commands is for an I/O queue.
            let again = sqe.fctype() == crate::pdu::fabrics::CONNECT;
            let status = if again { Status::COMMAND_SEQUENCE_ERROR } else { Status::INVALID_OPCODE };
            return Err(status.dnr().into());
        }
        let write_through = !controller.features.write_cache;
        if opcode == IoOpcode::FLUSH && sqe.nsid == NSID_ALL {
            let all = controller.namespaces.values().cloned().collect();
            let job =
                IoJob { kind: IoKind::Flush, namespaces: Targets::All(all), offset: 0, len: 0, fua: false };
            return no_data(sqe, job);
        }
        let namespace = controller.namespaces.get(&sqe.nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?.clone();
        match opcode {
            IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE => {
                self.begin_transfer(opcode, namespace, sqe, extra, write_through)
            }
            IoOpcode::FLUSH => no_data(sqe, IoJob::whole(IoKind::Flush, namespace)),
            IoOpcode::WRITE_ZEROES => {
                let (offset, len) = range(&namespace, sqe)?;
                check_writable(&namespace)?;
                let kind = IoKind::WriteZeroes(sqe.cdw12 & WRITE_ZEROES_DEALLOCATE != 0);
                let fua = sqe.fua() || write_through;
                no_data(sqe, IoJob { kind, namespaces: Targets::One(namespace), offset, len, fua })
            }
            IoOpcode::DATASET_MANAGEMENT => {
                let ranges = (sqe.cdw10 & 0xff) as u16 + 1;
                let deallocate = sqe.cdw11 & DSM_DEALLOCATE != 0;
                let data = self.data(sqe, extra)?;
                let job = IoJob::whole(IoKind::DatasetManagement(ranges, deallocate), namespace);
                let needed = u32::from(ranges) * DsmRange::LEN as u32;
                // Linux always gives the whole page that 256 ranges take, however few it names.
                let given = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let len = if (needed..=MAX_DSM_BYTES).contains(&given) { given } else { needed };
                Ok(Step::Run(exact(sqe, Direction::FromHost, len, data, JobKind::Io(job))?))
            }
            _ => Err(Status::INVALID_OPCODE.dnr().into()),
        }
    }

    fn begin_transfer(
        &self,
        opcode: IoOpcode,
        namespace: Rc<Namespace>,
        sqe: &Sqe,
        extra: &IoBuf,
        write_through: bool,
    ) -> Result<Step, Failure> {
        let (offset, len) = range(&namespace, sqe)?;
        if len > u64::from(self.limits.max_transfer()) {
            return Err(Status::INVALID_FIELD.dnr().into());
        }
        // PRINFO: no protection information here. Dword 12 bits 29:26.
        if sqe.cdw12 >> 26 & 0xf != 0 {
            return Err(Status::INVALID_FIELD.dnr().into());
        }
        let (kind, direction) = match opcode {
            IoOpcode::READ => (IoKind::Read, Direction::ToHost),
            IoOpcode::WRITE => (IoKind::Write, Direction::FromHost),
            _ => (IoKind::Compare, Direction::FromHost),
        };
        if kind == IoKind::Write {
            check_writable(&namespace)?;
        }
        let data = self.data(sqe, extra)?;
        let fua = sqe.fua() || write_through;
        let job = IoJob { kind, namespaces: Targets::One(namespace), offset, len, fua };
        Ok(Step::Run(exact(sqe, direction, len as u32, data, JobKind::Io(job))?))
    }
}

fn no_data(sqe: &Sqe, job: IoJob) -> Result<Step, Failure> {
    let none = DataPointer::Keyed(Default::default());
    Ok(Step::Run(exact(sqe, Direction::None, 0, none, JobKind::Io(job))?))
}

/// The byte range of SLBA and NLB, inside the namespace.
fn range(namespace: &Namespace, sqe: &Sqe) -> Result<(u64, u64), Failure> {
    let (slba, blocks) = (sqe.slba(), u64::from(sqe.blocks()));
    if slba.checked_add(blocks).is_none_or(|end| end > namespace.geometry.blocks) {
        return Err(Status::LBA_OUT_OF_RANGE.dnr().into());
    }
    let size = u64::from(namespace.geometry.block_size);
    Ok((slba * size, blocks * size))
}

fn check_writable(namespace: &Namespace) -> Result<(), Failure> {
    if namespace.geometry.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr().into());
    }
    Ok(())
}

impl IoJob {
    fn whole(kind: IoKind, namespace: Rc<Namespace>) -> Self {
        Self { kind, namespaces: Targets::One(namespace), offset: 0, len: 0, fua: false }
    }

    /// Carries the command out; `buf` has its data or takes it. `who` says whose it is, should it fail.
    pub(super) fn run(&self, buf: &IoBuf, who: &impl Fn() -> Option<Whose>) -> Ran {
        let namespace = match &self.namespaces {
            Targets::One(namespace) => namespace,
            Targets::All(all) => {
                let all = all.iter().map(|namespace| Place { namespace: namespace.clone(), who: who() });
                return run(flush_all(all.collect()));
            }
        };
        let (backend, stats) = (&namespace.backend, &namespace.stats);
        let place = || Place { namespace: namespace.clone(), who: who() };
        let blocks = self.len / u64::from(namespace.geometry.block_size);
        match self.kind {
            IoKind::Read => {
                stats.reads.set(stats.reads.get() + 1);
                stats.blocks_read.set(stats.blocks_read.get() + blocks);
                outcome(place, backend.read(self.offset, buf))
            }
            IoKind::Write => {
                stats.writes.set(stats.writes.get() + 1);
                stats.blocks_written.set(stats.blocks_written.get() + blocks);
                outcome(place, backend.write(self.offset, buf, self.fua))
            }
            IoKind::Flush => outcome(place, backend.flush()),
            IoKind::WriteZeroes(unmap) => {
                let zeroed = backend.write_zeroes(self.offset, self.len, unmap);
                if !self.fua {
                    return outcome(place, zeroed);
                }
                let place = place();
                run(async move {
                    place.judge(zeroed.await)?;
                    place.judge(place.namespace.backend.flush().await)
                })
            }
            IoKind::Compare => run(compare(place(), self.offset, buf.clone())),
            IoKind::DatasetManagement(ranges, deallocate) => {
                run(deallocate_ranges(place(), ranges, deallocate, buf.clone()))
            }
        }
    }
}

/// Polls once, so that what completes at once is answered at once.
fn run(future: impl Future<Output = Outcome> + 'static) -> Ran {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(outcome) => Ran::Done(outcome),
        std::task::Poll::Pending => Ran::Pending(future),
    }
}

fn outcome(place: impl Fn() -> Place, io: IoFuture<IoResult>) -> Ran {
    match io.into_ready() {
        Ok(Ok(())) => Ran::Done(Ok(0)),
        Ok(failed) => Ran::Done(place().judge(failed)),
        Err(io) => {
            let place = place();
            Ran::Pending(Box::pin(async move { place.judge(io.await) }))
        }
    }
}

/// Whose a command is, and what may be logged of it.
pub(super) type Whose = (Rc<QueueInfo>, Rc<PeerLog>);

/// Where a command is carried out, and for whom.
struct Place {
    namespace: Rc<Namespace>,
    /// `None` if the queue has gone already.
    who: Option<Whose>,
}

impl Place {
    /// A backend's result as an outcome; an error is counted and logged.
    fn judge(&self, result: IoResult) -> Outcome {
        let Err(error) = result else { return Ok(0) };
        let (namespace, stats) = (&self.namespace, &self.namespace.stats);
        let failure = failure(&error);
        // A host that is kept out by others' reservation is no trouble of the medium.
        if let BlockError::Reserved { .. } = error {
            tracing::debug!("namespace {}: {error}", namespace.nsid);
            return Err(failure);
        }
        stats.media_errors.set(stats.media_errors.get() + 1);
        let (nsid, status) = (namespace.nsid, failure.status);
        match &self.who {
            Some((who, log)) if log.may(About::Trouble) => {
                tracing::warn!("{who}, namespace {nsid}: {error}: {status}")
            }
            Some(_) => {}
            None => tracing::warn!("namespace {nsid}, for a host that has gone: {error}: {status}"),
        }
        Err(failure)
    }
}

/// The status of a backend's error.
fn failure(error: &BlockError) -> Failure {
    let status = match error {
        BlockError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
        BlockError::ReadOnly { .. } => Status::NAMESPACE_WRITE_PROTECTED,
        BlockError::NoSpace { .. } => Status::CAPACITY_EXCEEDED,
        BlockError::Reserved { .. } => Status::RESERVATION_CONFLICT,
        // Worth another attempt.
        BlockError::NotReady { .. } => return Status::NAMESPACE_NOT_READY.into(),
        BlockError::Io { op: BlockOp::Read, .. } => Status::UNRECOVERED_READ_ERROR,
        BlockError::Io { .. } | BlockError::FlushLost { .. } => Status::WRITE_FAULT,
        _ => Status::INTERNAL_ERROR,
    };
    status.dnr().into()
}

async fn flush_all(places: Vec<Place>) -> Outcome {
    for place in places {
        place.judge(place.namespace.backend.flush().await)?;
    }
    Ok(0)
}

async fn compare(place: Place, offset: u64, wanted: IoBuf) -> Outcome {
    let stored = SharedBuffer::new(vec![0; wanted.len()]);
    place.judge(place.namespace.backend.read(offset, &stored.io()).await)?;
    let mut bytes = vec![0; wanted.len()];
    wanted.load(0, &mut bytes);
    if bytes != stored.to_vec() { Err(Status::COMPARE_FAILURE.dnr().into()) } else { Ok(0) }
}

/// Every range is checked before any is deallocated. Attributes other than deallocate are hints and ignored.
async fn deallocate_ranges(place: Place, ranges: u16, deallocate: bool, list: IoBuf) -> Outcome {
    let namespace = &place.namespace;
    let geometry = namespace.geometry;
    let mut raw = vec![0; usize::from(ranges) * DsmRange::LEN];
    list.load(0, &mut raw);
    let ranges: Vec<DsmRange> = raw.chunks_exact(DsmRange::LEN).map(DsmRange::get).collect();
    let outside = |range: &DsmRange| {
        range.slba.checked_add(range.blocks.into()).is_none_or(|end| end > geometry.blocks)
    };
    if ranges.iter().any(outside) {
        return Err(Status::LBA_OUT_OF_RANGE.dnr().into());
    }
    if !deallocate || !geometry.discard {
        return if deallocate && geometry.read_only {
            Err(Status::NAMESPACE_WRITE_PROTECTED.dnr().into())
        } else {
            Ok(0)
        };
    }
    let size = u64::from(geometry.block_size);
    for range in ranges {
        let io = namespace.backend.discard(range.slba * size, u64::from(range.blocks) * size);
        place.judge(io.await)?;
    }
    Ok(0)
}
