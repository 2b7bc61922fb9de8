//! Connection management: how two queue pairs find each other and part again.
//!
//! `ib` is the InfiniBand communication manager (IBTA volume 1, chapter 12) as RoCE and InfiniBand use it. The
//! rdma_cm-like API for programs, with IP addresses and futures, is `everywire_verbs::cm_id`.

pub mod ib;
