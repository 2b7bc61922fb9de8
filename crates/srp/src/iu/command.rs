//! SRP_CMD and SRP_TSK_MGMT. SRP r16a §6.9 and §6.7.

use super::field::{Reader, put};
use super::{Buffer, IuError, code};

const CMD_LEN: usize = 48;
const TSK_MGMT_LEN: usize = 48;
const CDB: usize = 16;
/// Longest CDB: what ADDITIONAL CDB LENGTH can say, in words of 4 bytes.
pub const MAX_CDB: usize = CDB + 63 * 4;

/// SRP_CMD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Its tag.
    pub tag: u64,
    /// Solicited notification of the response: bit 1 of a good one, bit 2 of any other.
    pub solicited: u8,
    /// Logical unit number, as SAM-5 writes it.
    pub lun: u64,
    /// Task attribute: 0 simple, 1 head of queue, 2 ordered, 4 ACA.
    pub attribute: u8,
    /// CDB: 16 bytes, more in steps of 4.
    pub cdb: Vec<u8>,
    /// Data to the target.
    pub out: Buffer,
    /// Data from it.
    pub into: Buffer,
}

impl Command {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        const IU: &str = "SRP_CMD";
        let r = Reader::new(IU, bytes, CMD_LEN)?;
        let (formats, out_count, in_count) = (r.u8(5), r.u8(6), r.u8(7));
        // The two low bits are reserved; the field counts words of 4 bytes.
        let after_cdb = CMD_LEN + usize::from(r.u8(31) & !3);
        Reader::new(IU, bytes, after_cdb)?;
        let (out, at) = Buffer::parse(bytes, after_cdb, formats >> 4, out_count, IU)?
            .ok_or(IuError::DataOutFormat(formats >> 4))?;
        let (into, _) = Buffer::parse(bytes, at, formats & 0xf, in_count, IU)?
            .filter(|(into, _)| !matches!(into, Buffer::Immediate { .. }))
            .ok_or(IuError::DataInFormat(formats & 0xf))?;
        Ok(Self {
            tag: r.u64(8),
            solicited: r.u8(1),
            lun: r.u64(20),
            attribute: r.u8(29) & 7,
            cdb: bytes[CMD_LEN - CDB..after_cdb].to_vec(),
            out,
            into,
        })
    }

    /// Its bytes; immediate data come after them, at their offset. A CDB beyond [`MAX_CDB`] is cut.
    pub fn emit(&self) -> Vec<u8> {
        let cdb = &self.cdb[..self.cdb.len().min(MAX_CDB)];
        let more = cdb.len().saturating_sub(CDB).next_multiple_of(4);
        let mut b = vec![0; CMD_LEN + more];
        b[0] = code::CMD;
        b[1] = self.solicited;
        put(&mut b, 5, [self.out.format() << 4 | self.into.format(), self.out.count(), self.into.count()]);
        put(&mut b, 8, self.tag.to_be_bytes());
        put(&mut b, 20, self.lun.to_be_bytes());
        b[29] = self.attribute;
        b[31] = more as u8;
        b[CMD_LEN - CDB..][..cdb.len()].copy_from_slice(cdb);
        self.out.emit(&mut b);
        self.into.emit(&mut b);
        b
    }
}

/// A task management function code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// ABORT TASK.
    AbortTask,
    /// ABORT TASK SET.
    AbortTaskSet,
    /// CLEAR TASK SET.
    ClearTaskSet,
    /// LOGICAL UNIT RESET.
    LunReset,
    /// CLEAR ACA.
    ClearAca,
    /// Any other code.
    Unknown(u8),
}

impl Function {
    fn of(code: u8) -> Self {
        match code {
            0x01 => Self::AbortTask,
            0x02 => Self::AbortTaskSet,
            0x04 => Self::ClearTaskSet,
            0x08 => Self::LunReset,
            0x40 => Self::ClearAca,
            other => Self::Unknown(other),
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::AbortTask => 0x01,
            Self::AbortTaskSet => 0x02,
            Self::ClearTaskSet => 0x04,
            Self::LunReset => 0x08,
            Self::ClearAca => 0x40,
            Self::Unknown(code) => code,
        }
    }
}

/// SRP_TSK_MGMT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskManagement {
    /// Its tag.
    pub tag: u64,
    /// Solicited notification, as in a command.
    pub solicited: u8,
    /// Logical unit number.
    pub lun: u64,
    /// What to do.
    pub function: Function,
    /// Tag of the task to abort.
    pub task_tag: u64,
}

impl TaskManagement {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let r = Reader::new("SRP_TSK_MGMT", bytes, TSK_MGMT_LEN)?;
        Ok(Self {
            tag: r.u64(8),
            solicited: r.u8(1),
            lun: r.u64(20),
            function: Function::of(r.u8(30)),
            task_tag: r.u64(32),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = vec![0; TSK_MGMT_LEN];
        b[0] = code::TSK_MGMT;
        b[1] = self.solicited;
        put(&mut b, 8, self.tag.to_be_bytes());
        put(&mut b, 20, self.lun.to_be_bytes());
        b[30] = self.function.code();
        put(&mut b, 32, self.task_tag.to_be_bytes());
        b
    }
}
