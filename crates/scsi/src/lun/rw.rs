//! READ, WRITE, WRITE AND VERIFY, WRITE SAME. SBC-3 §5.8 and on.
//!
//! What the initiator would not take or send whole is cut (SAM-5 §5.4.2): of a read the first bytes go, of a write the
//! blocks that came whole are written. WRITE SAME of zeroes is the backend's write-zeroes.

use everywire_block::{IoBuf, SharedBuffer};

use super::background::give_way;
use super::flag;
use super::run::{Done, Run};
use crate::cdb::{Io, WriteSame};
use crate::sense::Failure;

/// Bytes of one step of a command that repeats a block or reads without giving.
pub(super) const STEP: u64 = 1 << 20;

impl Run<'_> {
    pub(super) async fn read(&self, io: Io) -> Result<Done, Failure> {
        let backend = &self.unit.config.backend;
        if io.fua && self.unit.is(flag::WRITE_BACK) {
            // SBC-3 §5.9: from the medium, so that what a cache has goes there first.
            self.judged(backend.flush().await)?;
        }
        let block = u64::from(self.unit.geometry.block_size);
        let whole = self.into / block * block;
        if whole != 0 {
            let memory = self.memory.slice(0, whole as usize);
            self.judged(backend.read(self.unit.bytes(io.lba), &memory).await)?;
        }
        if whole < self.into {
            let last = self.load(self.unit.bytes(io.lba) + whole, block).await?;
            self.memory.store(whole as usize, &last[..(self.into - whole) as usize]);
        }
        Ok(Done::data(self.plan.into))
    }

    pub(super) async fn write(&self, io: Io) -> Result<Done, Failure> {
        let memory = self.blocks_that_came();
        if !memory.is_empty() {
            let through = self.unit.through(io.fua);
            self.judged(self.unit.config.backend.write(self.unit.bytes(io.lba), &memory, through).await)?;
        }
        Ok(Done::GOOD)
    }

    fn blocks_that_came(&self) -> IoBuf {
        let block = u64::from(self.unit.geometry.block_size);
        self.memory.slice(0, (self.out / block * block) as usize)
    }

    pub(super) async fn write_and_verify(&self, io: Io) -> Result<Done, Failure> {
        let memory = self.blocks_that_came();
        if memory.is_empty() {
            return Ok(Done::GOOD);
        }
        // What is verified is what the medium has.
        self.judged(self.unit.config.backend.write(self.unit.bytes(io.lba), &memory, true).await)?;
        if io.bytchk == 0 {
            self.scan(self.unit.bytes(io.lba), memory.len() as u64).await?;
        } else {
            self.compare(io.lba, &memory, memory.len() as u64).await?;
        }
        Ok(Done::GOOD)
    }

    pub(super) async fn write_same(&self, same: WriteSame) -> Result<Done, Failure> {
        self.whole()?;
        let (unit, backend) = (self.unit, &self.unit.config.backend);
        let (offset, len) = (unit.bytes(same.lba), unit.bytes(same.blocks.into()));
        let mut block = vec![0; unit.geometry.block_size as usize];
        if !same.ndob {
            self.memory.load(0, &mut block);
        }
        if block.iter().all(|&byte| byte == 0) {
            let mut at = 0;
            while at < len {
                let step = (len - at).min(64 * STEP);
                self.judged(backend.write_zeroes(offset + at, step, same.unmap).await)?;
                at += step;
            }
            self.on_medium().await?;
        } else {
            fill(self, offset, len, &block).await?;
        }
        Ok(Done::GOOD)
    }

    /// Behind what changed the medium without a way to write through: durable, where there is no write-back cache.
    pub(super) async fn on_medium(&self) -> Result<(), Failure> {
        if self.unit.through(false) {
            self.judged(self.unit.config.backend.flush().await)?;
        }
        Ok(())
    }

    /// Bytes of the medium.
    pub(super) async fn load(&self, offset: u64, len: u64) -> Result<Vec<u8>, Failure> {
        let buffer = SharedBuffer::new(vec![0; len as usize]);
        self.judged(self.unit.config.backend.read(offset, &buffer.io()).await)?;
        Ok(buffer.to_vec())
    }

    /// Puts bytes on the medium.
    pub(super) async fn save(&self, offset: u64, bytes: Vec<u8>, fua: bool) -> Result<(), Failure> {
        let buffer = SharedBuffer::new(bytes);
        let through = self.unit.through(fua);
        self.judged(self.unit.config.backend.write(offset, &buffer.io(), through).await)
    }

    /// Reads without looking: that the medium can be read is all that is asked.
    pub(super) async fn scan(&self, offset: u64, len: u64) -> Result<(), Failure> {
        let mut at = 0;
        while at < len {
            let step = (len - at).min(STEP);
            self.load(offset + at, step).await?;
            at += step;
            if at < len {
                give_way().await;
            }
        }
        Ok(())
    }
}

/// Writes `block` over and over.
pub(super) async fn fill(run: &Run<'_>, offset: u64, len: u64, block: &[u8]) -> Result<(), Failure> {
    let pattern = SharedBuffer::new(block.repeat(STEP as usize / block.len())).io();
    let through = run.unit.through(false);
    let mut at = 0;
    while at < len {
        let step = (len - at).min(pattern.len() as u64);
        let piece = pattern.slice(0, step as usize);
        run.judged(run.unit.config.backend.write(offset + at, &piece, through).await)?;
        at += step;
        if at < len {
            give_way().await;
        }
    }
    Ok(())
}
