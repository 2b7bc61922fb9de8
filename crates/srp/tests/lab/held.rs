//! A disk in memory whose reads and writes wait while it is held.
#![allow(dead_code)]

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use everywire_block::{Backend, Geometry, IoBuf, IoFuture, IoResult, RamBackend, SharedBuffer};

/// The disk.
pub struct Held {
    ram: Arc<RamBackend>,
    gate: Arc<Mutex<Gate>>,
}

/// What they wait at.
#[derive(Default)]
pub struct Gate {
    held: bool,
    wakers: Vec<Waker>,
}

/// Commands that come from now on wait until it is let go.
pub fn hold(gate: &Mutex<Gate>, held: bool) {
    let mut gate = gate.lock().expect("whole");
    gate.held = held;
    if !held {
        gate.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Held {
    pub fn new(blocks: u64) -> (Arc<Self>, Arc<Mutex<Gate>>) {
        let gate = Arc::<Mutex<Gate>>::default();
        let ram = Arc::new(RamBackend::new(512, blocks).expect("fits"));
        (Arc::new(Self { ram, gate: gate.clone() }), gate)
    }

    /// All bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let all = SharedBuffer::new(vec![0; 512 * self.ram.geometry().blocks as usize]);
        let Ok(read) = self.ram.read(0, &all.io()).into_ready() else { panic!("memory does not wait") };
        read.expect("reads");
        all.to_vec()
    }

    /// Does its work once the gate is open.
    fn through(
        &self,
        work: impl Fn(&RamBackend) -> IoFuture<IoResult> + Send + 'static,
    ) -> IoFuture<IoResult> {
        let (ram, gate) = (self.ram.clone(), self.gate.clone());
        if !gate.lock().expect("whole").held {
            return work(&ram);
        }
        IoFuture::pending(async move {
            std::future::poll_fn(|cx| {
                let mut gate = gate.lock().expect("whole");
                if gate.held {
                    gate.wakers.push(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
            work(&ram).await
        })
    }
}

impl Backend for Held {
    fn geometry(&self) -> Geometry {
        self.ram.geometry()
    }
    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult> {
        let into = into.clone();
        self.through(move |ram| ram.read(offset, &into))
    }
    fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoFuture<IoResult> {
        let from = from.clone();
        self.through(move |ram| ram.write(offset, &from, fua))
    }
    fn flush(&self) -> IoFuture<IoResult> {
        self.ram.flush()
    }
    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> IoFuture<IoResult> {
        self.ram.write_zeroes(offset, len, may_unmap)
    }
    fn discard(&self, offset: u64, len: u64) -> IoFuture<IoResult> {
        self.ram.discard(offset, len)
    }
    fn describe(&self) -> String {
        "a disk in memory that is held".to_owned()
    }
}
