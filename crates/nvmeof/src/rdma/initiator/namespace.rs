//! I/O on a namespace: whole-block commands on registered buffers, and byte ranges for convenience.

use std::collections::VecDeque;
use std::rc::Rc;

use everywire_verbs::rt::JoinHandle;
use everywire_verbs::{Access, MemoryRegion, VerbsError};
use uuid::Uuid;

use super::controller::{Controller, Inner, IoData, step};
use super::error::{NvmeError, NvmeErrorKind};
use crate::pdu::command::WRITE_ZEROES_DEALLOCATE;
use crate::pdu::identify::{self, IdentifyController, IdentifyNamespace};
use crate::pdu::sgl::MAX_KEYED_LEN;
use crate::pdu::{IoOpcode, Sqe};

/// Bytes in one command of a byte-range call, at most.
const PIECE: u32 = 256 << 10;
/// Commands in flight in one byte-range call.
const WINDOW: usize = 8;
/// Blocks in one command at most: NLB has 16 bits.
const MAX_BLOCKS: u64 = 1 << 16;
/// Smallest page of a controller: the unit of MDTS here, where CAP.MPSMIN is 0.
const PAGE: u32 = 4096;

/// What is known of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Identifier.
    pub nsid: u32,
    /// Bytes in a logical block.
    pub block_size: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// UUID, if it has one.
    pub uuid: Option<Uuid>,
    /// NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// EUI-64, if it has one.
    pub eui64: Option<[u8; 8]>,
    /// Writes are refused.
    pub read_only: bool,
    /// Bytes one command may move.
    pub max_transfer: u32,
}

impl NamespaceInfo {
    /// `None` for a format with metadata or an odd block size.
    pub(super) fn new(
        nsid: u32,
        id: &IdentifyNamespace,
        descriptors: &[u8],
        controller: &IdentifyController,
    ) -> Option<Self> {
        let block_size = id.block_size()?;
        if id.metadata_size() != 0 || id.nsze == 0 || id.nsze.checked_mul(block_size.into()).is_none() {
            return None;
        }
        let named = |kind| {
            let found = identify::parse_descriptors(descriptors);
            found.iter().find(|(k, _)| *k == kind).map(|(_, value)| value.to_vec())
        };
        let mdts = match controller.mdts {
            0 => MAX_KEYED_LEN,
            power => PAGE.checked_shl(power.into()).filter(|&size| size != 0).unwrap_or(MAX_KEYED_LEN),
        };
        let max_transfer = mdts.min(MAX_KEYED_LEN) / block_size * block_size;
        Some(Self {
            nsid,
            block_size,
            blocks: id.nsze,
            uuid: named(identify::NIDT_UUID).and_then(|value| Uuid::from_slice(&value).ok()),
            nguid: named(identify::NIDT_NGUID).and_then(|value| value.try_into().ok()),
            eui64: named(identify::NIDT_EUI64).and_then(|value| value.try_into().ok()),
            read_only: id.nsattr & 1 != 0,
            max_transfer,
        })
    }

    /// Capacity in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }
}

/// Registered memory for I/O. Cheap to clone. The controller may reach into it for as long as it lives.
#[derive(Debug, Clone)]
pub struct IoBuffer(MemoryRegion);

impl IoBuffer {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies out of it.
    pub fn read_at(&self, at: usize, into: &mut [u8]) -> Result<(), VerbsError> {
        self.0.read_at(at, into)
    }

    /// Copies into it.
    pub fn write_at(&self, at: usize, from: &[u8]) -> Result<(), VerbsError> {
        self.0.write_at(at, from)
    }
}

/// A namespace of a connected controller. Cheap to clone.
#[derive(Clone)]
pub struct Namespace {
    controller: Controller,
    info: Rc<NamespaceInfo>,
}

impl Namespace {
    pub(super) fn new(controller: Controller, info: NamespaceInfo) -> Self {
        Self { controller, info: Rc::new(info) }
    }

    /// What is known of it.
    pub fn info(&self) -> &NamespaceInfo {
        &self.info
    }

    fn inner(&self) -> &Rc<Inner> {
        self.controller.inner()
    }

    /// Zeroed memory that commands can use.
    pub fn buffer(&self, len: usize) -> Result<IoBuffer, NvmeError> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = self.inner().env.pd.register(len, access);
        Ok(IoBuffer(region.map_err(|error| self.inner().error("registering memory", error.into()))?))
    }

    async fn transfer(
        &self,
        opcode: IoOpcode,
        slba: u64,
        blocks: u32,
        buffer: &IoBuffer,
        at: usize,
        fua: bool,
    ) -> Result<(), NvmeError> {
        let len = u64::from(blocks) * u64::from(self.info.block_size);
        let fits = blocks != 0
            && u64::from(blocks) <= MAX_BLOCKS
            && len <= u64::from(self.info.max_transfer)
            && at as u64 + len <= buffer.len() as u64;
        if !fits {
            let (max, have) = (self.info.max_transfer, buffer.len());
            let what =
                format!("{blocks} blocks at {at}: at most {max} bytes a command, and the buffer has {have}");
            return Err(self.inner().error(step(opcode), NvmeErrorKind::Argument(what)));
        }
        let mut sqe = Sqe::rw(opcode, self.info.nsid, slba, blocks);
        sqe.cdw12 |= u32::from(fua) << 30;
        let outgoing = opcode != IoOpcode::READ;
        let data = IoData { region: &buffer.0, at, len: len as u32, outgoing };
        self.inner().io(step(opcode), sqe, Some(data)).await.map(drop)
    }

    /// Reads `blocks` blocks from `slba` into byte `at` of `buffer`, in one command.
    pub async fn read_blocks(
        &self,
        slba: u64,
        blocks: u32,
        buffer: &IoBuffer,
        at: usize,
    ) -> Result<(), NvmeError> {
        self.transfer(IoOpcode::READ, slba, blocks, buffer, at, false).await
    }

    /// Writes `blocks` blocks at `slba` from byte `at` of `buffer`, in one command; with `fua`, durable when it returns.
    pub async fn write_blocks(
        &self,
        slba: u64,
        blocks: u32,
        buffer: &IoBuffer,
        at: usize,
        fua: bool,
    ) -> Result<(), NvmeError> {
        self.transfer(IoOpcode::WRITE, slba, blocks, buffer, at, fua).await
    }

    /// Compares `blocks` blocks at `slba` with byte `at` of `buffer` on; a difference is Compare Failure.
    pub async fn compare_blocks(
        &self,
        slba: u64,
        blocks: u32,
        buffer: &IoBuffer,
        at: usize,
    ) -> Result<(), NvmeError> {
        self.transfer(IoOpcode::COMPARE, slba, blocks, buffer, at, false).await
    }

    /// Makes completed writes durable.
    pub async fn flush(&self) -> Result<(), NvmeError> {
        let sqe = Sqe::new(IoOpcode::FLUSH.0, self.info.nsid);
        self.inner().io(step(IoOpcode::FLUSH), sqe, None).await.map(drop)
    }

    /// Makes a byte range read as zeroes; whole blocks only. `deallocate` lets the controller give the space back.
    pub async fn write_zeroes(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), NvmeError> {
        let (mut slba, blocks) = self.whole_blocks(IoOpcode::WRITE_ZEROES, offset, len)?;
        let end = slba + blocks;
        while slba < end {
            let count = (end - slba).min(MAX_BLOCKS) as u32;
            let mut sqe = Sqe::rw(IoOpcode::WRITE_ZEROES, self.info.nsid, slba, count);
            sqe.cdw12 |= if deallocate { WRITE_ZEROES_DEALLOCATE } else { 0 };
            self.inner().io(step(IoOpcode::WRITE_ZEROES), sqe, None).await?;
            slba += u64::from(count);
        }
        Ok(())
    }

    fn whole_blocks(&self, opcode: IoOpcode, offset: u64, len: u64) -> Result<(u64, u64), NvmeError> {
        let size = u64::from(self.info.block_size);
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.info.bytes());
        if !offset.is_multiple_of(size) || !len.is_multiple_of(size) || !inside {
            let total = self.info.bytes();
            let what =
                format!("{len} bytes at {offset} are not whole {size}-byte blocks within {total} bytes");
            return Err(self.inner().error(step(opcode), NvmeErrorKind::Argument(what)));
        }
        Ok((offset / size, len / size))
    }

    /// Reads any byte range.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, NvmeError> {
        let size = u64::from(self.info.block_size);
        let end = offset.saturating_add(len as u64);
        let (from, to) = (offset / size * size, end.div_ceil(size).saturating_mul(size));
        self.whole_blocks(IoOpcode::READ, from, to - from)?;
        let buffer = self.buffer((to - from) as usize)?;
        self.pieces(IoOpcode::READ, from, to, &buffer).await?;
        let mut bytes = vec![0; len];
        let copied = buffer.read_at((offset - from) as usize, &mut bytes);
        copied.map_err(|error| self.inner().error(step(IoOpcode::READ), error.into()))?;
        Ok(bytes)
    }

    /// Writes whole blocks.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), NvmeError> {
        self.whole_blocks(IoOpcode::WRITE, offset, bytes.len() as u64)?;
        let buffer = self.buffer(bytes.len())?;
        let copied = buffer.write_at(0, bytes);
        copied.map_err(|error| self.inner().error(step(IoOpcode::WRITE), error.into()))?;
        self.pieces(IoOpcode::WRITE, offset, offset + bytes.len() as u64, &buffer).await
    }

    /// One command a piece, several at once.
    async fn pieces(&self, opcode: IoOpcode, from: u64, to: u64, buffer: &IoBuffer) -> Result<(), NvmeError> {
        let size = u64::from(self.info.block_size);
        let piece = u64::from(PIECE.min(self.info.max_transfer));
        let mut running: VecDeque<JoinHandle<Result<(), NvmeError>>> = VecDeque::new();
        let (mut at, mut result) = (from, Ok(()));
        while at < to || !running.is_empty() {
            if at < to && running.len() < WINDOW && result.is_ok() {
                let (namespace, buffer, n) = (self.clone(), buffer.clone(), piece.min(to - at));
                let (slba, blocks, start) = (at / size, (n / size) as u32, (at - from) as usize);
                running.push_back(self.inner().env.rt.spawn(async move {
                    namespace.transfer(opcode, slba, blocks, &buffer, start, false).await
                }));
                at += n;
                continue;
            }
            let Some(oldest) = running.pop_front() else { break };
            let cancelled = || self.inner().error(step(opcode), NvmeErrorKind::Disconnected);
            result = result.and(oldest.await.unwrap_or_else(|_| Err(cancelled())));
        }
        result
    }
}
