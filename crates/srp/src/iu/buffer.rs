//! Data buffer descriptors: none, direct, indirect with a table in the information unit or in the initiator's memory, and
//! Linux's immediate data. SRP r16a §5.6; SRP2 for immediate data.

use super::IuError;
use super::field::{Reader, put};

/// Most entries of an indirect table: Linux sends up to 2048.
pub const MAX_DESCRIPTORS: usize = 4096;

/// Format codes of SRP_CMD.
const NONE: u8 = 0;
const DIRECT: u8 = 1;
const INDIRECT: u8 = 2;
const IMMEDIATE: u8 = 3;
/// The table's own descriptor, then the length of the data.
const INDIRECT_LEN: usize = Descriptor::LEN + 4;
const IMMEDIATE_LEN: usize = 4;

/// Memory of the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Virtual address.
    pub addr: u64,
    /// R_Key.
    pub key: u32,
    /// Bytes.
    pub len: u32,
}

impl Descriptor {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    fn get(r: &Reader<'_>, at: usize) -> Self {
        Self { addr: r.u64(at), key: r.u32(at + 8), len: r.u32(at + 12) }
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put(&mut b, 0, self.addr.to_be_bytes());
        put(&mut b, 8, self.key.to_be_bytes());
        put(&mut b, 12, self.len.to_be_bytes());
        b
    }
}

/// The descriptors of a fetched table.
///
/// # Errors
/// Not whole descriptors, or too many.
pub fn parse_table(bytes: &[u8]) -> Result<Vec<Descriptor>, IuError> {
    let count = table_entries(bytes.len() as u32)?;
    let r = Reader::new("indirect table", bytes, count * Descriptor::LEN)?;
    Ok((0..count).map(|i| Descriptor::get(&r, i * Descriptor::LEN)).collect())
}

fn table_entries(bytes: u32) -> Result<usize, IuError> {
    let count = bytes as usize / Descriptor::LEN;
    if !(bytes as usize).is_multiple_of(Descriptor::LEN) || count > MAX_DESCRIPTORS {
        return Err(IuError::Table(bytes));
    }
    Ok(count)
}

/// An indirect buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Indirect {
    /// Where the whole table is.
    pub table: Descriptor,
    /// Bytes of data that it describes.
    pub len: u32,
    /// Its first entries, as far as the information unit has them.
    pub inline: Vec<Descriptor>,
}

impl Indirect {
    /// Entries of the whole table.
    pub fn entries(&self) -> usize {
        self.table.len as usize / Descriptor::LEN
    }

    /// Whether the information unit has all of it.
    pub fn is_whole(&self) -> bool {
        self.inline.len() == self.entries()
    }
}

/// Where the data of one direction are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Buffer {
    /// There are none.
    #[default]
    None,
    /// In one piece.
    Direct(Descriptor),
    /// In pieces.
    Indirect(Indirect),
    /// In the information unit, at the offset that the login said.
    Immediate {
        /// Bytes.
        len: u32,
    },
}

impl Buffer {
    /// Bytes of data.
    pub fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Direct(descriptor) => descriptor.len,
            Self::Indirect(indirect) => indirect.len,
            Self::Immediate { len } => *len,
        }
    }

    /// Whether there are no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn format(&self) -> u8 {
        match self {
            Self::None => NONE,
            Self::Direct(_) => DIRECT,
            Self::Indirect(_) => INDIRECT,
            Self::Immediate { .. } => IMMEDIATE,
        }
    }

    /// DATA-OUT or DATA-IN BUFFER DESCRIPTOR COUNT.
    pub(super) fn count(&self) -> u8 {
        match self {
            Self::Indirect(indirect) => indirect.inline.len() as u8,
            _ => 0,
        }
    }

    /// Reads one at `at`, if `format` is known; gives where it ends.
    pub(super) fn parse(
        bytes: &[u8],
        at: usize,
        format: u8,
        count: u8,
        iu: &'static str,
    ) -> Result<Option<(Self, usize)>, IuError> {
        Ok(Some(match format {
            NONE => (Self::None, at),
            DIRECT => {
                let end = at + Descriptor::LEN;
                (Self::Direct(Descriptor::get(&Reader::new(iu, bytes, end)?, at)), end)
            }
            INDIRECT => {
                let inline = usize::from(count);
                let first = at + INDIRECT_LEN;
                let end = first + inline * Descriptor::LEN;
                let r = Reader::new(iu, bytes, end)?;
                let table = Descriptor::get(&r, at);
                let all = table_entries(table.len)?;
                if inline > all {
                    return Err(IuError::Inline { inline, all });
                }
                let inline = (0..inline).map(|i| Descriptor::get(&r, first + i * Descriptor::LEN)).collect();
                (Self::Indirect(Indirect { table, len: r.u32(at + Descriptor::LEN), inline }), end)
            }
            IMMEDIATE => {
                let end = at + IMMEDIATE_LEN;
                (Self::Immediate { len: Reader::new(iu, bytes, end)?.u32(at) }, end)
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn emit(&self, into: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Direct(descriptor) => into.extend(descriptor.to_bytes()),
            Self::Indirect(indirect) => {
                into.extend(indirect.table.to_bytes());
                into.extend(indirect.len.to_be_bytes());
                indirect.inline.iter().for_each(|descriptor| into.extend(descriptor.to_bytes()));
            }
            Self::Immediate { len } => into.extend(len.to_be_bytes()),
        }
    }
}
