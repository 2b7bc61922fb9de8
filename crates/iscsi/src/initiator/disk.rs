//! A logical unit as a disk: capacity, read, write, flush.
//!
//! Read SBC-3 §5.16 (READ CAPACITY 16), §5.11 (READ 16), §5.37 (WRITE 16), §5.49 (WRITE SAME 16), §5.22 (SYNCHRONIZE CACHE 10),
//! §6.5.3 (block limits), §6.5.4 (logical block provisioning), SPC-4 §6.6 (INQUIRY), §6.11 (MODE SENSE 6). Unit attentions are asked
//! about again, as any driver does, and so is what somebody's task management ended; a request larger than one command is cut.

use std::ops::Range;

use bytes::Bytes;
use everywire_scsi::limits::{BLOCK_LIMITS, BLOCK_LIMITS_LEN, DiskLimits, PROVISIONING, PROVISIONING_LEN};

use super::{Buffer, Completion, Initiator, IscsiError, Span, Transfer};
use crate::session::initiator::Failure;
use crate::session::scsi::Residual;

/// FUA in byte 1 of WRITE (16).
const FUA: u8 = 0x08;
/// DPOFUA among the device-specific parameters of a disk: it knows FUA (SBC-3 §6.4.1).
const DPOFUA: u8 = 0x10;
/// UNMAP in byte 1 of WRITE SAME (16).
const UNMAP: u8 = 0x08;
/// WP among the device-specific parameters of a disk (SBC-3 §6.4.1).
const WRITE_PROTECTED: u8 = 0x80;
/// How often a command that met a unit attention, or a busy unit, is sent again.
const ATTEMPTS: usize = 16;
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;
const TASK_ABORTED: u8 = 0x40;
const UNIT_ATTENTION: u8 = 6;

/// What READ CAPACITY says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes of one.
    pub block_size: u32,
}

impl Capacity {
    /// In bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_size))
    }
}

/// A logical unit.
#[derive(Clone)]
pub struct Disk {
    session: Initiator,
    lun: u64,
    capacity: Capacity,
    /// FUA is known.
    fua: bool,
    limits: DiskLimits,
}

/// A LUN as PDUs carry it: peripheral addressing below 256, flat space above (SAM-5 §4.7).
pub(super) fn encode_lun(lun: u16) -> u64 {
    let head = if lun < 256 { lun } else { 0x4000 | lun & 0x3fff };
    u64::from(head) << 48
}

impl Disk {
    pub(super) async fn open(session: Initiator, lun: u16) -> Result<Disk, IscsiError> {
        let capacity = Capacity { blocks: 0, block_size: 1 };
        let lun = encode_lun(lun);
        let limits = DiskLimits::new(&[], &[], capacity.block_size);
        let mut disk = Disk { session, lun, capacity, fua: false, limits };
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
        let data = disk.run("READ CAPACITY (16)", &cdb, Transfer::In(32)).await?.data;
        let (last, size) = match (data.first_chunk::<8>(), data.get(8..12)) {
            (Some(last), Some(size)) => {
                (u64::from_be_bytes(*last), u32::from_be_bytes([size[0], size[1], size[2], size[3]]))
            }
            _ => return Err(IscsiError::Protocol("READ CAPACITY (16) gave too few bytes".to_owned())),
        };
        if !size.is_power_of_two() || !(512..=1 << 16).contains(&size) {
            return Err(IscsiError::Protocol(format!("logical blocks of {size} bytes")));
        }
        disk.capacity = Capacity { blocks: last.saturating_add(1), block_size: size };
        disk.fua = match disk.device_specific().await {
            Ok(specific) => specific & DPOFUA != 0,
            // It has no mode pages.
            Err(IscsiError::Status { .. }) => false,
            Err(lost) => return Err(lost),
        };
        let limits = disk.vital(BLOCK_LIMITS, BLOCK_LIMITS_LEN).await?;
        let provisioning = disk.vital(PROVISIONING, PROVISIONING_LEN).await?;
        disk.limits = DiskLimits::new(&limits, &provisioning, size);
        Ok(disk)
    }

    /// A page of vital product data; empty of a unit that does not have it.
    async fn vital(&self, page: u8, len: u8) -> Result<Vec<u8>, IscsiError> {
        let cdb = [0x12, 1, page, 0, len, 0];
        match self.run("INQUIRY", &cdb, Transfer::In(len.into())).await {
            Ok(done) => Ok(done.data),
            Err(IscsiError::Status { .. }) => Ok(Vec::new()),
            Err(lost) => Err(lost),
        }
    }

    /// Its size.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Any CDB, once.
    ///
    /// # Errors
    /// No status came.
    pub async fn execute(&self, cdb: &[u8], transfer: Transfer) -> Result<Completion, IscsiError> {
        self.session.execute(self.lun, cdb, transfer).await
    }

    /// A command that must succeed.
    async fn run(
        &self,
        what: &'static str,
        cdb: &[u8],
        transfer: Transfer,
    ) -> Result<Completion, IscsiError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let done =
                match self.session.work.command(self.lun, cdb, transfer.clone(), None)?.completion().await {
                    Err(IscsiError::Request(Failure::Aborted)) if attempts < ATTEMPTS => continue,
                    other => other?,
                };
            let again = match done.status {
                0 => return Ok(done),
                BUSY | TASK_SET_FULL | TASK_ABORTED => true,
                CHECK_CONDITION => sense_key(&done.sense) == Some(UNIT_ATTENTION),
                _ => false,
            };
            if !again || attempts == ATTEMPTS {
                return Err(IscsiError::Status { what, status: done.status, sense: done.sense });
            }
        }
    }

    fn range(&self, offset: u64, len: usize) -> Result<u64, IscsiError> {
        let block = u64::from(self.capacity.block_size);
        let end = offset.checked_add(len as u64).filter(|&end| end <= self.capacity.bytes());
        if !offset.is_multiple_of(block) || !(len as u64).is_multiple_of(block) || end.is_none() {
            let text = format!(
                "{len} bytes at {offset}: whole blocks of {block} bytes within {}",
                self.capacity.bytes()
            );
            return Err(IscsiError::Argument(text));
        }
        Ok(offset / block)
    }

    /// The commands that a request is cut into: the first block of each, and what it is of the request's bytes.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<impl Iterator<Item = (u64, Range<usize>)> + use<>, IscsiError> {
        let first = self.range(offset, len)?;
        let (block, most) = (self.capacity.block_size as usize, self.limits.transfer as usize);
        let piece = move |at| (first + (at / block) as u64, at..len.min(at + most));
        Ok((0..len).step_by(most).map(piece))
    }

    fn cdb(&self, opcode: u8, lba: u64, bytes: usize) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&(bytes as u32 / self.capacity.block_size).to_be_bytes());
        cdb
    }

    /// Memory for [`Disk::read_into`] and [`Disk::write_from`].
    ///
    /// # Errors
    /// See [`Initiator::buffer`].
    pub fn buffer(&self, len: usize) -> Result<Buffer, IscsiError> {
        self.session.buffer(len)
    }

    /// Reads `len` bytes from byte `offset`; both whole blocks.
    ///
    /// # Errors
    /// See [`IscsiError`].
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, IscsiError> {
        let mut data = Vec::new();
        for (lba, part) in self.pieces(offset, len)? {
            let mut done = self.read_piece(lba, part.len(), Transfer::In(part.len())).await?;
            // What came first is not copied.
            match data.is_empty() {
                true => data = done,
                false => data.append(&mut done),
            }
        }
        Ok(data)
    }

    /// Reads `len` bytes from byte `offset` into `buffer` from its byte `at`; whole blocks.
    ///
    /// # Errors
    /// See [`IscsiError`].
    pub async fn read_into(
        &self,
        offset: u64,
        buffer: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<(), IscsiError> {
        for (lba, part) in self.pieces(offset, len)? {
            let into = Transfer::Into(Span::new(buffer, at + part.start, part.len()));
            self.read_piece(lba, part.len(), into).await?;
        }
        Ok(())
    }

    async fn read_piece(&self, lba: u64, len: usize, transfer: Transfer) -> Result<Vec<u8>, IscsiError> {
        let done = self.run("READ (16)", &self.cdb(0x88, lba, len), transfer).await?;
        if done.came != len || done.residual != Residual::None {
            let Completion { came, residual, .. } = done;
            let text = format!("READ (16) gave {came} bytes of {len}, residual {residual:?}");
            return Err(IscsiError::Protocol(text));
        }
        Ok(done.data)
    }

    /// Writes at byte `offset`; whole blocks.
    ///
    /// # Errors
    /// See [`IscsiError`].
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), IscsiError> {
        self.write_with(offset, data, 0).await
    }

    /// The same, durable when it is complete: with FUA, and where a unit does not know that, with a flush behind it.
    ///
    /// # Errors
    /// See [`IscsiError`].
    pub async fn write_through(&self, offset: u64, data: Bytes) -> Result<(), IscsiError> {
        if self.fua {
            return self.write_with(offset, data, FUA).await;
        }
        self.write(offset, data).await?;
        self.flush().await
    }

    /// Writes `len` bytes of `buffer` from its byte `at` to byte `offset`; whole blocks. With `fua` they are durable then.
    ///
    /// # Errors
    /// See [`IscsiError`].
    pub async fn write_from(
        &self,
        offset: u64,
        buffer: &Buffer,
        at: usize,
        len: usize,
        fua: bool,
    ) -> Result<(), IscsiError> {
        for (lba, part) in self.pieces(offset, len)? {
            let from = Transfer::From(Span::new(buffer, at + part.start, part.len()));
            self.write_piece(lba, part.len(), from, if fua && self.fua { FUA } else { 0 }).await?;
        }
        if fua && !self.fua { self.flush().await } else { Ok(()) }
    }

    async fn write_with(&self, offset: u64, data: Bytes, flags: u8) -> Result<(), IscsiError> {
        for (lba, part) in self.pieces(offset, data.len())? {
            self.write_piece(lba, part.len(), Transfer::Out(data.slice(part)), flags).await?;
        }
        Ok(())
    }

    async fn write_piece(
        &self,
        lba: u64,
        len: usize,
        transfer: Transfer,
        flags: u8,
    ) -> Result<(), IscsiError> {
        let mut cdb = self.cdb(0x8a, lba, len);
        cdb[1] = flags;
        self.run("WRITE (16)", &cdb, transfer).await.map(drop)
    }

    /// Writes zeroes to whole blocks; `unmap` lets the unit take their space back, if it can.
    ///
    /// # Errors
    /// See [`IscsiError`]. A unit may know no WRITE SAME.
    pub async fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), IscsiError> {
        let size = usize::try_from(len).map_err(|_| IscsiError::Argument(format!("{len} bytes")))?;
        let mut lba = self.range(offset, size)?;
        let block = Bytes::from(vec![0; self.capacity.block_size as usize]);
        let mut rest = len;
        while rest > 0 {
            let piece = rest.min(self.limits.write_same);
            let mut cdb = self.cdb(0x93, lba, piece as usize);
            cdb[1] = if unmap && self.limits.unmaps { UNMAP } else { 0 };
            self.run("WRITE SAME (16)", &cdb, Transfer::Out(block.clone())).await?;
            lba += piece / u64::from(self.capacity.block_size);
            rest -= piece;
        }
        Ok(())
    }

    /// Whether writes are refused.
    ///
    /// # Errors
    /// See [`IscsiError`].
    pub async fn is_read_only(&self) -> Result<bool, IscsiError> {
        Ok(self.device_specific().await? & WRITE_PROTECTED != 0)
    }

    /// The device-specific parameters of the mode parameter header.
    async fn device_specific(&self) -> Result<u8, IscsiError> {
        // All pages without block descriptors: of the header only is asked.
        let done = self.run("MODE SENSE (6)", &[0x1a, 0x08, 0x3f, 0, 4, 0], Transfer::In(4)).await?;
        Ok(done.data.get(2).copied().unwrap_or_default())
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// See [`IscsiError`].
    pub async fn flush(&self) -> Result<(), IscsiError> {
        let mut cdb = [0; 10];
        cdb[0] = 0x35;
        self.run("SYNCHRONIZE CACHE (10)", &cdb, Transfer::None).await.map(drop)
    }
}

fn sense_key(sense: &[u8]) -> Option<u8> {
    match sense {
        [0x70 | 0x71, _, key, ..] | [0x72 | 0x73, key, ..] => Some(key & 15),
        _ => None,
    }
}
