//! Big-endian fields at fixed positions.

use super::IuError;

/// Reads fields of an information unit that is long enough for them.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Of `bytes`, of which the first `needed` are the unit's fields.
    pub(super) fn new(iu: &'static str, bytes: &'a [u8], needed: usize) -> Result<Self, IuError> {
        let given = bytes.len();
        bytes.get(..needed).map(Self).ok_or(IuError::Short { iu, needed, given })
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    pub(super) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    pub(super) fn id(&self, at: usize) -> crate::PortId {
        crate::PortId::from_bytes(self.array(at))
    }
}

/// Writes `value` at `at`.
pub(super) fn put<const N: usize>(into: &mut [u8], at: usize, value: [u8; N]) {
    into[at..at + N].copy_from_slice(&value);
}
