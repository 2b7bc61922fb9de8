//! Taps on links: every packet as it is on the wire, and a tap that writes them as pcapng.
//!
//! LINKTYPE_INFINIBAND (247) frames are LRH to ICRC, as dissectors know them; the VCRC is left out there, and given to a
//! [`Tap`] of one's own.

use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

use everywire_wire::vcrc::VCRC_LEN;

use super::config::{LinkId, PortId};
use super::subnet::Subnet;
use crate::clock::SimTime;
use crate::pcapng::{InterfaceId, LinkType, PacketInfo, Writer};

/// Sees every packet of a subnet as it begins to cross a link.
pub trait Tap: fmt::Debug + Send {
    /// A packet, LRH to VCRC, that `from` sends at `at`.
    fn packet(&mut self, at: Instant, link: LinkId, from: PortId, packet: &[u8]);
}

impl Subnet {
    /// Puts a tap on all links, in place of the one before.
    pub fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) -> Option<Box<dyn Tap>> {
        std::mem::replace(&mut self.tap, tap)
    }

    #[cold]
    pub(super) fn tell_tap(&mut self, now: SimTime, link: u32, from: u32, id: u32) {
        let (at, from) = (self.clock.instant(now), self.port_id(from));
        let packet = self.packets.get(id).clone().into_bytes();
        if let Some(tap) = &mut self.tap {
            tap.packet(at, LinkId(link), from, &packet);
        }
    }
}

/// Writes a subnet's packets as pcapng, an interface a link.
#[derive(Debug)]
pub struct PcapTap<W: Write> {
    writer: Writer<W>,
    interfaces: Vec<InterfaceId>,
    base: Instant,
    /// Nanoseconds since 1970 of `base`.
    base_ns: u64,
    failed: Option<io::Error>,
}

impl<W: Write> PcapTap<W> {
    /// A capture of the links that the subnet has now, whose virtual time `base` stands for `base_ns` nanoseconds since
    /// 1970.
    pub fn new(out: W, subnet: &Subnet, base: Instant, base_ns: u64) -> io::Result<PcapTap<W>> {
        let mut writer = Writer::new(out, "everywire")?;
        let mut interfaces = Vec::new();
        for link in 0..subnet.links() {
            let ends = subnet.ends(LinkId(link as u32)).map(|ends| ends.map(|end| subnet.port_name(end)));
            let name = ends.map_or_else(String::new, |[a, b]| format!("{a} - {b}"));
            interfaces.push(writer.add_interface(&name, "", LinkType::INFINIBAND)?);
        }
        Ok(PcapTap { writer, interfaces, base, base_ns, failed: None })
    }

    /// Ends the capture.
    ///
    /// Errors: the first that occurred while writing; nothing was written after it.
    pub fn finish(self) -> io::Result<W> {
        match self.failed {
            Some(error) => Err(error),
            None => self.writer.into_inner(),
        }
    }
}

impl<W: Write + fmt::Debug + Send> Tap for PcapTap<W> {
    fn packet(&mut self, at: Instant, link: LinkId, from: PortId, packet: &[u8]) {
        let Some(interface) = self.interfaces.get(link.0 as usize).filter(|_| self.failed.is_none()) else {
            return;
        };
        let since = u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX);
        let comment = format!("from {}:{}", from.node.0, from.port);
        let info = PacketInfo {
            time_ns: self.base_ns.saturating_add(since),
            comment: Some(&comment),
            ..PacketInfo::default()
        };
        let written = self.writer.write_packet(*interface, &info, &packet[..packet.len() - VCRC_LEN]);
        self.failed = written.err();
    }
}
