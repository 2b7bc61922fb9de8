//! TCP sockets as iSCSI's byte streams: tokio's, without delay.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use everywire_iscsi::initiator::Connector;
use everywire_iscsi::tcp::ByteStream;
use everywire_verbs::rt::LocalFuture;
use tokio::net::TcpStream;

/// Most bytes taken from a socket at once.
const READ: usize = 1 << 20;

/// A connected socket.
pub struct TcpBytes(TcpStream);

impl TcpBytes {
    /// Of a connection; small PDUs leave at once.
    pub fn new(stream: TcpStream) -> io::Result<TcpBytes> {
        stream.set_nodelay(true)?;
        Ok(TcpBytes(stream))
    }
}

impl ByteStream for TcpBytes {
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            let mut limited = bytes::BufMut::limit(&mut *into, READ);
            match self.0.try_read_buf(&mut limited) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(pieces) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

/// Connects sockets.
pub struct TcpConnector;

impl Connector for TcpConnector {
    type Stream = TcpBytes;

    fn connect(&self, to: SocketAddr) -> LocalFuture<io::Result<TcpBytes>> {
        Box::pin(async move { TcpBytes::new(TcpStream::connect(to).await?) })
    }
}
