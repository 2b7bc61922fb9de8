//! VERIFY, COMPARE AND WRITE, ORWRITE: commands that hold the medium against data. SBC-3 §5.2, §5.7, §5.34.
//!
//! COMPARE AND WRITE and ORWRITE are atomic towards every other command of the logical unit, because the task set keeps
//! their blocks from others while they run.

use everywire_block::IoBuf;

use super::run::{Done, Run};
use super::rw::STEP;
use crate::cdb::Io;
use crate::sense::{Asc, Failure, Sense, SenseKey};

/// MISCOMPARE DURING VERIFY OPERATION; INFORMATION is where the data first differ.
fn miscompare(information: u64) -> Failure {
    Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY).with_information(information).into()
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a != b)
}

impl Run<'_> {
    pub(super) async fn verify(&self, io: Io) -> Result<Done, Failure> {
        if io.bytchk != 0 {
            self.whole()?;
        }
        let len = self.unit.bytes(io.blocks.into());
        match io.bytchk {
            0 => self.scan(self.unit.bytes(io.lba), len).await?,
            _ => self.compare(io.lba, self.memory, len).await?,
        }
        Ok(Done::GOOD)
    }

    /// Holds `len` bytes from `lba` against the data, which repeat where they are shorter.
    pub(super) async fn compare(&self, lba: u64, wanted: &IoBuf, len: u64) -> Result<(), Failure> {
        let block = u64::from(self.unit.geometry.block_size);
        let repeats = self.plan.out == block;
        let mut at = 0;
        while at < len {
            let step = (len - at).min(STEP);
            let stored = self.load(self.unit.bytes(lba) + at, step).await?;
            let mut expected = vec![0; if repeats { block } else { step } as usize];
            wanted.load(if repeats { 0 } else { at as usize }, &mut expected);
            for (i, piece) in stored.chunks(expected.len()).enumerate() {
                if let Some(differs) = first_difference(piece, &expected) {
                    let byte = at + (i * expected.len() + differs) as u64;
                    return Err(miscompare(lba + byte / block));
                }
            }
            at += step;
        }
        Ok(())
    }

    pub(super) async fn compare_and_write(&self, io: Io) -> Result<Done, Failure> {
        self.whole()?;
        if io.blocks == 0 {
            return Ok(Done::GOOD);
        }
        let (offset, half) = (self.unit.bytes(io.lba), self.unit.bytes(io.blocks.into()));
        let stored = self.load(offset, half).await?;
        let mut expected = vec![0; half as usize];
        self.memory.load(0, &mut expected);
        if let Some(differs) = first_difference(&stored, &expected) {
            // SBC-3 §5.2: the offset of the first byte that differs.
            return Err(miscompare(differs as u64));
        }
        self.memory.load(half as usize, &mut expected);
        self.save(offset, expected, io.fua).await?;
        Ok(Done::GOOD)
    }

    pub(super) async fn or_write(&self, io: Io) -> Result<Done, Failure> {
        self.whole()?;
        if io.blocks == 0 {
            return Ok(Done::GOOD);
        }
        let (offset, len) = (self.unit.bytes(io.lba), self.unit.bytes(io.blocks.into()));
        let mut bytes = self.load(offset, len).await?;
        let mut new = vec![0; len as usize];
        self.memory.load(0, &mut new);
        bytes.iter_mut().zip(new).for_each(|(byte, new)| *byte |= new);
        self.save(offset, bytes, io.fua).await?;
        Ok(Done::GOOD)
    }
}
