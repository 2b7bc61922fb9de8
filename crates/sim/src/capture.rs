//! The capture of a world: one pcapng interface a host, virtual time as the timestamp.

use std::io::{self, Write};

use everywire_fabric::clock::SimTime;
use everywire_fabric::pcapng::{Direction, InterfaceId, LinkType, PacketInfo, Writer};
use everywire_wire::vcrc::VCRC_LEN;

/// A capture being written. The first error stops it; [`Capture::finish`] reports it.
pub struct Capture {
    writer: Writer<Box<dyn Write>>,
    interfaces: Vec<InterfaceId>,
    error: Option<io::Error>,
}

impl Capture {
    /// Begins a capture.
    pub fn new(out: Box<dyn Write>) -> io::Result<Self> {
        Ok(Capture { writer: Writer::new(out, "everywire-sim")?, interfaces: Vec::new(), error: None })
    }

    /// Adds the interface of the next host.
    pub fn add(&mut self, name: &str, infiniband: bool) {
        let link_type = if infiniband { LinkType::INFINIBAND } else { LinkType::ETHERNET };
        match self.writer.add_interface(name, "simulated host", link_type) {
            Ok(id) => self.interfaces.push(id),
            Err(error) => self.failed(error),
        }
    }

    /// Writes a frame that host number `host` sent or received.
    pub fn frame(&mut self, host: usize, at: SimTime, direction: Direction, frame: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let Some(&interface) = self.interfaces.get(host) else { return };
        let info = PacketInfo { time_ns: at.as_nanos(), direction: Some(direction), ..PacketInfo::default() };
        if let Err(error) = self.writer.write_packet(interface, &info, frame) {
            self.failed(error);
        }
    }

    /// Writes an InfiniBand packet, LRH to VCRC; the format leaves the VCRC out.
    pub fn packet(&mut self, host: usize, at: SimTime, direction: Direction, packet: &[u8]) {
        self.frame(host, at, direction, &packet[..packet.len().saturating_sub(VCRC_LEN)]);
    }

    /// Flushes.
    pub fn finish(mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.writer.into_inner().map(drop),
        }
    }

    fn failed(&mut self, error: io::Error) {
        self.error.get_or_insert(error);
    }
}
