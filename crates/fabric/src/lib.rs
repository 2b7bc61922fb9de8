//! A simulated network: links, switches, faults and virtual time, and pcapng.
//!
//! Everything here is sans-IO and deterministic: frames and the time go in, frames and the time of the next event come
//! out, and the same seed gives the same run. Nothing here knows what a host does with its frames.
#![forbid(unsafe_code)]

pub mod clock;
pub mod ethernet;
pub mod faults;
pub mod ib;
pub mod link;
pub mod network;
pub mod pcapng;
