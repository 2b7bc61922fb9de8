//! The medium as a whole: caches, eject and load, prevention of removal, SANITIZE. SBC-3 §5.22, §5.25, §5.30, §4.11.
//!
//! With IMMED the work goes on in the background, see there. A SANITIZE that fails leaves the unit refusing its medium until
//! another one succeeds, or EXIT FAILURE MODE where AUSE allowed it.

use std::sync::Arc;
use std::task::Poll;

use everywire_block::SharedBuffer;

use super::background::{Completion, give_way};
use super::run::{Done, Run};
use super::rw::STEP;
use super::{LogicalUnit, flag};
use crate::bytes::{u8_at, u16_at};
use crate::cdb::{Command, SanitizeAction};
use crate::lock;
use crate::sense::{Asc, Failure, Sense, SenseKey};
use crate::status::Status;

/// INVERT, and the count of an OVERWRITE's passes.
const INVERT: u8 = 0x80;
const PASSES: u8 = 0x1f;
/// What progress counts in.
const WHOLE: u128 = 65536;

/// One pass of an OVERWRITE, or a block erase.
struct Erase {
    action: SanitizeAction,
    /// A block of the pattern.
    block: Vec<u8>,
    passes: u8,
    invert: bool,
    ause: bool,
}

impl Run<'_> {
    pub(super) async fn synchronize(&self, immed: bool) -> Result<Done, Failure> {
        let flush = self.unit.config.backend.flush();
        if !immed {
            self.judged(flush.await)?;
            return Ok(Done::GOOD);
        }
        let unit = self.unit.clone();
        self.unit.leave_behind(Box::pin(async move {
            if let Err(error) = flush.await {
                // Nobody is told now; the next flush fails as well (`BlockError::FlushLost`).
                tracing::warn!("volume {}: {error}, after SYNCHRONIZE CACHE with IMMED", unit.name());
            }
        }));
        Ok(Done::GOOD)
    }

    pub(super) async fn start_stop(&self) -> Result<Done, Failure> {
        let Command::StartStop { power_condition, no_flush, load_eject, start, .. } = self.plan.command
        else {
            return Ok(Done::GOOD);
        };
        let unit = self.unit;
        // Power conditions are accepted and change nothing: there is no power to save. A power condition makes LOEJ and
        // START meaningless (SBC-3 §5.25).
        if power_condition != 0 {
            return Ok(Done::GOOD);
        }
        if !start && !no_flush && !unit.is(flag::READ_ONLY) {
            self.judged(unit.config.backend.flush().await)?;
        }
        if !load_eject || !unit.config.removable {
            return Ok(Done::GOOD);
        }
        // Either way the tray would have to open.
        if !lock(&unit.state).prevented_by.is_empty() {
            return Err(Sense::illegal(Asc::REMOVAL_PREVENTED).into());
        }
        if !start {
            unit.set(flag::EJECTED, true);
        } else if unit.is(flag::EJECTED) {
            unit.set(flag::EJECTED, false);
            unit.attention(Asc::MEDIUM_MAY_HAVE_CHANGED, |path| path.nexus != self.path.nexus);
        }
        Ok(Done::GOOD)
    }

    pub(super) fn prevent(&self, prevent: u8) -> Done {
        let mut state = lock(&self.unit.state);
        if prevent & 1 != 0 {
            state.prevented_by.insert(self.path.nexus);
        } else {
            state.prevented_by.remove(&self.path.nexus);
        }
        Done::GOOD
    }

    pub(super) async fn sanitize(&self) -> Result<Done, Failure> {
        let Command::Sanitize { action, immed, ause, .. } = self.plan.command else { return Ok(Done::GOOD) };
        let unit = self.unit;
        if action == SanitizeAction::ExitFailureMode {
            let may = lock(&unit.state).sanitize_ause;
            if unit.is(flag::SANITIZE_FAILED) && !may {
                return Err(Sense::new(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_FAILED).into());
            }
            unit.set(flag::SANITIZE_FAILED, false);
            return Ok(Done::GOOD);
        }
        let list = self.list()?;
        let mut erase = Erase { action, block: Vec::new(), passes: 1, invert: false, ause };
        if action == SanitizeAction::Overwrite {
            let pattern = list.get(4..).unwrap_or_default();
            if usize::from(u16_at(&list, 2)) != pattern.len() {
                return Err(Sense::parameter(2).into());
            }
            erase.passes = u8_at(&list, 0) & PASSES;
            erase.invert = u8_at(&list, 0) & INVERT != 0;
            if erase.passes == 0 {
                return Err(Sense::parameter(0).into());
            }
            let size = unit.geometry.block_size as usize;
            erase.block = pattern.iter().copied().cycle().take(size).collect();
        }
        lock(&unit.state).sanitized = 0;
        unit.set(flag::SANITIZING, true);
        // §4.11.1: neither an abort nor a reset stops it, so that it is never the task's own.
        let completion = Arc::new(Completion::default());
        let (work, end) = (sanitize(unit.clone(), erase), completion.clone());
        unit.leave_behind(Box::pin(async move { end.complete(work.await) }));
        if immed {
            return Ok(Done::GOOD);
        }
        let ended = std::future::poll_fn(|cx| {
            unit.poll_left_behind(cx);
            match completion.poll(cx) {
                Poll::Pending if lock(&unit.tasks).detach(self.task, cx.waker()) => {
                    Poll::Ready(Err(Failure::Status(Status::TASK_ABORTED)))
                }
                polled => polled,
            }
        });
        ended.await.map(|()| Done::GOOD)
    }
}

/// Erases everything; the unit is SANITIZING until this ends.
async fn sanitize(unit: Arc<LogicalUnit>, erase: Erase) -> Result<(), Failure> {
    let result = erase_all(&unit, &erase).await;
    lock(&unit.state).sanitize_ause = erase.ause;
    unit.set(flag::SANITIZE_FAILED, result.is_err());
    unit.set(flag::SANITIZING, false);
    result.map_err(|failure| {
        tracing::warn!("volume {}: SANITIZE failed: {failure:?}", unit.name());
        Sense::new(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_FAILED).into()
    })
}

async fn erase_all(unit: &Arc<LogicalUnit>, erase: &Erase) -> Result<(), Failure> {
    let (backend, total) = (&unit.config.backend, unit.geometry.bytes());
    let failed = |error| unit.failed(&error);
    let passes = u64::from(erase.passes);
    for pass in 0..passes {
        let mut at = 0;
        let pattern = (erase.action == SanitizeAction::Overwrite).then(|| {
            let flip = if erase.invert && pass % 2 == 1 { 0xff } else { 0 };
            let block: Vec<u8> = erase.block.iter().map(|byte| byte ^ flip).collect();
            SharedBuffer::new(block.repeat(STEP as usize / block.len())).io()
        });
        while at < total {
            let step = (total - at).min(if pattern.is_some() { STEP } else { 64 * STEP });
            match &pattern {
                Some(pattern) => backend.write(at, &pattern.slice(0, step as usize), false).await,
                None => backend.write_zeroes(at, step, true).await,
            }
            .map_err(failed)?;
            at += step;
            give_way().await;
            let done = u128::from(pass) * u128::from(total) + u128::from(at);
            let done = done * WHOLE / (u128::from(passes) * u128::from(total));
            lock(&unit.state).sanitized = u16::try_from(done).unwrap_or(u16::MAX);
        }
    }
    // §4.11.1: caches are sanitized too.
    backend.flush().await.map_err(failed)
}
