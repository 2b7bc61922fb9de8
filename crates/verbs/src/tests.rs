//! Tests of the device as a whole, by hand: each file names the cases and rules it stands for.

mod arrivals;
mod cq;
mod device;
mod hostile;
mod threads;
mod traffic;
mod ud;
mod windows;
