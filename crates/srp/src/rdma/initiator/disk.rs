//! A logical unit as a disk: capacity, read, write, flush, zeroes.
//!
//! Read SBC-3 §5.16 (READ CAPACITY 16), §5.11 (READ 16), §5.37 (WRITE 16), §5.22 (SYNCHRONIZE CACHE 10), §5.42 (WRITE SAME 16),
//! §6.6.4 (block limits), §6.6.6 (logical block provisioning), SPC-4 §6.6 (INQUIRY), §6.11 (MODE SENSE 6).
//! Unit attentions are asked about again, as any driver does, and so are a busy unit and what somebody's task management ended; a
//! request larger than one command is cut.

use std::time::Duration;

use everywire_scsi::cdb::{Command, Io, Size, WriteSame};
use everywire_scsi::limits::{BLOCK_LIMITS, BLOCK_LIMITS_LEN, DiskLimits, PROVISIONING, PROVISIONING_LEN};
use everywire_scsi::target::Residual;
use everywire_scsi::{SenseKey, Status};
use everywire_verbs::MemoryRegion;

use super::association::{Completion, Initiator, IoData};
use super::error::{SrpError, SrpErrorKind};

/// How often a command that met a unit attention, or a busy unit, is sent again.
const ATTEMPTS: usize = 64;
/// READ CAPACITY (16)'s parameter data.
const CAPACITY_LEN: u32 = 32;
/// Bytes of the longest parameter data that is asked for when a disk is opened.
const ASKED_LEN: usize = 64;
const LBPME: u8 = 0x80;
const INQUIRY_LEN: u16 = 36;
/// Mode parameter header of MODE SENSE (6).
const MODE_HEADER_LEN: u16 = 4;
/// FUA is known (SBC-3 §6.4.1).
const DPOFUA: u8 = 0x10;
/// Logical blocks of these sizes are taken.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=1 << 16;

/// What READ CAPACITY says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes of one.
    pub block_size: u32,
    /// Blocks may be given back (LBPME).
    pub thin: bool,
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
    initiator: Initiator,
    lun: u64,
    capacity: Capacity,
    /// FUA is known.
    fua: bool,
    limits: DiskLimits,
}

/// A LUN as information units carry it: peripheral addressing below 256, flat space above (SAM-5 §4.7).
pub fn encode_lun(lun: u16) -> u64 {
    let head = if lun < 256 { lun } else { 0x4000 | lun & 0x3fff };
    u64::from(head) << 48
}

impl Disk {
    pub(super) async fn open(initiator: Initiator, lun: u16) -> Result<Self, SrpError> {
        const STEP: &str = "READ CAPACITY (16)";
        let capacity = Capacity { blocks: 0, block_size: 1, thin: false };
        let limits = DiskLimits::new(&[], &[], capacity.block_size);
        let mut disk = Self { initiator, lun: encode_lun(lun), capacity, fua: false, limits };
        let region = disk.buffer(ASKED_LEN)?;
        let data = IoData::In { region: &region, at: 0, len: CAPACITY_LEN };
        let command = Command::ReadCapacity16 { lba: 0, pmi: false, alloc: CAPACITY_LEN };
        disk.run(STEP, &command, data).await?;
        let bytes = disk.bytes(&region, 0, CAPACITY_LEN as usize)?;
        let (last, size) = match (bytes.first_chunk::<8>(), bytes.get(8..12)) {
            (Some(last), Some(s)) => {
                (u64::from_be_bytes(*last), u32::from_be_bytes([s[0], s[1], s[2], s[3]]))
            }
            _ => return Err(disk.initiator.error(STEP, SrpErrorKind::Protocol("no data".to_owned()))),
        };
        if !size.is_power_of_two() || !BLOCK_SIZES.contains(&size) {
            let what = format!("logical blocks of {size} bytes");
            return Err(disk.initiator.error(STEP, SrpErrorKind::Protocol(what)));
        }
        let thin = bytes[14] & LBPME != 0;
        disk.capacity = Capacity { blocks: last.saturating_add(1), block_size: size, thin };
        disk.fua = disk.knows_fua(&region).await?;
        let limits = disk.vital(&region, BLOCK_LIMITS, BLOCK_LIMITS_LEN).await?;
        let provisioning = disk.vital(&region, PROVISIONING, PROVISIONING_LEN).await?;
        disk.limits = DiskLimits::new(&limits, &provisioning, size);
        Ok(disk)
    }

    /// A page of vital product data; empty of a unit that does not have it.
    async fn vital(&self, region: &MemoryRegion, page: u8, len: u8) -> Result<Vec<u8>, SrpError> {
        let command = Command::Inquiry { evpd: true, page, alloc: len.into() };
        let data = IoData::In { region, at: 0, len: len.into() };
        match self.run("INQUIRY", &command, data).await {
            Ok(done) => {
                let missing = match done.residual {
                    Residual::Under(missing) => missing as usize,
                    _ => 0,
                };
                self.bytes(region, 0, usize::from(len).saturating_sub(missing))
            }
            Err(error) if matches!(*error.kind, SrpErrorKind::Status { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether WRITE may have FUA: a unit that has no mode pages knows none.
    async fn knows_fua(&self, region: &MemoryRegion) -> Result<bool, SrpError> {
        // All pages without block descriptors: of the header only is asked.
        let command = Command::ModeSense {
            size: Size::Six,
            llbaa: false,
            dbd: true,
            control: 0,
            page: 0x3f,
            subpage: 0,
            alloc: MODE_HEADER_LEN,
        };
        let data = IoData::In { region, at: 0, len: MODE_HEADER_LEN.into() };
        match self.run("MODE SENSE (6)", &command, data).await {
            Ok(_) => Ok(self.bytes(region, 0, MODE_HEADER_LEN.into())?[2] & DPOFUA != 0),
            Err(error) if matches!(*error.kind, SrpErrorKind::Status { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Its size.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The initiator it is reached by.
    pub fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    /// Its number, as information units carry it.
    pub fn lun(&self) -> u64 {
        self.lun
    }

    /// Registered memory.
    ///
    /// # Errors
    /// The device has none.
    pub fn buffer(&self, len: usize) -> Result<MemoryRegion, SrpError> {
        self.initiator.buffer(len)
    }

    fn bytes(&self, region: &MemoryRegion, at: usize, len: usize) -> Result<Vec<u8>, SrpError> {
        region.read_vec(at, len).map_err(|error| self.initiator.error("reading a buffer", error.into()))
    }

    /// A command that must succeed.
    ///
    /// # Errors
    /// No status, or another than GOOD.
    pub async fn run(
        &self,
        what: &'static str,
        command: &Command,
        data: IoData<'_>,
    ) -> Result<Completion, SrpError> {
        let cdb = command.emit();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let done = match self.initiator.execute(self.lun, cdb.as_bytes(), data).await {
                Err(error) if matches!(*error.kind, SrpErrorKind::Aborted) && attempts < ATTEMPTS => continue,
                other => other?,
            };
            let again = match done.status {
                Status::GOOD => return Ok(done),
                Status::BUSY | Status::TASK_SET_FULL | Status::TASK_ABORTED => true,
                Status::CHECK_CONDITION => done.sense_key() == Some(SenseKey::UNIT_ATTENTION),
                _ => false,
            };
            if !again || attempts == ATTEMPTS {
                let kind = SrpErrorKind::Status { status: done.status, sense: done.sense };
                return Err(self.initiator.error(what, kind));
            }
            if done.status != Status::CHECK_CONDITION {
                self.initiator.pause(Duration::from_millis(1)).await;
            }
        }
    }

    fn range(&self, offset: u64, len: u64) -> Result<u64, SrpError> {
        let block = u64::from(self.capacity.block_size);
        let end = offset.checked_add(len).filter(|&end| end <= self.capacity.bytes());
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) || end.is_none() {
            let size = self.capacity.bytes();
            let text = format!("{len} bytes at {offset}: whole blocks of {block} bytes within {size}");
            return Err(self.initiator.error("request", SrpErrorKind::Argument(text)));
        }
        Ok(offset / block)
    }

    fn io(&self, lba: u64, bytes: u64) -> Io {
        Io::new(Size::Sixteen, lba, (bytes / u64::from(self.capacity.block_size)) as u32)
    }

    /// Reads `len` bytes from byte `offset` into `region` from `at`; whole blocks.
    ///
    /// # Errors
    /// See [`SrpErrorKind`].
    pub async fn read_into(
        &self,
        offset: u64,
        region: &MemoryRegion,
        at: usize,
        len: usize,
    ) -> Result<(), SrpError> {
        const STEP: &str = "READ (16)";
        let lba = self.range(offset, len as u64)?;
        let mut done = 0;
        while done < len as u64 {
            let piece = (len as u64 - done).min(self.limits.transfer);
            let command = Command::Read(self.io(lba + done / u64::from(self.capacity.block_size), piece));
            let data = IoData::In { region, at: at + done as usize, len: piece as u32 };
            let completion = self.run(STEP, &command, data).await?;
            if completion.residual != Residual::None {
                let what = format!("{:?} of {piece} bytes", completion.residual);
                return Err(self.initiator.error(STEP, SrpErrorKind::Protocol(what)));
            }
            done += piece;
        }
        Ok(())
    }

    /// Writes `len` bytes of `region` from `at` to byte `offset`; whole blocks. With `fua` they are on the medium then: with
    /// FUA, and where a unit does not know that, with a flush behind them.
    ///
    /// # Errors
    /// See [`SrpErrorKind`].
    pub async fn write_from(
        &self,
        offset: u64,
        region: &MemoryRegion,
        at: usize,
        len: usize,
        fua: bool,
    ) -> Result<(), SrpError> {
        let lba = self.range(offset, len as u64)?;
        let mut done = 0;
        while done < len as u64 {
            let piece = (len as u64 - done).min(self.limits.transfer);
            let io = self.io(lba + done / u64::from(self.capacity.block_size), piece);
            let data = IoData::Out { region, at: at + done as usize, len: piece as u32 };
            self.run("WRITE (16)", &Command::Write(Io { fua: fua && self.fua, ..io }), data).await?;
            done += piece;
        }
        if fua && !self.fua { self.flush().await } else { Ok(()) }
    }

    /// Reads `len` bytes from byte `offset`.
    ///
    /// # Errors
    /// See [`SrpErrorKind`].
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, SrpError> {
        let region = self.buffer(len)?;
        self.read_into(offset, &region, 0, len).await?;
        self.bytes(&region, 0, len)
    }

    /// Writes at byte `offset`.
    ///
    /// # Errors
    /// See [`SrpErrorKind`].
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), SrpError> {
        let region = self.buffer(data.len())?;
        region.write_at(0, data).map_err(|error| self.initiator.error("filling a buffer", error.into()))?;
        self.write_from(offset, &region, 0, data.len(), false).await
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// See [`SrpErrorKind`].
    pub async fn flush(&self) -> Result<(), SrpError> {
        let command =
            Command::SynchronizeCache { size: Size::Ten, immed: false, lba: 0, blocks: 0, group: 0 };
        self.run("SYNCHRONIZE CACHE (10)", &command, IoData::None).await.map(drop)
    }

    /// Makes `len` bytes from byte `offset` zeroes; `unmap` allows giving the space back.
    ///
    /// # Errors
    /// See [`SrpErrorKind`].
    pub async fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), SrpError> {
        let lba = self.range(offset, len)?;
        let block = u64::from(self.capacity.block_size);
        let region = self.buffer(block as usize)?;
        let mut done = 0;
        while done < len / block {
            let blocks = (len / block - done).min(self.limits.write_same / block);
            let command = Command::WriteSame(WriteSame {
                size: Size::Sixteen,
                lba: lba + done,
                blocks: blocks as u32,
                protect: 0,
                anchor: false,
                unmap: unmap && self.limits.unmaps,
                pbdata_lbdata: 0,
                ndob: false,
                group: 0,
            });
            let data = IoData::Out { region: &region, at: 0, len: block as u32 };
            self.run("WRITE SAME (16)", &command, data).await?;
            done += blocks;
        }
        Ok(())
    }

    /// Standard INQUIRY data: vendor, product, revision.
    ///
    /// # Errors
    /// See [`SrpErrorKind`].
    pub async fn inquiry(&self) -> Result<[String; 3], SrpError> {
        let region = self.buffer(INQUIRY_LEN.into())?;
        let data = IoData::In { region: &region, at: 0, len: INQUIRY_LEN.into() };
        let command = Command::Inquiry { evpd: false, page: 0, alloc: INQUIRY_LEN };
        self.run("INQUIRY", &command, data).await?;
        let bytes = self.bytes(&region, 0, INQUIRY_LEN.into())?;
        let text = |at: usize, len: usize| String::from_utf8_lossy(&bytes[at..at + len]).trim().to_owned();
        Ok([text(8, 8), text(16, 16), text(32, 4)])
    }
}
