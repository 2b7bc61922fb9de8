//! Checkers that watch a system from outside and know nothing of how it works.
//!
//! They hold the expectation (what each region must contain, what each work request may end as, which order atomics can have had) in
//! models of their own, fed by what the program asked for and what it was told. A violation is a [`Violation`] with a text that
//! names the object; nothing here panics.

pub mod atomics;
pub mod completions;
pub mod delivery;
pub mod shadow;

/// The system did something that it must not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// Makes a violation from a format string.
#[macro_export]
macro_rules! violation {
    ($($arg:tt)*) => { $crate::checkers::Violation(format!($($arg)*)) };
}

/// Returns a violation from the enclosing function unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($arg:tt)*) => {
        if !$condition {
            return Err($crate::violation!($($arg)*));
        }
    };
}
