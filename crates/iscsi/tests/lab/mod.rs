//! A target and initiators in virtual time, joined by pipes that can be cut, with a disk of a handful of commands behind.
#![allow(dead_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use everywire_block::{IoBuf, IoFuture};
use everywire_iscsi::initiator::{Connector, Initiator, IscsiError, Options};
use everywire_iscsi::name::IscsiName;
use everywire_iscsi::pdu::TaskResult;
use everywire_iscsi::session::scsi::{Command, Function, Nexus, Outcome, Residual, Submitted, Task};
use everywire_iscsi::target::{Device, InitiatorPort, Node, Portal, Target, TargetOptions};
use everywire_iscsi::tcp::ByteStream;
use everywire_sim::World;
use everywire_verbs::rt::{LocalFuture, Rt};

pub const TARGET: &str = "iqn.2001-04.com.example:disk";
pub const HOST: &str = "iqn.2001-04.com.example:host";
pub const BLOCK: usize = 512;
pub const BLOCKS: usize = 8192;
/// Never ends, until it is aborted.
pub const STUCK: u8 = 0xff;
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
        let count = way.bytes.len().min(self.step);
        if count == 0 && !way.closed {
            way.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        into.extend_from_slice(&way.bytes[..count]);
        way.bytes.advance(count);
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
}

impl Pipes {
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
        let theirs = Pipe { from: one.clone(), to: other.clone(), step: self.step };
        let target = self.target.clone();
        self.rt.spawn(async move { target.serve_tcp(theirs, address(9), address(3260)).await });
        Pipe { from: other, to: one, step: self.step }
    }
}

impl Connector for Pipes {
    type Stream = Pipe;

    fn connect(&self, _: SocketAddr) -> LocalFuture<io::Result<Pipe>> {
        let opened = if self.up.get() { Ok(self.open()) } else { Err(io::ErrorKind::ConnectionRefused.into()) };
        Box::pin(async move { opened })
    }
}

pub fn address(port: u16) -> SocketAddr {
    SocketAddr::new([192, 0, 2, 1].into(), port)
}

/// The disk.
#[derive(Clone)]
pub struct MiniDisk {
    pub bytes: Rc<RefCell<Vec<u8>>>,
    pub nexuses: Rc<Cell<usize>>,
    pub seen: Rc<RefCell<Vec<Command>>>,
    pub managed: Rc<RefCell<Vec<Function>>>,
}

impl Default for MiniDisk {
    fn default() -> Self {
        let bytes = Rc::new(RefCell::new(vec![0; BLOCKS * BLOCK]));
        MiniDisk { bytes, nexuses: Rc::default(), seen: Rc::default(), managed: Rc::default() }
    }
}

struct MiniNexus(MiniDisk);

impl Drop for MiniNexus {
    fn drop(&mut self) {
        self.0.nexuses.set(self.0.nexuses.get() - 1);
    }
}

impl Device for MiniDisk {
    fn nexus(&self, _: &InitiatorPort) -> Box<dyn Nexus> {
        self.nexuses.set(self.nexuses.get() + 1);
        Box::new(MiniNexus(self.clone()))
    }
}

struct MiniTask {
    disk: MiniDisk,
    command: Command,
    at: usize,
    len: usize,
}

impl MiniTask {
    fn residual(&self, expected: u32) -> Residual {
        match self.len as i64 - i64::from(expected) {
            0 => Residual::None,
            over @ 1.. => Residual::Over(over as u32),
            under => Residual::Under(-under as u32),
        }
    }
}

impl Task for MiniTask {
    fn data_out(&self) -> u32 {
        if self.command.cdb[0] == 0x8a { self.command.data_out.min(self.len as u32) } else { 0 }
    }

    fn data_in(&self) -> u32 {
        if self.command.cdb[0] == 0x88 { self.command.data_in.min(self.len as u32) } else { 0 }
    }

    fn execute(self: Box<Self>, memory: IoBuf) -> IoFuture<Option<Outcome>> {
        if self.command.cdb[0] == STUCK {
            return IoFuture::pending(std::future::pending());
        }
        let (expected, moved) = if self.data_out() > 0 {
            let len = self.data_out() as usize;
            memory.load(0, &mut self.disk.bytes.borrow_mut()[self.at..self.at + len]);
            (self.command.data_out, 0)
        } else {
            let len = self.data_in() as usize;
            memory.store(0, &self.disk.bytes.borrow()[self.at..self.at + len]);
            (self.command.data_in, len as u32)
        };
        let residual = self.residual(expected);
        IoFuture::ready(Some(Outcome { data_in: moved, residual, ..Outcome::default() }))
    }
}

struct Fixed(Vec<u8>, u32);

impl Task for Fixed {
    fn data_out(&self) -> u32 {
        0
    }

    fn data_in(&self) -> u32 {
        self.1.min(self.0.len() as u32)
    }

    fn execute(self: Box<Self>, memory: IoBuf) -> IoFuture<Option<Outcome>> {
        let len = self.data_in();
        memory.store(0, &self.0[..len as usize]);
        let residual = if len < self.1 { Residual::Under(self.1 - len) } else { Residual::None };
        IoFuture::ready(Some(Outcome { data_in: len, residual, ..Outcome::default() }))
    }
}

impl Nexus for MiniNexus {
    fn submit(&self, command: &Command) -> Submitted {
        self.0.seen.borrow_mut().push(command.clone());
        let cdb = &command.cdb;
        let word = |at: usize| u32::from_be_bytes(cdb[at..at + 4].try_into().expect("4 bytes")) as usize;
        match cdb[0] {
            0x00 | 0x35 => Submitted::Done(Outcome::default()),
            0x9e => {
                let mut data = vec![0; 32];
                data[..8].copy_from_slice(&(BLOCKS as u64 - 1).to_be_bytes());
                data[8..12].copy_from_slice(&(BLOCK as u32).to_be_bytes());
                Submitted::Task(Box::new(Fixed(data, command.data_in)))
            }
            0x88 | 0x8a | STUCK => Submitted::Task(Box::new(MiniTask {
                disk: self.0.clone(),
                command: command.clone(),
                at: word(6) * BLOCK,
                len: word(10) * BLOCK,
            })),
            _ => {
                let mut sense = vec![0; 18];
                (sense[0], sense[2], sense[7], sense[12]) = (0x70, 5, 10, 0x20);
                Submitted::Done(Outcome { status: 2, sense, ..Outcome::default() })
            }
        }
    }

    fn manage(&self, _: u64, function: Function) -> IoFuture<TaskResult> {
        self.0.managed.borrow_mut().push(function);
        IoFuture::ready(TaskResult::Complete)
    }
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
        target.add_portal(Portal { address: address(3260), group: 1 });
        let pipes = Pipes {
            rt,
            target: target.clone(),
            halves: Rc::default(),
            step: 70_001,
            up: Rc::new(Cell::new(true)),
        };
        Lab { world, target, disk, pipes }
    }

    pub fn rt(&self) -> Rt {
        self.world.rt_outside()
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
