//! `everywire serve`: the target.

pub mod config;
