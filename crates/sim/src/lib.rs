//! Whole systems in virtual time: hosts, executor, kill and restart, checkers.
#![forbid(unsafe_code)]
