//! The safe verbs API and the driving contract, over every wire.
//!
//! Start at [`Device`]; a program makes a [`Pd`], registers memory, creates a [`Cq`] and a [`Qp`], and connects. A driver
//! holds the device through [`Drive`], whose module states the contract that everything rests on: no socket, thread or
//! clock is in this crate. Handles are cheap to clone and may be used from any thread; an object ends with its last
//! handle. Only [`memory`] contains `unsafe`.
#![deny(unsafe_code)]

mod ah;
mod any_qp;
mod cm_id;
mod command;
mod config;
mod counters;
mod cq;
mod device;
mod drive;
mod error;
mod events;
mod gmp;
mod half_open;
mod ib;
mod ib_checks;
mod ib_group;
mod ib_ways;
pub mod ids;
mod keys;
mod lost;
#[allow(unsafe_code)]
pub mod memory;
mod mr;
mod multicast;
mod pd;
pub mod peer_log;
pub mod pool;
mod qp;
mod qp_env;
mod qp_modify;
mod qp_table;
mod receive;
mod resolving;
mod route;
pub mod rt;
mod srq;
mod state;
mod stream;
mod streams;
mod table;
#[cfg(test)]
#[path = "tests/support.rs"]
mod test_support;
#[cfg(test)]
mod tests;
mod timer;
pub mod trains;
mod waker;
mod windows;
mod wire_kind;

pub use ah::{Ah, AhAttr};
pub use cm_id::{
    ACCEPT_PRIVATE_DATA, Accepting, CONNECT_PRIVATE_DATA, Closed, CmError, CmErrorKind, CmStep, ConnParam,
    ConnectOptions, ConnectRequest, Connecting, Connection, DatagramService, DisconnectReason,
    IWARP_PRIVATE_DATA, ListenOptions, Listener, MULTICAST_QKEY, Multicast, MulticastOptions, NextRequest,
    NextResolve, REJECT_PRIVATE_DATA, RESOLVE_PRIVATE_DATA, RESOLVED_PRIVATE_DATA, ResolveOptions,
    ResolveRequest, Rested, SERVICE_PRIVATE_DATA, UdListener,
};
pub use command::Command;
pub use config::{
    AtomicCap, DEFAULT_SOURCE_PORT, DeviceAttr, DeviceConfig, DeviceLimits, GidEntry, GidType, IcrcCheck,
    IwarpOptions, MAX_CQE, MAX_QPS, MAX_REGISTRATION, NodeType, PortAttr, PortState, Wire, WireFeature,
};
pub use counters::{Counters, DeviceCounter};
pub use cq::{Arm, Cq, CqError, NextEvent, Wait};
pub use device::{Device, Progress, Usage};
pub use drive::{Datagram, Drive, Frame, Transmit, TransmitBuf, Unreachable};
pub use error::{ErrorKind, PostListError, VerbsError};
pub use events::{AsyncEvent, AsyncEvents, MAX_EVENTS, NextAsyncEvent, PortComesUp};
pub use gmp::{MadAgent, MadSide, NextMad};
pub use half_open::{HalfOpen, MAX_HALF_OPEN, MAX_HALF_OPEN_PER_PEER};
pub use ib::IbPort;
pub use keys::WindowType;
pub use mr::{FastRegMr, MemoryRegion, MemoryWindow, next_key};
pub use pd::Pd;
pub use qp::{Qp, QpInit};
pub use route::{MAX_PENDING_ROUTES, Neighbour, Route, RouteError, RouteToken};
pub use srq::{Srq, SrqInit};
pub use stream::{ConnEvent, StreamError, StreamListenerId};
pub use streams::CLOSE_TIMEOUT as STREAM_CLOSE_TIMEOUT;

pub use everywire_transport::cm::ib::CmCounters;
pub use everywire_transport::cm::iwarp::{Failure as MpaFailure, MpaError};
pub use everywire_transport::ib::{
    Completion, Counter, CqId, LocalRoute, Path, PathLink, PostError, QpAttr, QpCaps, QpEvent, QpState,
    QpType, RecvWr, Remote, SendOp, SendWr, SrqId, UdDest, WcOpcode, WcStatus,
};
pub use everywire_transport::iwarp::{ConnId, Piece, Rtr, StreamBurst, StreamFault};
pub use everywire_transport::mad::{MAD_LEN, MadPath};
pub use everywire_transport::memory::{Access, BindWindow, FastRegister, PdId, Sge};
pub use everywire_wire::cm::{RejReason, SidrStatus};
pub use everywire_wire::{Gid, Guid, LKey, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey};
