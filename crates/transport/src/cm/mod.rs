//! Connection management: how two queue pairs find each other and part again.
//!
//! `ib` is the InfiniBand communication manager (IBTA volume 1, chapter 12) as RoCE and InfiniBand use it, `iwarp` the start-up
//! of an iWARP connection on its own TCP stream (RFC 5044 §7, RFC 6581). The
//! rdma_cm-like API for programs, with IP addresses and futures, is `everywire_verbs::cm_id`.

pub mod ib;
pub mod iwarp;
