//! One client's connection: its negotiation, then its commands, many at a time and answered as they end.
//!
//! What a client may keep this server holding is bounded by [`WEIGHT`]: the next command is not read before those under way,
//! whose replies it may not be taking, leave room for it. When the client leaves, or the server is told to stop, what was
//! read is carried out and answered.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use everywire_block::{Backend, IoBuf, IoMemory, IoResult};
use everywire_verbs::rt::{Either, Rt, select};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter, ReadHalf, WriteHalf,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::handshake::{Handshake, Step};
use super::wire::{self, Request};
use super::{Export, MAX_PAYLOAD};

/// How long a client may take to negotiate.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);
/// Room for commands under way, in pages: 64 MiB of data, or 512 commands with little.
const WEIGHT: usize = 16 << 10;
const PAGE: u32 = 4096;
const LEAST_WEIGHT: u32 = 32;
/// Bytes read from and written to the socket at a time, where there are so many.
const SOCKET_BUFFER: usize = 64 << 10;

/// What a connection needs of its server.
pub struct Session {
    pub rt: Rt,
    pub export: Arc<Export>,
    pub backend: Arc<dyn Backend>,
}

/// A command's data, between socket and backend.
struct Payload(Mutex<Vec<u8>>);

impl Payload {
    fn io(self: &Arc<Self>) -> IoBuf {
        let len = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        IoBuf::new(self.clone(), 0, len)
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl IoMemory for Payload {
    fn load(&self, at: usize, into: &mut [u8]) {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        into.copy_from_slice(&bytes[at..at + into.len()]);
    }

    fn store(&self, at: usize, from: &[u8]) {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes[at..at + from.len()].copy_from_slice(from);
    }
}

/// A reply on its way; its command counts as under way until it is written.
struct Reply {
    head: Vec<u8>,
    data: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

/// A client that has negotiated.
pub struct Ready<S> {
    reader: BufReader<ReadHalf<S>>,
    writer: WriteHalf<S>,
    structured: bool,
}

impl Session {
    /// Negotiates; `None` if the client leaves, or is no client.
    pub async fn ready<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S, who: &str) -> Option<Ready<S>> {
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = BufReader::with_capacity(SOCKET_BUFFER, reader);
        match self.rt.timeout(HANDSHAKE_LIMIT, self.negotiate(&mut reader, &mut writer)).await {
            Ok(Ok(structured)) => structured.map(|structured| Ready { reader, writer, structured }),
            Ok(Err(error)) => {
                tracing::warn!("{who}: NBD negotiation: {error}");
                None
            }
            Err(_) => {
                tracing::warn!("{who}: NBD negotiation was not over within {HANDSHAKE_LIMIT:?}");
                None
            }
        }
    }

    /// Serves the client until it leaves or `stop` says true.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
        self,
        ready: Ready<S>,
        who: String,
        stop: watch::Receiver<bool>,
    ) {
        let Ready { mut reader, writer, structured } = ready;
        tracing::info!("{who}: attached");
        let (replies, outgoing) = mpsc::unbounded_channel();
        let written = self.rt.spawn(write_replies(writer, outgoing));
        let end = self.commands(&mut reader, structured, &replies, stop).await;
        drop(replies);
        // Whatever was read is answered first.
        let _ = written.await;
        match end {
            Ok(()) => tracing::info!("{who}: detached"),
            Err(error) => tracing::warn!("{who}: detached: {error}"),
        }
    }

    /// Whether replies are structured; `None` if the client only asked.
    async fn negotiate(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<Option<bool>> {
        let (mut out, mut input) = (Vec::new(), Vec::new());
        let mut handshake = Handshake::new(&self.export, &mut out);
        loop {
            writer.write_all(&out).await?;
            out.clear();
            input.resize(handshake.wants(), 0);
            match reader.read_exact(&mut input).await {
                // Clients that only list or look close without a word.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                other => other?,
            };
            let step = handshake.take(&input, &mut out).map_err(io::Error::other)?;
            if step != Step::More {
                writer.write_all(&out).await?;
            }
            match step {
                Step::More => {}
                Step::Transmission { structured } => return Ok(Some(structured)),
                Step::Leave => return Ok(None),
            }
        }
    }

    /// Reads commands and starts each.
    async fn commands(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        structured: bool,
        replies: &mpsc::UnboundedSender<Reply>,
        mut stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let room = Arc::new(Semaphore::new(WEIGHT));
        let mut head = [0; wire::REQUEST_LEN];
        loop {
            let next = reader.read_exact(&mut head);
            match select(next, stop.wait_for(|stop| *stop)).await {
                Either::First(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Either::First(read) => read?,
                Either::Second(_) => return Ok(()),
            };
            let request = Request::parse(&head)
                .ok_or_else(|| io::Error::other("a request does not begin with NBD's magic number"))?;
            if request.command == wire::DISCONNECT {
                return Ok(());
            }
            if request.data() > MAX_PAYLOAD {
                let why = format!("a command of {} bytes; {MAX_PAYLOAD} is the most", request.length);
                return Err(io::Error::other(why));
            }
            let weight = (request.data() / PAGE).max(LEAST_WEIGHT);
            let room = room.clone().acquire_many_owned(weight).await.map_err(io::Error::other)?;
            let mut data = vec![0; request.payload() as usize];
            reader.read_exact(&mut data).await?;
            let (backend, replies) = (self.backend.clone(), replies.clone());
            self.rt.spawn(async move {
                let done = perform(&*backend, &request, data).await;
                let (result, data) = match done {
                    Ok(data) => (Ok(()), data),
                    Err(error) => (Err(error), Vec::new()),
                };
                let head = wire::reply(&request, structured, result);
                // A client that has left needs no answer.
                let _ = replies.send(Reply { head, data, _room: room });
            });
        }
    }
}

/// Carries a command out: a read's data, or NBD's number of the error.
async fn perform(backend: &dyn Backend, request: &Request, data: Vec<u8>) -> Result<Vec<u8>, u32> {
    check(request)?;
    let (offset, length) = (request.offset, u64::from(request.length));
    let fua = request.flags & wire::FUA != 0;
    let result: IoResult = match request.command {
        wire::READ => {
            let payload = Arc::new(Payload(Mutex::new(vec![0; request.length as usize])));
            let result = backend.read(offset, &payload.io()).await;
            if result.is_ok() {
                return Ok(payload.take());
            }
            result
        }
        wire::WRITE => backend.write(offset, &Arc::new(Payload(Mutex::new(data))).io(), fua).await,
        wire::FLUSH => backend.flush().await,
        wire::TRIM => then_flush(backend, backend.discard(offset, length).await, fua).await,
        _ => {
            let may_unmap = request.flags & wire::NO_HOLE == 0;
            then_flush(backend, backend.write_zeroes(offset, length, may_unmap).await, fua).await
        }
    };
    result.map(|()| Vec::new()).map_err(|error| {
        tracing::warn!("NBD command failed: {error}");
        wire::error_number(&error, request.command)
    })
}

async fn then_flush(backend: &dyn Backend, done: IoResult, fua: bool) -> IoResult {
    match done {
        Ok(()) if fua => backend.flush().await,
        other => other,
    }
}

/// That the command and its flags are known ("Request types"), and that it is about something.
fn check(request: &Request) -> Result<(), u32> {
    // FUA means nothing to a read or a flush, but may be set.
    let flags = match request.command {
        wire::READ => wire::FUA | wire::DONT_FRAGMENT,
        wire::WRITE | wire::FLUSH | wire::TRIM => wire::FUA,
        wire::WRITE_ZEROES => wire::FUA | wire::NO_HOLE,
        _ => return Err(wire::EINVAL),
    };
    let empty = request.length == 0 && request.command != wire::FLUSH;
    if request.flags & !flags != 0 || empty { Err(wire::EINVAL) } else { Ok(()) }
}

/// Writes replies as they come; the last ones before a pause are pushed out.
async fn write_replies(writer: impl AsyncWrite + Unpin, mut outgoing: mpsc::UnboundedReceiver<Reply>) {
    let mut writer = BufWriter::with_capacity(SOCKET_BUFFER, writer);
    while let Some(reply) = outgoing.recv().await {
        let mut next = Some(reply);
        while let Some(reply) = next {
            let written = async {
                writer.write_all(&reply.head).await?;
                writer.write_all(&reply.data).await
            };
            // A client that is gone ends the reading side too.
            if written.await.is_err() {
                return;
            }
            next = outgoing.try_recv().ok();
        }
        if writer.flush().await.is_err() {
            return;
        }
    }
    let _ = writer.shutdown().await;
}
