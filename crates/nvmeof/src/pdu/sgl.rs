//! SGL descriptors (16 bytes). NVMe Base 2.0 §4.1.2; for RDMA, NVMe-oF 1.1 §2.3.1 and the RDMA transport §3.
//!
//! Over RDMA data is either in the capsule (data block, offset subtype), in one keyed block of host memory, or in several
//! keyed blocks whose descriptors stand in the capsule (last segment, offset subtype). The raw bytes are kept, because
//! hosts leave bits in reserved bytes.

use super::PduError;
use super::layout::Field;
use super::status::Status;

/// A descriptor as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sgl(pub [u8; 16]);

/// A keyed block of the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Keyed {
    /// Address.
    pub addr: u64,
    /// Length in bytes (24 bits on the wire).
    pub len: u32,
    /// R_Key.
    pub key: u32,
    /// The response must invalidate `key` (subtype Fh).
    pub invalidate: bool,
}

/// What a descriptor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SglKind {
    /// Data in the capsule, `offset` bytes after the in-capsule data offset.
    InCapsule {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A keyed block.
    Keyed(Keyed),
    /// A last segment in the capsule: `len` bytes of descriptors from `offset`.
    LastSegment {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A type and subtype (high and low four bits) that is not used over RDMA.
    Other(u8),
}

/// Largest length of a keyed block, in bytes.
pub const MAX_KEYED_LEN: u32 = (1 << 24) - 1;

const TYPE_DATA_OFFSET: u8 = 0x01;
const TYPE_LAST_SEGMENT_OFFSET: u8 = 0x31;
const TYPE_KEYED: u8 = 0x40;
const TYPE_KEYED_INVALIDATE: u8 = 0x4f;

impl Sgl {
    /// Reads a descriptor.
    pub fn kind(&self) -> SglKind {
        let b = &self.0;
        let (addr, len) = (u64::get(b), u32::get(&b[8..]));
        match b[15] {
            TYPE_DATA_OFFSET => SglKind::InCapsule { offset: addr, len },
            TYPE_LAST_SEGMENT_OFFSET => SglKind::LastSegment { offset: addr, len },
            TYPE_KEYED | TYPE_KEYED_INVALIDATE => SglKind::Keyed(Keyed {
                addr,
                len: len & MAX_KEYED_LEN,
                key: u32::get(&b[11..]),
                invalidate: b[15] == TYPE_KEYED_INVALIDATE,
            }),
            other => SglKind::Other(other),
        }
    }

    /// A descriptor of no data: a keyed block of length 0, as Linux sends.
    pub fn none() -> Self {
        Self::keyed(Keyed::default())
    }

    /// A keyed block. Lengths over [`MAX_KEYED_LEN`] cannot be written down.
    pub fn keyed(block: Keyed) -> Self {
        debug_assert!(block.len <= MAX_KEYED_LEN);
        let mut b = [0; 16];
        block.addr.put(&mut b);
        block.len.put(&mut b[8..]);
        block.key.put(&mut b[11..]);
        b[15] = if block.invalidate { TYPE_KEYED_INVALIDATE } else { TYPE_KEYED };
        Self(b)
    }

    /// Data in the capsule.
    pub fn in_capsule(offset: u64, len: u32) -> Self {
        Self::offset(TYPE_DATA_OFFSET, offset, len)
    }

    /// A segment of `len` bytes of descriptors in the capsule.
    pub fn last_segment(offset: u64, len: u32) -> Self {
        Self::offset(TYPE_LAST_SEGMENT_OFFSET, offset, len)
    }

    fn offset(kind: u8, offset: u64, len: u32) -> Self {
        let mut b = [0; 16];
        offset.put(&mut b);
        len.put(&mut b[8..]);
        b[15] = kind;
        Self(b)
    }
}

impl Field for Sgl {
    const LEN: usize = 16;

    fn get(bytes: &[u8]) -> Self {
        Self(Field::get(bytes))
    }

    fn put(&self, bytes: &mut [u8]) {
        self.0.put(bytes);
    }
}

/// Where a command's data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataPointer {
    /// `len` bytes of the capsule from `offset` bytes after the submission queue entry.
    InCapsule {
        /// Offset in bytes.
        offset: usize,
        /// Length in bytes.
        len: u32,
    },
    /// One block of host memory.
    Keyed(Keyed),
    /// Several blocks of host memory, in order.
    KeyedList(Box<[Keyed]>),
}

impl DataPointer {
    /// Total length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::InCapsule { len, .. } => u64::from(*len),
            Self::Keyed(block) => u64::from(block.len),
            Self::KeyedList(blocks) => blocks.iter().map(|block| u64::from(block.len)).sum(),
        }
    }

    /// True for no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keyed blocks.
    pub fn blocks(&self) -> &[Keyed] {
        match self {
            Self::InCapsule { .. } => &[],
            Self::Keyed(block) => std::slice::from_ref(block),
            Self::KeyedList(blocks) => blocks,
        }
    }

    /// The key that the response must invalidate.
    pub fn invalidate(&self) -> Option<u32> {
        self.blocks().iter().rev().find(|block| block.invalidate).map(|block| block.key)
    }

    /// Resolves the descriptor of a command whose capsule holds `extra` bytes after the entry, for a controller that
    /// takes at most `max_descriptors` (MSDBD) descriptors. `load` copies from the capsule, at an offset after the entry.
    pub fn resolve(
        sgl: &Sgl,
        extra: usize,
        max_descriptors: u8,
        load: impl FnOnce(usize, &mut [u8]),
    ) -> Result<Self, Status> {
        match sgl.kind() {
            SglKind::Keyed(block) => Ok(Self::Keyed(block)),
            SglKind::InCapsule { offset, len } => {
                let offset = in_capsule(offset, len, extra)?;
                Ok(Self::InCapsule { offset, len })
            }
            SglKind::LastSegment { offset, len } => {
                if len == 0 || len % 16 != 0 {
                    return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.dnr());
                }
                if len / 16 > u32::from(max_descriptors) {
                    return Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.dnr());
                }
                let offset = in_capsule(offset, len, extra)?;
                let mut segment = vec![0; len as usize];
                load(offset, &mut segment);
                let blocks = segment.chunks_exact(16).map(|raw| match Sgl::get(raw).kind() {
                    SglKind::Keyed(block) => Ok(block),
                    _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()),
                });
                Ok(Self::KeyedList(blocks.collect::<Result<_, _>>()?))
            }
            SglKind::Other(_) => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()),
        }
    }
}

/// Checks a range of the capsule. NVMe-oF 1.1 §2.3.1: an offset outside it is SGL Offset Invalid.
fn in_capsule(offset: u64, len: u32, have: usize) -> Result<usize, Status> {
    match offset.checked_add(u64::from(len)) {
        Some(end) if end <= have as u64 => Ok(offset as usize),
        _ => Err(Status::SGL_OFFSET_INVALID.dnr()),
    }
}

/// Writes keyed descriptors for a capsule's segment.
pub fn emit_segment(blocks: &[Keyed], into: &mut [u8]) -> Result<usize, PduError> {
    let need = blocks.len() * 16;
    if into.len() < need {
        return Err(PduError::Truncated { what: "SGL segment", need, have: into.len() });
    }
    for (block, raw) in blocks.iter().zip(into.chunks_exact_mut(16)) {
        Sgl::keyed(*block).put(raw);
    }
    Ok(need)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> [u8; 16] {
        std::array::from_fn(|i| u8::from_str_radix(&text[i * 2..i * 2 + 2], 16).expect("hex"))
    }

    fn resolve(sgl: &Sgl, extra: &[u8], max_descriptors: u8) -> Result<DataPointer, Status> {
        let load = |at: usize, into: &mut [u8]| into.copy_from_slice(&extra[at..at + into.len()]);
        DataPointer::resolve(sgl, extra.len(), max_descriptors, load)
    }

    #[test]
    fn a_linux_hosts_keyed_block() {
        // captures/nvme_rdma.pcap frame 4; tshark: address 0xff1100000602cc00, length 1024, key 0x11cc, subtype Fh.
        let sgl = Sgl(hex("00cc0206000011ff000400cc1100004f"));
        let block = Keyed { addr: 0xff11_0000_0602_cc00, len: 1024, key: 0x11cc, invalidate: true };
        assert_eq!(sgl.kind(), SglKind::Keyed(block));
        assert_eq!(Sgl::keyed(block), sgl);
    }

    #[test]
    fn reserved_bytes_do_not_matter_and_are_kept() {
        // Frame 306: an in-capsule block with 0x52 left in a reserved byte.
        let sgl = Sgl(hex("00000000000000000010000052000001"));
        assert_eq!(sgl.kind(), SglKind::InCapsule { offset: 0, len: 4096 });
        let mut out = [0; 16];
        sgl.put(&mut out);
        assert_eq!(out, sgl.0);
    }

    #[test]
    fn in_capsule_bounds() {
        let extra = [0; 4096];
        let offset_invalid = Err(Status::SGL_OFFSET_INVALID.dnr());
        for (offset, len) in [(0, 4097), (1, 4096), (4096, 1), (u64::MAX, 1), (u64::MAX - 4095, 4096)] {
            assert_eq!(resolve(&Sgl::in_capsule(offset, len), &extra, 1), offset_invalid);
        }
        let inside = resolve(&Sgl::in_capsule(512, 3584), &extra, 1);
        assert_eq!(inside, Ok(DataPointer::InCapsule { offset: 512, len: 3584 }));
    }

    #[test]
    fn segments_of_keyed_blocks() {
        let blocks: Vec<_> = (0..16u32)
            .map(|i| Keyed { addr: 0x1000 * u64::from(i), len: 512, key: i, invalidate: i == 3 })
            .collect();
        let mut extra = [0; 512];
        assert_eq!(emit_segment(&blocks, &mut extra), Ok(256));
        let data = resolve(&Sgl::last_segment(0, 256), &extra, 16).expect("valid");
        assert_eq!((data.blocks(), data.len(), data.invalidate()), (&blocks[..], 8192, Some(3)));
        let too_many = resolve(&Sgl::last_segment(0, 272), &extra, 16);
        assert_eq!(too_many, Err(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.dnr()));
        let odd = resolve(&Sgl::last_segment(0, 24), &extra, 16);
        assert_eq!(odd, Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.dnr()));
        let past = resolve(&Sgl::last_segment(500, 32), &extra, 16);
        assert_eq!(past, Err(Status::SGL_OFFSET_INVALID.dnr()));
        let wrong_type = resolve(&Sgl::last_segment(256, 16), &extra, 16);
        assert_eq!(wrong_type, Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()));
    }
}
