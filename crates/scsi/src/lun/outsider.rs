//! The logical unit for protocols that are not SCSI: a [`Backend`] whose operations are tasks of the unit. SAM-5 §8, SPC-4 §5.13.
//!
//! Each operation is a SIMPLE task in the unit's task set, so that ORDERED commands and COMPARE AND WRITE hold against it, and is
//! judged when it comes as a command of an I_T nexus that has not registered: reservations, SANITIZE, an ejected medium, write
//! protection. It has no unit attentions, and SCSI's task management does not abort it.
//! What this does not do: let such a protocol reserve anything.

use std::sync::Arc;

use everywire_block::{Backend, BlockError, BlockOp, Extent, Geometry, IoBuf, IoFuture, IoResult};

use super::{LogicalUnit, flag};
use crate::cdb::table::Access;
use crate::lock;
use crate::target::{Running, Slot};
use crate::task_set::{Attribute, OUTSIDER, Range, Start};

struct Outsider(Arc<LogicalUnit>);

impl LogicalUnit {
    /// This unit as a backend for another protocol.
    pub fn for_outsiders(self: &Arc<Self>) -> Arc<dyn Backend> {
        Arc::new(Outsider(self.clone()))
    }

    fn may_outsider(&self, op: BlockOp) -> Result<(), BlockError> {
        let access = if op == BlockOp::Read { Access::Read } else { Access::Write };
        if self.is(flag::RESERVED) && lock(&self.state).reservations.conflicts_with_strangers(access) {
            return Err(BlockError::Reserved { op });
        }
        let not_ready = |why| Err(BlockError::NotReady { op, why });
        if self.is(flag::SANITIZING) {
            return not_ready("a SANITIZE is in progress");
        }
        if self.is(flag::SANITIZE_FAILED) {
            return not_ready("a SANITIZE has failed");
        }
        if self.is(flag::EJECTED) {
            return not_ready("the medium is ejected");
        }
        if matches!(op, BlockOp::Write | BlockOp::WriteZeroes | BlockOp::Discard)
            && self.is(flag::READ_ONLY | flag::SWP)
        {
            return Err(BlockError::ReadOnly { op });
        }
        Ok(())
    }
}

impl Outsider {
    /// Has the operation done in its turn; `range` is in bytes.
    fn carry_out(
        &self,
        op: BlockOp,
        (offset, len): (u64, u64),
        io: impl FnOnce(&dyn Backend) -> IoFuture<IoResult> + Send + 'static,
    ) -> IoFuture<IoResult> {
        let unit = &self.0;
        if let Err(error) = unit.may_outsider(op) {
            return IoFuture::ready(Err(error));
        }
        let block = u64::from(unit.geometry.block_size);
        // What is no range of blocks the backend refuses.
        let end = offset.saturating_add(len).div_ceil(block);
        let range = (len != 0).then_some(Range { start: offset / block, end, exclusive: false });
        let Some(slot) = Slot::new(unit, OUTSIDER, 0, Attribute::Simple, range) else {
            return IoFuture::ready(Err(BlockError::NotReady { op, why: "too many commands are under way" }));
        };
        let place = (unit.clone(), slot.id);
        if slot.start(None) == Start::Wait {
            let work = async move {
                // Nobody aborts it.
                slot.started().await;
                let result = io(&*slot.unit.config.backend).await;
                slot.leave();
                result
            };
            return IoFuture::pending(Running::new(Box::pin(work), place));
        }
        match io(&*unit.config.backend).into_ready() {
            Ok(result) => {
                slot.leave();
                IoFuture::ready(result)
            }
            Err(rest) => {
                let work = async move {
                    let result = rest.await;
                    slot.leave();
                    result
                };
                IoFuture::pending(Running::new(Box::pin(work), place))
            }
        }
    }
}

impl Backend for Outsider {
    fn geometry(&self) -> Geometry {
        let unit = &self.0;
        Geometry { read_only: unit.is(flag::READ_ONLY), ..unit.geometry }
    }

    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult> {
        let memory = into.clone();
        let range = (offset, memory.len() as u64);
        self.carry_out(BlockOp::Read, range, move |backend| backend.read(offset, &memory))
    }

    fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoFuture<IoResult> {
        let (memory, fua) = (from.clone(), self.0.through(fua));
        let range = (offset, memory.len() as u64);
        self.carry_out(BlockOp::Write, range, move |backend| backend.write(offset, &memory, fua))
    }

    fn flush(&self) -> IoFuture<IoResult> {
        self.carry_out(BlockOp::Flush, (0, 0), |backend| backend.flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> IoFuture<IoResult> {
        self.carry_out(BlockOp::WriteZeroes, (offset, len), move |backend| {
            backend.write_zeroes(offset, len, may_unmap)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<IoResult> {
        self.carry_out(BlockOp::Discard, (offset, len), move |backend| backend.discard(offset, len))
    }

    fn extent(&self, offset: u64) -> Extent {
        self.0.config.backend.extent(offset)
    }

    fn describe(&self) -> String {
        self.0.config.backend.describe()
    }
}
