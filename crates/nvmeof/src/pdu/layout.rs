//! Fixed little-endian layouts, declared as the standard's tables are: a name, a type, a byte offset.
//!
//! `layout!` makes the structure, `parse` and `emit`; bytes that no field names are emitted as zero. It is a table, not a
//! language: anything that needs a condition is written out by hand in its module.

/// A value with a fixed little-endian form.
pub trait Field: Sized {
    /// Bytes it takes.
    const LEN: usize;
    /// Reads it from the first [`Field::LEN`] bytes.
    fn get(bytes: &[u8]) -> Self;
    /// Writes it to the first [`Field::LEN`] bytes.
    fn put(&self, bytes: &mut [u8]);
}

macro_rules! integer_field {
    ($($ty:ty)*) => {$(
        impl Field for $ty {
            const LEN: usize = size_of::<$ty>();
            fn get(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$ty>()];
                raw.copy_from_slice(&bytes[..size_of::<$ty>()]);
                <$ty>::from_le_bytes(raw)
            }
            fn put(&self, bytes: &mut [u8]) {
                bytes[..size_of::<$ty>()].copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
integer_field!(u8 u16 u32 u64 u128);

impl<T: Field + Copy, const N: usize> Field for [T; N] {
    const LEN: usize = T::LEN * N;

    fn get(bytes: &[u8]) -> Self {
        std::array::from_fn(|i| T::get(&bytes[i * T::LEN..]))
    }

    fn put(&self, bytes: &mut [u8]) {
        for (i, item) in self.iter().enumerate() {
            item.put(&mut bytes[i * T::LEN..]);
        }
    }
}

/// Declares a structure by offsets. See the module's head.
macro_rules! layout {
    ($(#[$meta:meta])* $vis:vis struct $name:ident[$len:literal] {
        $($(#[$field_meta:meta])* $field:ident: $ty:ty = $at:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $len;

            /// Reads the structure from the start of `bytes`.
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::pdu::PduError> {
                if bytes.len() < Self::LEN {
                    let what = stringify!($name);
                    return Err($crate::pdu::PduError::Truncated { what, need: Self::LEN, have: bytes.len() });
                }
                Ok(<Self as $crate::pdu::Field>::get(bytes))
            }

            /// The structure's bytes.
            pub fn emit(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                $crate::pdu::Field::put(self, &mut bytes);
                bytes
            }
        }

        impl Default for $name {
            fn default() -> Self {
                <Self as $crate::pdu::Field>::get(&[0; $len])
            }
        }

        impl $crate::pdu::Field for $name {
            const LEN: usize = $len;

            fn get(bytes: &[u8]) -> Self {
                Self { $($field: <$ty as $crate::pdu::Field>::get(&bytes[$at..]),)* }
            }

            fn put(&self, bytes: &mut [u8]) {
                $($crate::pdu::Field::put(&self.$field, &mut bytes[$at..]);)*
            }
        }

        const _: () = {
            // A field past the end, or a layout out of order, does not compile.
            let mut end = 0;
            $(
                assert!($at >= end, "fields overlap or are out of order");
                end = $at + <$ty as $crate::pdu::Field>::LEN;
            )*
            assert!(end <= $len, "a field passes the end");
        };
    };
}
