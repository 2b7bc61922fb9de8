//! A disk of a handful of commands in memory, to stand behind a session: for tests of the transport, and the example.
#![allow(dead_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use everywire_block::{IoBuf, IoFuture};
use everywire_iscsi::pdu::TaskResult;
use everywire_iscsi::session::scsi::{Command, Function, Nexus, Outcome, Residual, Submitted, Task};
use everywire_iscsi::target::{Device, InitiatorPort};

pub const BLOCK: usize = 512;
pub const BLOCKS: usize = 65536;
/// Never ends, until it is aborted.
pub const STUCK: u8 = 0xff;

/// The disk.
#[derive(Clone)]
pub struct MiniDisk {
    pub bytes: Rc<RefCell<Vec<u8>>>,
    pub nexuses: Rc<Cell<usize>>,
    pub seen: Rc<RefCell<Vec<Command>>>,
    pub managed: Rc<RefCell<Vec<Function>>>,
    /// Device-specific parameter of the mode parameter header (SBC-3 §6.4.1).
    pub device_specific: Rc<Cell<u8>>,
    /// MAXIMUM TRANSFER LENGTH of the block limits page, which is not there if this is 0.
    pub max_blocks: Rc<Cell<u32>>,
    /// READs end well with half of their data, and no word of the rest.
    pub halves: Rc<Cell<bool>>,
}

impl Default for MiniDisk {
    fn default() -> Self {
        let bytes = Rc::new(RefCell::new(vec![0; BLOCKS * BLOCK]));
        MiniDisk {
            bytes,
            nexuses: Rc::default(),
            seen: Rc::default(),
            managed: Rc::default(),
            device_specific: Rc::default(),
            max_blocks: Rc::default(),
            halves: Rc::default(),
        }
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
        if matches!(self.command.cdb[0], 0x8a | 0x2a) {
            self.command.data_out.min(self.len as u32)
        } else {
            0
        }
    }

    fn data_in(&self) -> u32 {
        if matches!(self.command.cdb[0], 0x88 | 0x28) { self.command.data_in.min(self.len as u32) } else { 0 }
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
        if self.disk.halves.get() {
            return IoFuture::ready(Some(Outcome { data_in: moved / 2, ..Outcome::default() }));
        }
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

fn illegal(asc: u8) -> Submitted {
    let mut sense = vec![0; 18];
    (sense[0], sense[2], sense[7], sense[12]) = (0x70, 5, 10, asc);
    Submitted::Done(Outcome { status: 2, sense, ..Outcome::default() })
}

impl MiniNexus {
    fn blocks(&self, command: &Command, lba: usize, blocks: usize) -> Submitted {
        if lba.checked_add(blocks).is_none_or(|end| end > BLOCKS) {
            return illegal(0x21);
        }
        if self.0.max_blocks.get() != 0 && blocks > self.0.max_blocks.get() as usize {
            return illegal(0x24);
        }
        let (at, len) = (lba * BLOCK, blocks * BLOCK);
        Submitted::Task(Box::new(MiniTask { disk: self.0.clone(), command: command.clone(), at, len }))
    }
}

impl Nexus for MiniNexus {
    fn submit(&self, command: &Command) -> Submitted {
        self.0.seen.borrow_mut().push(command.clone());
        let cdb = &command.cdb;
        let word = |at: usize| u32::from_be_bytes(cdb[at..at + 4].try_into().expect("4 bytes")) as usize;
        match cdb[0] {
            0x00 | 0x35 => Submitted::Done(Outcome::default()),
            0x12 if cdb[1] == 0 => {
                let mut data = vec![0; 36];
                (data[2], data[3], data[4]) = (6, 2, 31);
                data[8..36].copy_from_slice(b"EVERYWIRMini disk       0001");
                Submitted::Task(Box::new(Fixed(data, command.data_in.min(u32::from(cdb[4])))))
            }
            0x12 if cdb[2] == 0xb0 && self.0.max_blocks.get() != 0 => {
                let mut data = vec![0; 64];
                (data[1], data[3]) = (0xb0, 60);
                data[8..12].copy_from_slice(&self.0.max_blocks.get().to_be_bytes());
                Submitted::Task(Box::new(Fixed(data, command.data_in)))
            }
            0x1a => {
                Submitted::Task(Box::new(Fixed(vec![3, 0, self.0.device_specific.get(), 0], command.data_in)))
            }
            0xa0 => {
                let mut data = vec![0; 16];
                data[3] = 8;
                Submitted::Task(Box::new(Fixed(data, command.data_in)))
            }
            0x25 => {
                let mut data = (BLOCKS as u32 - 1).to_be_bytes().to_vec();
                data.extend_from_slice(&(BLOCK as u32).to_be_bytes());
                Submitted::Task(Box::new(Fixed(data, command.data_in)))
            }
            0x28 | 0x2a => self.blocks(command, word(2), usize::from(cdb[7]) << 8 | usize::from(cdb[8])),
            0x9e => {
                let mut data = vec![0; 32];
                data[..8].copy_from_slice(&(BLOCKS as u64 - 1).to_be_bytes());
                data[8..12].copy_from_slice(&(BLOCK as u32).to_be_bytes());
                Submitted::Task(Box::new(Fixed(data, command.data_in)))
            }
            0x88 | 0x8a => self.blocks(command, word(6), word(10)),
            STUCK => self.blocks(command, 0, 0),
            _ => illegal(0x20),
        }
    }

    fn manage(&self, _: u64, function: Function) -> IoFuture<TaskResult> {
        self.0.managed.borrow_mut().push(function);
        IoFuture::ready(TaskResult::Complete)
    }
}
