//! The cases, one file a subject. A case is a function on the bench; its variants are address families, MTUs and a
//! lossy link. Those marked as sample run in `cargo xtask test`, all of them in `cargo xtask soak`.

mod kernel;
mod nvme_initiator;
mod nvme_target;
mod ping;

use super::bench::Bench;
use super::lab::Family;
use super::wire::{Siw, Wire};

/// One case in one variant.
pub struct Case {
    pub name: String,
    pub about: &'static str,
    pub family: Family,
    pub wire: Wire,
    /// Ethernet MTU of every link.
    pub mtu: u32,
    /// 1 % loss and reordering on guest A's link, both ways.
    pub lossy: bool,
    /// Whether the Linux host registers its buffers, as is its default; soft-RoCE can't on a link that loses packets.
    pub registers: bool,
    /// Whether guest B takes part.
    pub two_guests: bool,
    /// Whether the guest's nvme driver is expected to lose its target and come back.
    pub reconnects: bool,
    /// Whether it shows an error of Linux's own, with nothing of ours in it: then only what may never be in a log is judged.
    pub proof: bool,
    /// Whether `cargo xtask test` runs it.
    pub sample: bool,
    pub run: fn(&mut Bench) -> Result<(), String>,
}

impl Case {
    /// RoCE v2, IPv4, MTU 1500, a clean link, not in the sample.
    fn new(name: &str, about: &'static str, run: fn(&mut Bench) -> Result<(), String>) -> Case {
        let name = name.to_owned();
        Case {
            name,
            about,
            family: Family::V4,
            wire: Wire::RoceV2,
            mtu: 1500,
            lossy: false,
            registers: true,
            two_guests: false,
            reconnects: false,
            proof: false,
            sample: false,
            run,
        }
    }

    /// The same over iWARP, with this siw in the guests.
    fn siw(self, siw: Siw) -> Case {
        let name = match siw {
            Siw::Plain => format!("siw-{}", self.name),
            siw => format!("siw-{}-{}", siw.name(), self.name),
        };
        Case { name, wire: Wire::Iwarp(siw), ..self }
    }

    fn v6(self) -> Case {
        Case { name: self.name + "-v6", family: Family::V6, ..self }
    }

    fn jumbo(self) -> Case {
        Case { name: self.name + "-9000", mtu: 9000, ..self }
    }

    fn lossy(self) -> Case {
        Case { name: self.name + "-loss", lossy: true, registers: false, ..self }
    }

    fn reconnecting(self) -> Case {
        Case { reconnects: true, ..self }
    }

    fn registering(self) -> Case {
        Case { registers: true, ..self }
    }

    fn with_b(self) -> Case {
        Case { two_guests: true, ..self }
    }

    fn proof(self) -> Case {
        Case { proof: true, ..self }
    }

    fn in_sample(self) -> Case {
        Case { sample: true, ..self }
    }
}

/// Every case, in the order they run.
pub fn all() -> Vec<Case> {
    [kernel::cases(), ping::cases(), nvme_initiator::cases(), nvme_target::cases()]
        .into_iter()
        .flatten()
        .collect()
}
