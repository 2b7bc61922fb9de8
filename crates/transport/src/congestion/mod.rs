//! Per-peer windows and congestion control.
//!
//! One policy so far: [`window`], which keeps an unprivileged receiver's socket buffer from overflowing. Rate control by
//! congestion notification (DCQCN) belongs here too and is not built yet.

pub mod window;
