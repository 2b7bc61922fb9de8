//! A disk in memory whose reads and writes wait while it is held, behind logical units as programs have them.
#![allow(dead_code)]

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use everywire_block::{Backend, Geometry, IoBuf, IoFuture, IoResult, RamBackend, SharedBuffer};
use everywire_iscsi::target::LunDevice;
use everywire_scsi::lun::{LogicalUnit, LunConfig};
use everywire_scsi::target::Target;

use super::{BLOCK, TARGET, name};

/// The disk.
pub struct Held {
    ram: Arc<RamBackend>,
    gate: Arc<Mutex<Gate>>,
}

#[derive(Default)]
struct Gate {
    held: bool,
    inside: usize,
    wakers: Vec<Waker>,
}

fn lock(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().expect("whole")
}

async fn pass(gate: Arc<Mutex<Gate>>) {
    lock(&gate).inside += 1;
    std::future::poll_fn(|cx| {
        let mut gate = lock(&gate);
        if gate.held {
            gate.wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        gate.inside -= 1;
        Poll::Ready(())
    })
    .await;
}

impl Held {
    pub fn new(blocks: u64) -> Arc<Held> {
        let ram = Arc::new(RamBackend::new(BLOCK as u32, blocks).expect("fits"));
        Arc::new(Held { ram, gate: Arc::default() })
    }

    /// Commands that come wait until it is let go.
    pub fn hold(&self, held: bool) {
        let mut gate = lock(&self.gate);
        gate.held = held;
        if !held {
            gate.wakers.drain(..).for_each(Waker::wake);
        }
    }

    /// Commands that wait.
    pub fn inside(&self) -> usize {
        lock(&self.gate).inside
    }

    /// All bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let Geometry { block_size, blocks, .. } = self.ram.geometry();
        let all = SharedBuffer::new(vec![0; block_size as usize * blocks as usize]);
        let Ok(read) = self.ram.read(0, &all.io()).into_ready() else { panic!("memory does not wait") };
        read.expect("reads");
        all.to_vec()
    }

    /// A device of one logical unit, this disk; somebody is to drive the unit.
    pub fn device(self: &Arc<Self>) -> (Rc<LunDevice>, Arc<LogicalUnit>) {
        let map = Target::new().lun_map();
        let unit = LogicalUnit::new(LunConfig::new("held", self.clone())).expect("a unit");
        map.add(0, unit.clone()).expect("free");
        (LunDevice::new(name(TARGET), map), unit)
    }
}

impl Backend for Held {
    fn geometry(&self) -> Geometry {
        self.ram.geometry()
    }

    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult> {
        if !lock(&self.gate).held {
            return self.ram.read(offset, into);
        }
        let (ram, gate, into) = (self.ram.clone(), self.gate.clone(), into.clone());
        IoFuture::pending(async move {
            pass(gate).await;
            ram.read(offset, &into).await
        })
    }

    fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoFuture<IoResult> {
        if !lock(&self.gate).held {
            return self.ram.write(offset, from, fua);
        }
        let (ram, gate, from) = (self.ram.clone(), self.gate.clone(), from.clone());
        IoFuture::pending(async move {
            pass(gate).await;
            ram.write(offset, &from, fua).await
        })
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
