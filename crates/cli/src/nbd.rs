//! A Network Block Device server: a disk that any NBD client can use, the kernel's `nbd` driver, QEMU and libnbd among them.
//!
//! Read doc/proto.md of the NBD project first: fixed newstyle negotiation (`handshake`), simple and structured replies
//! (`wire`), commands (`session`). What is served is an `everywire_block::Backend`; `remote` makes one of a disk that an
//! initiator on this thread reaches. Every connection is served at once, and flushing on one covers all (multi-conn).
//! Whoever connects and says nothing is not waited for when others come (`waiting`).
//! Not here: TLS, several exports, block status, resizing.

#[cfg(test)]
mod fuzz;
mod handshake;
pub mod remote;
mod session;
#[cfg(test)]
mod tests;
mod waiting;
mod wire;

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::{Backend, Geometry};
use everywire_verbs::rt::{Either, Rt, select};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};

use crate::error::CliError;
use crate::peer::PeerName;
use waiting::{Seldom, Waiting};

/// The port that IANA gives to NBD.
const PORT: u16 = 10809;
/// Bytes of data in one command at most, said to clients; what the specification lets them assume anyway.
const MAX_PAYLOAD: u32 = 32 << 20;
/// Clients that use the disk at a time.
const MAX_CONNECTIONS: u32 = 64;
/// How long commands under way may take once the server is told to stop.
const GRACE: Duration = Duration::from_secs(10);
/// Pause after an accept that failed: descriptors may have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where to listen: a path of a UNIX socket, or an address and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// A UNIX socket at this path.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

impl FromStr for Door {
    type Err = String;

    fn from_str(text: &str) -> Result<Door, String> {
        if let Some(path) = text.strip_prefix("unix:").or_else(|| text.contains('/').then_some(text)) {
            return if path.is_empty() {
                Err("unix: needs a path".into())
            } else {
                Ok(Door::Unix(path.into()))
            };
        }
        let name: PeerName = text.parse().map_err(|why| {
            format!("`{text}` is no ADDRESS[:PORT] ({why}); a UNIX socket's path has a slash: ./{text}")
        })?;
        Ok(Door::Tcp(name.socket_addr(PORT)))
    }
}

/// The URI by which clients name it.
impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Door::Unix(path) => write!(f, "nbd+unix:///?socket={}", path.display()),
            Door::Tcp(address) => write!(f, "nbd://{address}"),
        }
    }
}

/// What clients are told of the disk.
#[derive(Debug, Clone)]
pub struct Export {
    /// Its name; the empty name, NBD's default, means it too.
    pub name: String,
    /// What it is, for people.
    pub description: String,
    /// Size, block size, and what it can.
    pub geometry: Geometry,
}

/// A server that listens.
pub struct Server {
    door: Door,
    listener: Listener,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Server {
    /// Listens; within a runtime. A UNIX socket is for this user only, and replaces one that nobody listens on.
    pub async fn listen(door: &Door) -> Result<Server, CliError> {
        let failed = |error: std::io::Error| match (door, error.kind()) {
            (Door::Tcp(address), ErrorKind::AddrNotAvailable) => CliError::usage(format_args!(
                "cannot listen on {door}: {} is not an address of this host",
                address.ip()
            )),
            (Door::Tcp(address), ErrorKind::AddrInUse) => CliError::failed(format_args!(
                "cannot listen on {door}: {}",
                everywire_net::tcp_owner(*address)
            )),
            _ => CliError::failed(format_args!("cannot listen on {door}: {error}")),
        };
        let (door, listener) = match door {
            Door::Unix(path) => (door.clone(), Listener::Unix(listen_at(path).map_err(failed)?)),
            Door::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                (Door::Tcp(listener.local_addr().map_err(failed)?), Listener::Tcp(listener))
            }
        };
        Ok(Server { door, listener })
    }

    /// Where it listens; a port of 0 has become one.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Serves `backend` until `stop` is ready. Commands under way are then finished, within a limit, and nothing more is read.
    pub async fn run(
        &self,
        rt: &Rt,
        export: Export,
        backend: Arc<dyn Backend>,
        stop: impl Future<Output = ()>,
    ) {
        let (tell, told) = watch::channel(false);
        let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
        let common = Common {
            rt: rt.clone(),
            export: Arc::new(export),
            backend,
            seats: seats.clone(),
            told,
            waiting: Rc::default(),
        };
        let (refused, crowded) = (Seldom::default(), Seldom::default());
        let accepting = async {
            loop {
                // Those for whom there is no room wait at the door, and lose nothing.
                let evicted = common.waiting.room(rt).await;
                let evicted = match self.accept(&common).await {
                    Ok(()) => evicted,
                    Err(error) => {
                        // Whoever has waited longest gives his descriptor to the others.
                        let evicted = common.waiting.evict() || evicted;
                        if let Some(more) = refused.say(rt.now()) {
                            let error = everywire_net::with_limit(error);
                            tracing::warn!("{}: accept: {error} ({more} more like this left out)", self.door);
                        }
                        rt.sleep(ACCEPT_PAUSE).await;
                        evicted
                    }
                };
                if evicted && let Some(more) = crowded.say(rt.now()) {
                    let most = waiting::MAX_WAITING;
                    tracing::warn!(
                        "{}: a client that had not begun was sent away for another; {most} may wait ({more} more left out)",
                        self.door
                    );
                }
            }
        };
        let Either::First(()) = select(stop, accepting).await;
        let _ = tell.send(true);
        if rt.timeout(GRACE, seats.acquire_many(MAX_CONNECTIONS)).await.is_err() {
            tracing::warn!("{}: clients were left with commands unfinished after {GRACE:?}", self.door);
        }
    }
}

impl Server {
    /// Takes the next client.
    async fn accept(&self, common: &Common) -> std::io::Result<()> {
        match &self.listener {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                common.begin(stream, "a local client".into());
            }
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Requests are answered as they end; one that waits for another's acknowledgement waits in vain.
                let _ = stream.set_nodelay(true);
                common.begin(stream, peer.to_string());
            }
        }
        Ok(())
    }
}

/// What the clients of a server share.
struct Common {
    rt: Rt,
    export: Arc<Export>,
    backend: Arc<dyn Backend>,
    seats: Arc<Semaphore>,
    told: watch::Receiver<bool>,
    waiting: Rc<Waiting>,
}

impl Common {
    /// Serves a client as a task of its own.
    fn begin(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static, who: String) {
        let session = session::Session {
            rt: self.rt.clone(),
            export: self.export.clone(),
            backend: self.backend.clone(),
        };
        let (told, seats, waiting) = (self.told.clone(), self.seats.clone(), self.waiting.clone());
        let place = waiting.enter(self.rt.now());
        self.rt.spawn(async move {
            // Those that have begun may wait for a seat; they are sent away only where descriptors run out.
            let ready = async {
                let ready = session.ready(stream, &who).await?;
                waiting.begun(place.number);
                seats.acquire_owned().await.ok().map(|seat| (ready, seat))
            };
            let ready = select(std::pin::pin!(ready), place.gone).await;
            waiting.leave(place.number);
            if let Either::First(Some((ready, _seat))) = ready {
                session.serve(ready, who, told).await;
            }
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Door::Unix(path) = &self.door {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A UNIX socket at a path. A socket that a dead server left there refuses connections, and goes.
fn listen_at(path: &Path) -> std::io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            // A file that is no socket refuses connections too, and is not ours to remove.
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(std::io::Error::new(
                    ErrorKind::AlreadyExists,
                    "a file that is no socket is there",
                ));
            }
            match std::os::unix::net::UnixStream::connect(path) {
                Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                _ => return Err(error),
            }
            UnixListener::bind(path)?
        }
        other => other?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
