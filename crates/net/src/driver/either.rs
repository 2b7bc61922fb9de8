//! The engine of either sort of device, under one name: datagrams and frames, or TCP streams.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::engine::{DatagramEngine, Turn};
use super::fabric::FabricEngine;
use super::reattach::Absence;
use super::streams::StreamEngine;
use crate::udp::PortCounters;

/// A device and its sockets.
#[derive(Debug)]
pub(crate) enum Engine {
    /// Datagrams: RoCE.
    Datagrams(Box<DatagramEngine>),
    /// TCP streams: iWARP.
    Streams(Box<StreamEngine>),
    /// The port of a fabric: InfiniBand.
    Fabric(Box<FabricEngine>),
    /// The host is closed, and its sockets with it, though a call of `block_on` may hold what is shared a while longer.
    Closed(Box<Closed>),
}

/// What is left of a closed host.
#[derive(Debug)]
pub(crate) struct Closed {
    /// Tells of nothing any more.
    epoll: Arc<OwnedFd>,
    counters: PortCounters,
    empty_turns: u64,
}

impl Engine {
    /// Readable when a socket has something.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        match self {
            Engine::Datagrams(engine) => engine.epoll(),
            Engine::Streams(engine) => engine.epoll(),
            Engine::Fabric(engine) => engine.epoll(),
            Engine::Closed(closed) => closed.epoll.as_fd(),
        }
    }

    /// When the next turn is due though nothing arrives.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Engine::Datagrams(engine) => engine.deadline(),
            Engine::Streams(engine) => engine.deadline(),
            Engine::Fabric(engine) => engine.deadline(),
            Engine::Closed(_) => None,
        }
    }

    /// What happened to datagrams at its sockets.
    pub(crate) fn counters(&self) -> PortCounters {
        match self {
            Engine::Datagrams(engine) => engine.counters(),
            Engine::Streams(_) | Engine::Fabric(_) => PortCounters::default(),
            Engine::Closed(closed) => closed.counters,
        }
    }

    /// One turn; see [`DatagramEngine::turn`].
    #[inline]
    pub(crate) fn turn(&mut self, queued: bool, comes_again: bool) -> Turn {
        match self {
            Engine::Datagrams(engine) => engine.turn(queued, comes_again),
            Engine::Streams(engine) => engine.turn(queued),
            Engine::Fabric(engine) => engine.turn(queued),
            Engine::Closed(_) => Turn::default(),
        }
    }

    /// Turns of polling programs in a row that found nothing.
    #[inline]
    pub(crate) fn empty_turns(&mut self) -> &mut u64 {
        match self {
            Engine::Datagrams(engine) => &mut engine.empty_turns,
            Engine::Streams(engine) => &mut engine.empty_turns,
            Engine::Fabric(engine) => &mut engine.empty_turns,
            Engine::Closed(closed) => &mut closed.empty_turns,
        }
    }

    /// Whether its fabric is gone, if it has one.
    pub(crate) fn absence(&self) -> Option<Arc<Absence>> {
        match self {
            Engine::Fabric(engine) => Some(engine.absence()),
            Engine::Datagrams(_) | Engine::Streams(_) | Engine::Closed(_) => None,
        }
    }

    /// Nothing else to do: the moment for what can wait. True if that made work: no sleeping then.
    pub(crate) fn going_idle(&mut self) -> bool {
        match self {
            Engine::Datagrams(engine) => engine.going_idle(),
            Engine::Streams(engine) => engine.going_idle(),
            Engine::Fabric(engine) => engine.going_idle(),
            Engine::Closed(_) => false,
        }
    }

    /// The host is closed.
    pub(crate) fn shut_down(&mut self) {
        let epoll = match self {
            Engine::Datagrams(engine) => engine.epoll.clone(),
            Engine::Fabric(engine) => engine.epoll.clone(),
            Engine::Streams(engine) => return engine.shut_down(),
            Engine::Closed(_) => return,
        };
        *self = Engine::Closed(Box::new(Closed { epoll, counters: self.counters(), empty_turns: 0 }));
    }
}
