//! Fixed-width fields of headers: integers, high byte first, and bytes as they are.

/// A fixed-width field, big-endian.
pub(super) trait Field: Sized {
    fn get(from: &[u8]) -> Self;
    fn put(&self, to: &mut [u8]);
}

macro_rules! integers {
    ($($ty:ty),*) => {$(impl Field for $ty {
        fn get(from: &[u8]) -> Self {
            let mut bytes = [0; size_of::<$ty>()];
            bytes.copy_from_slice(&from[..size_of::<$ty>()]);
            Self::from_be_bytes(bytes)
        }
        fn put(&self, to: &mut [u8]) {
            to[..size_of::<$ty>()].copy_from_slice(&self.to_be_bytes());
        }
    })*};
}

integers!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    fn get(from: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&from[..N]);
        bytes
    }

    fn put(&self, to: &mut [u8]) {
        to[..N].copy_from_slice(self);
    }
}
