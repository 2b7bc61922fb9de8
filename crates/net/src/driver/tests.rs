//! Devices on loopback.
