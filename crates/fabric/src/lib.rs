//! Links, switches, faults and virtual time for simulated networks, and pcapng.
#![forbid(unsafe_code)]

pub mod pcapng;
