//! Taps on links: every packet as it is on the wire, and a tap that writes them as pcapng.
//!
//! Packets stand in Extensible Record Format records (LINKTYPE_ERF, type 21), LRH to VCRC, as cards that listen on InfiniBand
//! links give them: tshark 4.0 dissects these, and shows packets of LINKTYPE_INFINIBAND (247) as mere bytes.

use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

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

/// Bytes of an ERF record header.
const ERF_HEADER: usize = 16;
/// ERF type of InfiniBand packets.
const ERF_INFINIBAND: u8 = 21;
/// ERF flag: records are as long as their packets.
const ERF_VARYING_LENGTH: u8 = 1 << 2;

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
            interfaces.push(writer.add_interface(&name, "", LinkType::ERF)?);
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
        let record = erf_record(info.time_ns, packet);
        self.failed = self.writer.write_packet(*interface, &info, &record).err();
    }
}

/// The packet in an ERF record: time in seconds and 2^-32 parts, little-endian; the rest is big-endian.
pub fn erf_record(time_ns: u64, packet: &[u8]) -> Vec<u8> {
    let (seconds, ns) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let time = (seconds << 32) + (ns << 32) / 1_000_000_000;
    let mut record = Vec::with_capacity(ERF_HEADER + packet.len());
    record.extend(time.to_le_bytes());
    record.extend([ERF_INFINIBAND, ERF_VARYING_LENGTH]);
    record.extend(((ERF_HEADER + packet.len()) as u16).to_be_bytes());
    record.extend([0; 2]);
    record.extend((packet.len() as u16).to_be_bytes());
    record.extend(packet);
    record
}
