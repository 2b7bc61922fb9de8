//! NVMe over Fabrics: target and initiator.
#![forbid(unsafe_code)]
