//! The InfiniBand transport services RC, UC and UD as one state machine a queue pair.
//!
//! Start at [`qp::Qp`]: it owns the queues and hands packets, posts and time to its parts. [`env::QpEnv`] is what it
//! asks of its device. Read IBTA vol. 1 chapter 9 first. No sockets, clocks or key tables here.

pub mod attr;
pub mod burst;
mod completer;
pub mod env;
pub(crate) mod local;
pub mod packet;
pub mod path;
pub mod post;
pub mod qp;
pub mod qp_state;
mod requester;
mod responder;
pub mod retry;
mod shared;
mod ud;
pub mod wr;

pub use attr::{AttrError, PathMigState, QpAttr, QpCaps, QpConfig, QpState, QpType};
pub use burst::Burst;
pub use env::{Counter, CqId, QpEnv, QpEvent, SrqId};
pub use packet::PacketMeta;
pub use path::{LocalRoute, Path, PathLink};
pub use qp::Qp;
pub use qp_state::{AttrMask, ModifyError};
pub use wr::{Completion, PostError, RecvWr, Remote, SendOp, SendWr, UdDest, WcOpcode, WcStatus};

#[cfg(test)]
pub(crate) mod tests;
