//! The cases, one file a subject. A case is a function on the bench; its variants are address families, MTUs and a
//! lossy link. Those marked as sample run in `cargo xtask test`, all of them in `cargo xtask soak`.

mod iscsi_initiator;
mod iscsi_target;
mod kernel;
mod multipath;
mod nvme_attach;
mod nvme_initiator;
mod nvme_target;
mod ours;
mod ping;
mod srp;

use super::bench::Bench;
use super::lab::Family;
use super::wire::{Siw, Wire};

/// One case in one variant.
#[derive(Clone)]
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
    /// Whether the guest's disk is a map of several paths, of which one at a time is lost; then its drivers reconnect, too.
    pub loses_paths: bool,
    /// Whether the guest's target is expected to refuse logins.
    pub refuses: bool,
    /// Whether it shows an error of Linux's own, with nothing of ours in it: then only what may never be in a log is judged.
    pub proof: bool,
    /// Whether `cargo xtask test` runs it.
    pub sample: bool,
    pub run: fn(&mut Bench) -> Result<(), String>,
}

impl Case {
    /// RoCE v2, IPv4, MTU 1500, a clean link, not in the sample.
    pub(super) fn new(name: &str, about: &'static str, run: fn(&mut Bench) -> Result<(), String>) -> Case {
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
            loses_paths: false,
            refuses: false,
            proof: false,
            sample: false,
            run,
        }
    }

    /// The same over iWARP, with this siw in the guests.
    fn siw(self, siw: Siw) -> Case {
        Case { name: format!("siw-{}{}", siw.prefix(), self.name), wire: Wire::Iwarp(siw), ..self }
    }

    /// The same over TCP.
    fn tcp(self) -> Case {
        Case { wire: Wire::Tcp, ..self }
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

    fn losing_paths(self) -> Case {
        Case { loses_paths: true, ..self.reconnecting() }
    }

    fn refusing(self) -> Case {
        Case { refuses: true, ..self }
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

/// IPv4 and IPv6 at Ethernet's MTU and with jumbo frames.
const EVERY_LINK: [(Family, u32); 4] =
    [(Family::V4, 1500), (Family::V6, 1500), (Family::V4, 9000), (Family::V6, 9000)];

/// The smallest and the largest segments, each in one family.
const TWO_LINKS: [(Family, u32); 2] = [(Family::V4, 1500), (Family::V6, 9000)];

/// Of the cases over iWARP those in the sample: every subject, and every siw.
const SIW_SAMPLE: [&str; 10] = [
    "siw-ping-client",
    "siw-crc-ping-server-v6",
    "siw-p2p-ping-server-9000",
    "siw-p2p-crc-ping-client-v6-9000",
    "siw-p2p-nvme-initiator-v6-9000",
    "siw-crc-nvme-attach-files",
    "siw-p2p-nvme-attach-port-v6-9000",
    "siw-crc-nvme-target-files",
    "siw-nvme-target-fio-v6-9000",
    "siw-p2p-crc-nvme-target-kill",
];

/// A case over iWARP with every siw, on each of these links.
fn over_siw(case: &Case, links: &[(Family, u32)]) -> Vec<Case> {
    let on = |siw, &(family, mtu): &(Family, u32)| {
        let case = case.clone().siw(siw);
        let case = if family == Family::V6 { case.v6() } else { case };
        let case = if mtu > 1500 { case.jumbo() } else { case };
        if SIW_SAMPLE.contains(&&*case.name) { case.in_sample() } else { Case { sample: false, ..case } }
    };
    Siw::ALL.into_iter().flat_map(|siw| links.iter().map(move |link| on(siw, link))).collect()
}

/// Every case, in the order they run.
pub fn all() -> Vec<Case> {
    [
        kernel::cases(),
        ping::cases(),
        nvme_initiator::cases(),
        nvme_attach::cases(),
        nvme_target::cases(),
        iscsi_target::cases(),
        iscsi_initiator::cases(),
        srp::cases(),
        multipath::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
