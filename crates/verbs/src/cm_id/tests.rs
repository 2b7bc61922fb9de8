//! Devices on a wire in memory, driven by hand: connecting as programs do it.

mod connect;
mod harness;
mod transfer;
mod udp;
