//! A target and initiators in virtual time, joined by pipes that can be cut, with a disk of a handful of commands behind.
#![allow(dead_code)]

mod disk;
pub mod held;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use everywire_iscsi::initiator::{Connector, Initiator, IscsiError, Options};
use everywire_iscsi::name::IscsiName;
use everywire_iscsi::target::{Node, Portal, Target, TargetOptions};
use everywire_iscsi::tcp::ByteStream;
use everywire_sim::World;
use everywire_verbs::rt::{LocalFuture, Rt};

#[allow(unused_imports)]
pub use disk::{BLOCK, MiniDisk, STUCK};

pub const TARGET: &str = "iqn.2001-04.com.example:disk";
pub const HOST: &str = "iqn.2001-04.com.example:host";
pub const LIMIT: Duration = Duration::from_secs(600);

pub fn name(text: &str) -> IscsiName {
    text.parse().expect("a name")
}

#[derive(Default)]
struct Way {
    bytes: BytesMut,
    reader: Option<Waker>,
    writer: Option<Waker>,
    closed: bool,
}

/// One direction of a pipe; it takes so many bytes before its reader must read.
#[derive(Clone, Default)]
struct Half(Rc<RefCell<Way>>);

const ROOM: usize = 100_003;

impl Half {
    fn close(&self) {
        let way = &mut *self.0.borrow_mut();
        way.closed = true;
        way.reader.take().into_iter().chain(way.writer.take()).for_each(Waker::wake);
    }
}

/// One end of a pipe.
pub struct Pipe {
    from: Half,
    to: Half,
    /// Bytes read at once.
    step: usize,
    drip: Rc<Cell<Option<usize>>>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.from.close();
        self.to.close();
    }
}

impl ByteStream for Pipe {
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        let way = &mut *self.from.0.borrow_mut();
        let count = way.bytes.len().min(self.step).min(self.drip.get().unwrap_or(usize::MAX));
        if count == 0 && !(way.closed && way.bytes.is_empty()) {
            way.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        into.extend_from_slice(&way.bytes[..count]);
        way.bytes.advance(count);
        self.drip.set(self.drip.get().map(|left| left - count));
        way.writer.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(count))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let way = &mut *self.to.0.borrow_mut();
        if way.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = ROOM - way.bytes.len();
        if room == 0 {
            way.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut written = 0;
        for piece in pieces {
            let take = piece.len().min(room - written);
            way.bytes.extend_from_slice(&piece[..take]);
            written += take;
        }
        way.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(written))
    }
}

/// Makes pipes to the target of a [`Lab`].
#[derive(Clone)]
pub struct Pipes {
    rt: Rt,
    target: Target,
    halves: Rc<RefCell<VecDeque<(Half, Half)>>>,
    pub step: usize,
    pub up: Rc<Cell<bool>>,
    drip: Rc<Cell<Option<usize>>>,
}

impl Pipes {
    /// From now on so many bytes are read in 100 us, of all pipes together.
    pub fn drip(&self, bytes: usize) {
        let (rt, halves, drip) = (self.rt.clone(), self.halves.clone(), self.drip.clone());
        self.rt.spawn(async move {
            loop {
                drip.set(Some(bytes));
                for (one, other) in &*halves.borrow() {
                    let wakers = [one, other].map(|half| half.0.borrow_mut().reader.take());
                    wakers.into_iter().flatten().for_each(Waker::wake);
                }
                rt.sleep(Duration::from_micros(100)).await;
            }
        });
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.halves.borrow_mut().drain(..).for_each(|(one, other)| {
            one.close();
            other.close();
        });
    }

    pub fn open(&self) -> Pipe {
        let (one, other) = (Half::default(), Half::default());
        self.halves.borrow_mut().push_back((one.clone(), other.clone()));
        let theirs = Pipe { from: one.clone(), to: other.clone(), step: self.step, drip: self.drip.clone() };
        let target = self.target.clone();
        self.rt.spawn(async move { target.serve_tcp(theirs, address(9), address(3260)).await });
        Pipe { from: other, to: one, step: self.step, drip: self.drip.clone() }
    }
}

impl Connector for Pipes {
    type Stream = Pipe;

    fn connect(&self, _: SocketAddr) -> LocalFuture<io::Result<Pipe>> {
        let opened =
            if self.up.get() { Ok(self.open()) } else { Err(io::ErrorKind::ConnectionRefused.into()) };
        Box::pin(async move { opened })
    }
}

/// What logs in by pipes.
pub fn connector(pipes: Pipes) -> impl Fn(&Rt, Options) -> LocalFuture<Result<Initiator, IscsiError>> {
    move |rt, options| {
        let (rt, pipes) = (rt.clone(), pipes.clone());
        Box::pin(async move { Initiator::connect(&rt, pipes, address(3260), &name(TARGET), options).await })
    }
}

pub fn address(port: u16) -> SocketAddr {
    SocketAddr::new([192, 0, 2, 1].into(), port)
}

/// The whole of it.
pub struct Lab {
    pub world: World,
    pub target: Target,
    pub disk: MiniDisk,
    pub pipes: Pipes,
}

impl Lab {
    pub fn new(seed: u64) -> Lab {
        Lab::with(seed, TargetOptions::default(), |_| {})
    }

    pub fn with(seed: u64, options: TargetOptions, change: impl FnOnce(&mut Node)) -> Lab {
        let world = World::new(seed);
        let rt = world.rt_outside();
        let target = Target::new(rt.clone(), options).expect("a target");
        let disk = MiniDisk::default();
        let mut node = Node::new(name(TARGET), Rc::new(disk.clone()));
        change(&mut node);
        target.add_node(node).expect("a node");
        target.add_portal(Portal { address: address(3260), group: 1, rdma: false });
        let pipes = Pipes {
            rt,
            target: target.clone(),
            halves: Rc::default(),
            step: 70_001,
            up: Rc::new(Cell::new(true)),
            drip: Rc::default(),
        };
        Lab { world, target, disk, pipes }
    }

    pub fn rt(&self) -> Rt {
        // The same source of entropy for all: each session gets its own ISID.
        self.pipes.rt.clone()
    }

    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(LIMIT, future).expect("it ends")
    }

    pub fn options(&self) -> Options {
        Options::new(name(HOST))
    }

    pub fn connect(&self, options: Options) -> impl Future<Output = Result<Initiator, IscsiError>> + 'static {
        let (rt, pipes) = (self.rt(), self.pipes.clone());
        async move { Initiator::connect(&rt, pipes, address(3260), &name(TARGET), options).await }
    }
}

pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}
