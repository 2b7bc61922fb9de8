//! What an initiator's session runs on: connections of one kind or another.
//!
//! RFC 5047's datamover, seen from above. A [`Binding`] opens connections, a [`Carrier`] is one. `tcp` and `rdma` implement them.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everywire_verbs::rt::Rt;
use everywire_verbs::{CmError, Pd, VerbsError};

use super::{Connector, IscsiError, Work};
use crate::login::initiator::{LoggedIn, LoginOptions};
use crate::session::initiator::SessionOptions;
use crate::tcp::initiator::Connection;

/// Why a connection could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nothing came back.
    #[error("no answer")]
    Silence,
    /// TCP says so.
    #[error("{1}")]
    Tcp(io::ErrorKind, String),
    /// The connection manager says so.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// This side has no room for it.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> ConnectError {
        ConnectError::Tcp(error.kind(), error.to_string())
    }
}

/// How connections are made.
pub(crate) trait Binding: 'static {
    /// One of them.
    type Carrier: Carrier + 'static;

    /// What memory is registered in, where it must be.
    fn pd(&self) -> Option<&Pd> {
        None
    }

    /// Connects within `limit`.
    async fn open(&self, rt: &Rt, to: SocketAddr, limit: Duration) -> Result<Self::Carrier, ConnectError>;
}

/// A connection.
pub(crate) trait Carrier {
    /// Logs in.
    async fn login(&mut self, options: LoginOptions, until: Instant) -> Result<Box<LoggedIn>, IscsiError>;

    /// The full feature phase: works until the session ends; gives why.
    async fn run(&mut self, login: &LoggedIn, options: SessionOptions, work: &Work) -> String;
}

/// Byte streams.
pub(super) struct Streams<C>(pub(super) C);

impl<C: Connector + 'static> Binding for Streams<C> {
    type Carrier = Connection<C::Stream>;

    async fn open(&self, rt: &Rt, to: SocketAddr, limit: Duration) -> Result<Self::Carrier, ConnectError> {
        let stream = rt.timeout(limit, self.0.connect(to)).await.map_err(|_| ConnectError::Silence)?;
        Ok(Connection::new(rt.clone(), stream?))
    }
}
