//! The other side of a test: lets itself be written and read, receives SENDs, answers ping-pongs, tells what arrived.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use everywire_net::TokioRt;
use everywire_verbs::rt::{Either, Rt, select};
use everywire_verbs::{
    Access, ConnParam, ConnectRequest, Connection, Cq, Device, ListenOptions, Listener, MemoryRegion, Pd, Qp,
    QpCaps, QpInit, QpState, Qpn, RecvWr, ResolveRequest, UdDest, UdListener, WcStatus,
};

use super::client::{UNACKNOWLEDGED, slots};
use super::datagram::{self, IDLE, headroom};
use super::hello::{self, Hello};
use super::latency::{PingPong, Turn};
use super::{Args, MAX_SIZE, Operation, Plan, Service};
use crate::error::{self, CliError, print};
use crate::probe;
use crate::second;
use crate::serve::Signals;

/// Receives posted for a test of SENDs: enough that a client's whole window finds one.
const RECEIVES: u32 = 512;
/// Completions taken at once.
const BATCH: usize = 64;
/// Largest window a client may ask for.
const MAX_DEPTH: u32 = 4096;
/// How long the answer to "what arrived" waits for what is still in the sockets.
const SETTLE: Duration = Duration::from_millis(50);

/// What the tests in progress share.
#[derive(Clone)]
struct Server {
    device: Device,
    rt: Rt,
    /// SENDs received, by our queue pair.
    arrived: Rc<RefCell<HashMap<Qpn, Rc<Cell<u64>>>>>,
}

/// One test's end here.
struct End {
    qp: Qp,
    cq: Cq,
    buffer: MemoryRegion,
    hello: Hello,
}

/// Serves measuring clients. SIGTERM or SIGINT ends it in order; a ping-pong, which spins, is ended first.
pub fn run(args: &Args) -> Result<(), CliError> {
    match (args.until_stdin_ends, args.idle) {
        (true, true) => second::end_with_stdin(),
        (true, false) => second::stop_with_stdin(),
        (false, _) => {}
    }
    let host = args.device.open_to_serve()?;
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    host.run(&runtime).map_err(CliError::failed)?;
    if args.idle {
        return super::idle::serve(&host, &runtime);
    }
    let device = host.device().clone();
    let addr = crate::device::listen_at(&host, args.port)?;
    let listener = device.listen(addr, ListenOptions::default()).map_err(error::cm)?;
    let ud = device.attributes().ud;
    let datagrams = ud.then(|| device.listen_udp(addr, ListenOptions::default())).transpose();
    let datagrams = datagrams.map_err(error::cm)?;
    let server = Server { device: device.clone(), rt: runtime.handle(), arrived: Rc::default() };
    runtime.block_on(async {
        // Signals count from before the first line of output, so that whoever reads it may send one.
        let mut signals = Signals::new()?;
        print(crate::device::listening(&host, addr))?;
        match select(server.serve_all(&listener, datagrams.as_ref()), signals.next()).await {
            Either::First(ended) => ended,
            Either::Second(name) => {
                if !args.until_stdin_ends {
                    eprintln!("perf: stopped by {name}");
                }
                Ok(())
            }
        }
    })
}

impl Server {
    /// Serves whoever comes, for ever.
    async fn serve_all(&self, listener: &Listener, datagrams: Option<&UdListener>) -> Result<(), CliError> {
        loop {
            let asked = async {
                match datagrams {
                    Some(datagrams) => datagrams.next_request().await,
                    None => std::future::pending().await,
                }
            };
            match select(listener.next_request(), std::pin::pin!(asked)).await {
                Either::First(request) => {
                    let request = request.map_err(error::cm)?;
                    self.spawn(request.peer(), self.clone().serve(request));
                }
                Either::Second(request) => {
                    self.spawn(request.peer(), self.clone().serve_datagrams(request));
                }
            }
        }
    }

    /// A test that fails is reported and ends alone.
    fn spawn(&self, peer: SocketAddr, test: impl Future<Output = Result<(), CliError>> + 'static) {
        drop(self.rt.spawn(async move {
            if let Err(e) = test.await {
                eprintln!("everywire: perf client {peer}: {e}");
            }
        }));
    }

    /// A test on a connection.
    async fn serve(self, request: ConnectRequest) -> Result<(), CliError> {
        let hello = match check(request.private_data()).and_then(|hello| self.can(hello)) {
            Ok(hello) => hello,
            Err(why) => {
                request.reject(truncated(&why)).map_err(error::cm)?;
                return Err(CliError::peer(why));
            }
        };
        let pd = self.device.alloc_pd().map_err(CliError::failed)?;
        let end = End::new(&pd, hello)?;
        let answer = Hello { buffer_len: end.buffer.len() as u64, remote: end.buffer.remote(0), ..hello };
        let asked = request.param();
        let param = ConnParam {
            private_data: answer.emit(),
            responder_resources: asked.initiator_depth,
            initiator_depth: asked.responder_resources,
            ..ConnParam::default()
        };
        let connection = request.accept(&end.qp, param).await.map_err(error::cm)?;
        let outcome = match (hello.latency, hello.operation) {
            (true, Operation::Write | Operation::Send) => end.answer_turns(None),
            (false, Operation::Send) => self.receive_all(&end, Some(&connection)).await,
            _ => self.until_closed(&end, &connection).await,
        };
        // A lost client answers no request to disconnect.
        if outcome.is_ok() {
            connection.disconnect().await;
        }
        outcome
    }

    /// What this device does not have is refused with words: the client's requests would only end in errors.
    fn can(&self, hello: Hello) -> Result<Hello, String> {
        match hello.operation.lacked_by(&self.device) {
            None => Ok(hello),
            Some(_) => {
                let name = self.device.name();
                Err(format!("no atomics at this end: start it with --device {name},rfc7306"))
            }
        }
    }

    /// Waits until the client disconnects, of whose READs and WRITEs nothing is seen here; or is lost.
    async fn until_closed(&self, end: &End, connection: &Connection) -> Result<(), CliError> {
        let mut closed = std::pin::pin!(connection.closed());
        while self.rt.timeout(probe::SILENCE, &mut closed).await.is_err() {
            if end.qp.state() == QpState::Err && connection.closed_reason().is_none() {
                return Err(CliError::peer(error::ended(WcStatus::RetryExcErr, None, None)));
            }
            end.ask(connection).await?;
        }
        Ok(())
    }

    /// A test of datagrams, or a question.
    async fn serve_datagrams(self, request: ResolveRequest) -> Result<(), CliError> {
        if let Some(qpn) = hello::parse_question(request.private_data()) {
            self.rt.sleep(SETTLE).await;
            let count = self.arrived.borrow().get(&qpn).map(|count| count.get());
            let Some(count) = count else { return request.reject(&[]).map_err(error::cm) };
            // A Valid answer names a queue pair; the client reads only the count.
            let pd = self.device.alloc_pd().map_err(CliError::failed)?;
            let cq = self.device.create_cq(1).map_err(CliError::failed)?;
            let qp = datagram::queue_pair(&pd, &cq, QpCaps::default()).map_err(CliError::failed)?;
            return request.accept(&qp, datagram::QKEY, &hello::count(count)).map_err(error::cm);
        }
        let hello = match check(request.private_data()) {
            Ok(hello) if hello.service == Service::Ud => hello,
            Ok(_) => return request.reject(b"connect for this test").map_err(error::cm),
            Err(why) => {
                request.reject(truncated(&why)).map_err(error::cm)?;
                return Err(CliError::peer(why));
            }
        };
        let pd = self.device.alloc_pd().map_err(CliError::failed)?;
        let back = datagram::way_back(&pd, request.peer(), hello.qpn).await.map_err(CliError::failed)?;
        let end = End::new(&pd, hello)?;
        request.accept(&end.qp, datagram::QKEY, &hello.emit()).map_err(error::cm)?;
        if hello.latency { end.answer_turns(Some(back)) } else { self.receive_all(&end, None).await }
    }

    /// Receives until the client disconnects, or on UD falls silent.
    async fn receive_all(&self, end: &End, connection: Option<&Connection>) -> Result<(), CliError> {
        let count = Rc::new(Cell::new(0));
        self.arrived.borrow_mut().insert(end.qp.qpn(), count.clone());
        let mut done = Vec::with_capacity(BATCH);
        let outcome = loop {
            done.clear();
            let waiting = end.cq.wait(&mut done, BATCH);
            let waited = match end.hello.service {
                Service::Ud => self.rt.timeout(IDLE, waiting).await,
                _ => self.rt.timeout(probe::SILENCE, waiting).await,
            };
            match waited {
                Err(_) => match connection {
                    None => break Ok(()),
                    Some(connection) => match end.ask(connection).await {
                        Ok(()) => continue,
                        Err(lost) => break Err(lost),
                    },
                },
                Ok(Err(e)) => break Err(CliError::failed(e)),
                Ok(Ok(_)) => {}
            }
            match done.iter().find(|c| c.status != WcStatus::Success).map(|c| c.status) {
                None => {}
                Some(WcStatus::WrFlushErr) => break Ok(()),
                Some(status) => break Err(CliError::peer(error::ended(status, None, None))),
            }
            count.set(count.get() + done.len() as u64);
            let again: Vec<RecvWr> = done.iter().map(|c| end.receive(c.wr_id)).collect();
            if end.qp.post_recv_list(again).is_err() {
                break Ok(()); // disconnected meanwhile
            }
        };
        self.arrived.borrow_mut().remove(&end.qp.qpn());
        outcome
    }
}

/// What a client asks for must fit.
fn check(private_data: &[u8]) -> Result<Hello, String> {
    let hello = Hello::parse(private_data)?;
    if hello.size == 0 || hello.size > MAX_SIZE {
        return Err(format!("messages of {} bytes; from 1 to {MAX_SIZE}", hello.size));
    }
    if hello.depth == 0 || hello.depth > MAX_DEPTH {
        return Err(format!("{} messages in flight; from 1 to {MAX_DEPTH}", hello.depth));
    }
    Ok(hello)
}

/// As much of a text as a rejection carries.
fn truncated(text: &str) -> &[u8] {
    let bytes = text.as_bytes();
    &bytes[..bytes.len().min(everywire_verbs::RESOLVED_PRIVATE_DATA)]
}

impl End {
    fn new(pd: &Pd, hello: Hello) -> Result<End, CliError> {
        let device = pd.device();
        let cq = device.create_cq(RECEIVES + 64).map_err(CliError::failed)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let headroom = headroom(hello.service);
        let (slots, slot_bytes) = slots(hello.size, hello.depth);
        let buffer = pd.register((slots * slot_bytes + headroom) * 2, access).map_err(CliError::failed)?;
        let caps = QpCaps { max_send_wr: UNACKNOWLEDGED, max_recv_wr: RECEIVES, ..QpCaps::default() };
        let qp = match hello.service {
            Service::Ud => datagram::queue_pair(pd, &cq, caps).map_err(CliError::failed)?,
            _ => {
                let init = QpInit { caps, ..QpInit::new(hello.service.qp_type(), &cq) };
                let qp = pd.create_qp(&init).map_err(CliError::failed)?;
                qp.to_init(access).map_err(CliError::failed)?;
                qp
            }
        };
        let end = End { qp, cq, buffer, hello };
        if hello.operation == Operation::Send {
            let list: Vec<RecvWr> = match hello.latency {
                true => vec![PingPong::receive_into(&end.buffer, hello.size as usize + headroom)],
                false => (0..RECEIVES).map(|i| end.receive(u64::from(i))).collect(),
            };
            end.qp.post_recv_list(list).map_err(CliError::failed)?;
        }
        Ok(end)
    }

    /// Asks a silent client whether it is there: RC by the queue pair itself, which ends if it is not.
    async fn ask(&self, connection: &Connection) -> Result<(), CliError> {
        if self.hello.service != Service::Uc {
            probe::ask(&self.qp);
            return Ok(());
        }
        let asked = probe::ask_manager(self.qp.pd(), connection.peer());
        match select(asked, std::pin::pin!(connection.closed())).await {
            // It may have left while it was asked.
            Either::First(Err(lost)) if connection.closed_reason().is_none() => Err(lost),
            _ => Ok(()),
        }
    }

    /// The receive of slot `index`.
    fn receive(&self, index: u64) -> RecvWr {
        let (slots, slot_bytes) = slots(self.hello.size, self.hello.depth);
        let at = index as usize % slots * slot_bytes;
        let len = self.hello.size as usize + headroom(self.hello.service);
        RecvWr::new(index, [self.buffer.sge(at..at + len)])
    }

    /// Answers every turn of a ping-pong until the client leaves. Spins; the thread serves nobody else meanwhile.
    fn answer_turns(&self, back: Option<UdDest>) -> Result<(), CliError> {
        let hello = &self.hello;
        let mut side =
            PingPong::new(&self.qp, &self.cq, &self.buffer, hello.remote, hello.size as usize, back);
        let mut turns = 0_u64;
        loop {
            turns += 1;
            let turn = Plan::turn(turns);
            let arrived = match hello.operation {
                Operation::Write => side.await_write(turn)?,
                _ => side.await_send()?,
            };
            if arrived != Turn::Arrived {
                return Ok(());
            }
            match hello.operation {
                Operation::Write => side.write(turn)?,
                _ => side.send()?,
            }
        }
    }
}
