//! How a case says what is wrong: a [`Verdict`], and the two macros that make one.
//!
//! A case never panics: the suite goes on and reports all that failed.

/// What came of a case: nothing to say, or what is wrong.
pub(crate) type Verdict = Result<(), String>;

/// Ends the case unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+));
        }
    };
}

/// Ends the case unless what came is what the standard says.
macro_rules! same {
    ($got:expr, $want:expr, $($what:tt)+) => {
        match (&$got, &$want) {
            (got, want) => {
                if *got != *want {
                    return Err(format!("{}: {:?}, but it must be {:?}", format_args!($($what)+), got, want));
                }
            }
        }
    };
}

pub(crate) use {ensure, same};

/// An error of a call that must succeed.
pub(crate) fn must<T, E: std::fmt::Display>(what: &str, done: Result<T, E>) -> Result<T, String> {
    done.map_err(|error| format!("{what}: {error}"))
}
