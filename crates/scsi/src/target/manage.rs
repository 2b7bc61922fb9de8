//! Task management functions. SAM-5 §7.
//!
//! A function ends when every task that it aborts has ended: what a backend was given is waited for, so that nothing of an
//! aborted command reaches the medium after the answer. Asked from the nexus, of one logical unit or of the whole map.

use std::sync::Arc;
use std::task::Poll;

use everywire_block::IoFuture;

use super::map::Lun;
use super::{Nexus, NexusInner};
use crate::lun::LogicalUnit;
use crate::sense::Asc;
use crate::task_set::Aborted;

/// A task management function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// One task of this nexus.
    AbortTask {
        /// Its tag.
        tag: u64,
    },
    /// Every task of this nexus in the logical unit.
    AbortTaskSet,
    /// Every task of the logical unit.
    ClearTaskSet,
    /// Nothing here establishes an ACA, so that this has nothing to do.
    ClearAca,
    /// LOGICAL UNIT RESET.
    LunReset,
    /// Every logical unit that this nexus sees.
    TargetReset,
}

/// What a function came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// FUNCTION COMPLETE.
    Complete,
    /// INCORRECT LOGICAL UNIT NUMBER.
    NoLun,
}

impl Nexus {
    /// Carries a function out; ready when every task that it aborts has ended.
    pub fn manage(&self, lun: u64, function: Function) -> IoFuture<Response> {
        self.manage_before(lun, function, u64::MAX)
    }

    /// The same where tags tell the order of arrival: tasks of this nexus with this tag or a higher one came behind the function, which
    /// does not concern them.
    pub fn manage_before(&self, lun: u64, function: Function, tag: u64) -> IoFuture<Response> {
        let nexus = &self.0;
        let units = if function == Function::TargetReset {
            nexus.map.units()
        } else {
            match Lun::parse(lun) {
                Lun::Unit(number) => match nexus.at(number) {
                    Some((unit, _)) => vec![unit],
                    None => return IoFuture::ready(Response::NoLun),
                },
                // It has no tasks that last.
                Lun::WellKnown => return IoFuture::ready(Response::Complete),
                Lun::Unknown => return IoFuture::ready(Response::NoLun),
            }
        };
        tracing::info!("{}: {function:?}", nexus.name.initiator);
        let drains: Vec<_> =
            units.into_iter().map(|unit| (apply(nexus, &unit, function, tag), unit)).collect();
        if drains.iter().all(|(running, _)| running.is_empty()) {
            return IoFuture::ready(Response::Complete);
        }
        IoFuture::pending(async move {
            for (running, unit) in &drains {
                drained(unit, running).await;
            }
            Response::Complete
        })
    }
}

/// Does to one logical unit what a function says; gives the tasks that still run.
fn apply(nexus: &NexusInner, unit: &Arc<LogicalUnit>, function: Function, before: u64) -> Vec<u64> {
    let tas = unit.task_aborted_status();
    let how = |other| if tas && other != nexus.id { Aborted::WithStatus } else { Aborted::Silent };
    let earlier = |id, tag| id != nexus.id || tag < before;
    match function {
        Function::AbortTask { tag } => unit.abort(|id, of| id == nexus.id && of == tag, how).0,
        Function::AbortTaskSet => unit.abort(|id, tag| id == nexus.id && tag < before, how).0,
        Function::ClearTaskSet => {
            let (running, nexuses) = unit.abort(earlier, how);
            if !tas {
                let told = |id| id != nexus.id && nexuses.contains(&id);
                unit.attention(Asc::COMMANDS_CLEARED, |path| told(path.nexus));
            }
            running
        }
        Function::ClearAca => Vec::new(),
        Function::LunReset | Function::TargetReset => {
            let (running, _) = unit.abort(earlier, how);
            unit.reset();
            running
        }
    }
}

/// Waits until none of the tasks runs.
pub(crate) async fn drained(unit: &Arc<LogicalUnit>, running: &[u64]) {
    std::future::poll_fn(|cx| {
        unit.poll_left_behind(cx);
        if unit.is_draining(running, cx.waker()) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}
