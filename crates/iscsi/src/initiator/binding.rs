//! What an initiator's session runs on: connections of one kind or another.
//!
//! RFC 5047's datamover, seen from above. A [`Binding`] opens connections, a [`Carrier`] is one. `tcp` and `rdma` implement them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everywire_verbs::rt::Rt;

use super::{Connector, IscsiError, Work};
use crate::login::initiator::{LoggedIn, LoginOptions};
use crate::session::initiator::SessionOptions;
use crate::tcp::initiator::Connection;

/// How connections are made.
pub(crate) trait Binding: 'static {
    /// One of them.
    type Carrier: Carrier + 'static;

    /// Connects within `limit`; the error says why not.
    async fn open(&self, rt: &Rt, to: SocketAddr, limit: Duration) -> Result<Self::Carrier, String>;
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

    async fn open(&self, rt: &Rt, to: SocketAddr, limit: Duration) -> Result<Self::Carrier, String> {
        let stream = rt.timeout(limit, self.0.connect(to)).await.map_err(|_| "no answer".to_owned())?;
        Ok(Connection::new(rt.clone(), stream.map_err(|e| e.to_string())?))
    }
}
