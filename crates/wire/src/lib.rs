//! The network's catalogue: every header and message as bytes, both ways.
#![forbid(unsafe_code)]
