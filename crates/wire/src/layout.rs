//! Management messages as tables: each field written once, with its byte and bits, gives the struct, its parser and its
//! emitter.
//!
//! A row reads like the standard's own tables: `name: type, byte, first bit..end bit`, where bit 0 is the most significant
//! of that byte and a field may run on into the bytes that follow. The rows of a table must cover it without gap or overlap
//! (a unit test of each table says so), which is what makes re-emission exact. Not for the data path: it works bit range
//! by bit range.

use crate::{Gid, Guid, Lid, PKey, Psn, QKey, Qpn};

/// A value that stands in a bit range of a message.
pub(crate) trait Field: Sized {
    fn get(data: &[u8], bit: usize, width: usize) -> Self;
    fn put(&self, data: &mut [u8], bit: usize, width: usize);

    /// Names first bit and width of every elementary field, in order: those of a nested table one by one.
    fn leaves(bit: usize, width: usize, visit: &mut dyn FnMut(usize, usize)) {
        visit(bit, width);
    }
}

/// Up to 64 bits, most significant first.
pub(crate) fn get_bits(data: &[u8], bit: usize, width: usize) -> u64 {
    let (end, mut value) = (bit + width, 0u64);
    let mut at = bit;
    while at < end {
        let take = (8 - at % 8).min(end - at);
        let bits = data[at / 8] >> (8 - at % 8 - take) & mask(take);
        value = value << take | u64::from(bits);
        at += take;
    }
    value
}

pub(crate) fn put_bits(data: &mut [u8], bit: usize, width: usize, value: u64) {
    let end = bit + width;
    let mut at = bit;
    while at < end {
        let take = (8 - at % 8).min(end - at);
        let shift = 8 - at % 8 - take;
        let bits = (value >> (end - at - take)) as u8 & mask(take);
        data[at / 8] = data[at / 8] & !(mask(take) << shift) | bits << shift;
        at += take;
    }
}

/// The low `width` bits, 1 to 8.
fn mask(width: usize) -> u8 {
    0xff >> (8 - width)
}

macro_rules! number_field {
    ($($ty:ty: $value:ident => $from:expr, $this:ident => $to:expr;)*) => {
        $(impl Field for $ty {
            fn get(data: &[u8], bit: usize, width: usize) -> Self {
                let $value = get_bits(data, bit, width);
                $from
            }
            fn put(&self, data: &mut [u8], bit: usize, width: usize) {
                let $this = self;
                put_bits(data, bit, width, $to);
            }
        })*
    };
}

number_field! {
    bool: v => v != 0, t => u64::from(*t);
    u8: v => v as u8, t => u64::from(*t);
    u16: v => v as u16, t => u64::from(*t);
    u32: v => v as u32, t => u64::from(*t);
    u64: v => v, t => *t;
    Psn: v => Psn::new(v as u32), t => u64::from(t.get());
    Qpn: v => Qpn::new(v as u32), t => u64::from(t.get());
    QKey: v => QKey(v as u32), t => u64::from(t.0);
    PKey: v => PKey(v as u16), t => u64::from(t.0);
    Lid: v => Lid(v as u16), t => u64::from(t.0);
    Guid: v => Guid(v), t => t.0;
}

impl<const N: usize> Field for [u8; N] {
    fn get(data: &[u8], bit: usize, _: usize) -> Self {
        crate::field::array(data, bit / 8)
    }

    fn put(&self, data: &mut [u8], bit: usize, _: usize) {
        crate::field::put(data, bit / 8, self);
    }
}

impl Field for Gid {
    fn get(data: &[u8], bit: usize, width: usize) -> Self {
        Gid(Field::get(data, bit, width))
    }

    fn put(&self, data: &mut [u8], bit: usize, width: usize) {
        self.0.put(data, bit, width);
    }
}

/// See the module's head.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $name:ident, $len:literal bytes {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty, $byte:literal, $bit:literal .. $end:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// First bit and width of every field, in order.
            #[cfg(test)]
            pub(crate) const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), $byte * 8 + $bit, $end - $bit),)*];

            /// Reads it from the start of `bytes`.
            pub fn parse(bytes: &[u8]) -> Result<$name, $crate::WireError> {
                let b = $crate::field::head::<$len>(stringify!($name), bytes)?;
                Ok($crate::layout::Field::get(b, 0, $len * 8))
            }

            /// Writes it at the start of `out`. Panics where `out` is shorter than `LEN`.
            pub fn emit(&self, out: &mut [u8]) {
                let b = $crate::field::head_mut::<$len>(stringify!($name), out);
                $crate::layout::Field::put(self, b, 0, $len * 8);
            }
        }

        impl $crate::layout::Field for $name {
            fn get(data: &[u8], bit: usize, _: usize) -> Self {
                $name { $($field: $crate::layout::Field::get(data, bit + $byte * 8 + $bit, $end - $bit),)* }
            }

            fn put(&self, data: &mut [u8], bit: usize, _: usize) {
                $($crate::layout::Field::put(&self.$field, data, bit + $byte * 8 + $bit, $end - $bit);)*
            }

            fn leaves(bit: usize, _: usize, visit: &mut dyn FnMut(usize, usize)) {
                $(<$ty as $crate::layout::Field>::leaves(bit + $byte * 8 + $bit, $end - $bit, visit);)*
            }
        }

        /// All bits zero.
        impl Default for $name {
            fn default() -> $name {
                $crate::layout::Field::get(&[0; $len], 0, $len * 8)
            }
        }
    };
}
pub(crate) use layout;

/// Arrays of values as one field, each element of so many bits.
macro_rules! array_field {
    ($($(#[$meta:meta])* $alias:ident = [$ty:ty; $count:literal], $bits:literal;)*) => {
        $($(#[$meta])* pub type $alias = [$ty; $count];
        impl $crate::layout::Field for $alias {
            fn get(data: &[u8], bit: usize, _: usize) -> Self {
                std::array::from_fn(|i| $crate::layout::Field::get(data, bit + i * $bits, $bits))
            }
            fn put(&self, data: &mut [u8], bit: usize, _: usize) {
                for (i, value) in self.iter().enumerate() {
                    $crate::layout::Field::put(value, data, bit + i * $bits, $bits);
                }
            }
            fn leaves(bit: usize, _: usize, visit: &mut dyn FnMut(usize, usize)) {
                for i in 0..$count {
                    <$ty as $crate::layout::Field>::leaves(bit + i * $bits, $bits, visit);
                }
            }
        })*
    };
}
pub(crate) use array_field;

/// Fails unless the fields cover `len` bytes without gap or overlap, in order.
#[cfg(test)]
pub(crate) fn assert_complete(name: &str, fields: &[(&str, usize, usize)], len: usize) {
    let mut end = 0;
    for (field, bit, width) in fields {
        assert_eq!(*bit, end, "{name}.{field} does not begin where the field before it ends");
        end = bit + width;
    }
    assert_eq!(end, len * 8, "{name} is not covered to its end");
}
