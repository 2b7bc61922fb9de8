//! A pcapng writer: what every capture of a device or of a simulated network is written with.
//!
//! Read first: draft-ietf-opsawg-pcapng §3.1 (block structure), §4.1 (Section Header), §4.2 (Interface Description),
//! §4.3 (Enhanced Packet). Timestamps have nanosecond resolution and are given by the caller, so that a run in virtual
//! time and a run on real sockets use the same code.
//!
//! It does not read captures, compress, rotate files or know what is inside a frame.

use std::fmt;
use std::io::{self, Write};

/// Largest frame that is written whole; a longer one is cut and its original length kept (pcapng §4.3).
pub const MAX_CAPTURED_LEN: usize = 262_144;

/// Largest comment, in bytes, that is written with a packet; a longer one is cut at a character boundary.
pub const MAX_COMMENT_LEN: usize = 4096;

/// Most interfaces in one capture. A fabric capture has one a link.
pub const MAX_INTERFACES: usize = 65_536;

const SECTION_HEADER_BLOCK: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION_BLOCK: u32 = 1;
const ENHANCED_PACKET_BLOCK: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_OS: u16 = 3;
const SHB_USER_APPLICATION: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;

/// What the frames of an interface begin with: a number of the registry of link types (LINKTYPE_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// LINKTYPE_ETHERNET: destination and source MAC, Ethertype, no FCS.
    pub const ETHERNET: LinkType = LinkType(1);
    /// LINKTYPE_ERF: a record header of the Extensible Record Format, then what it says.
    pub const ERF: LinkType = LinkType(197);
    /// LINKTYPE_INFINIBAND: LRH first, VCRC not included.
    pub const INFINIBAND: LinkType = LinkType(247);
}

/// An interface of the capture, as [`Writer::add_interface`] numbered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceId(u32);

/// Which way a frame went at the capturing interface (epb_flags bits 0 and 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The interface received it.
    Inbound,
    /// The interface sent it.
    Outbound,
}

/// What is known of one frame besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketInfo<'a> {
    /// Nanoseconds since 1970-01-01T00:00:00Z (in virtual time: since the start of the run).
    pub time_ns: u64,
    /// Which way it went, where that means something.
    pub direction: Option<Direction>,
    /// Frames lost by the interface or the capture since the last frame of this interface.
    pub dropped: Option<u64>,
    /// A note that Wireshark shows with the packet: a fault that was injected, say.
    pub comment: Option<&'a str>,
}

/// Writes one pcapng section. Nothing reaches the disk for sure before [`Writer::flush`].
pub struct Writer<W: Write> {
    out: W,
    interfaces: u32,
    block: Vec<u8>,
}

impl<W: Write> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Begins a section: writes the Section Header Block. `application` names the program that captures.
    pub fn new(out: W, application: &str) -> io::Result<Self> {
        let mut writer = Writer { out, interfaces: 0, block: Vec::with_capacity(8192) };
        writer.begin(SECTION_HEADER_BLOCK);
        writer.u32(BYTE_ORDER_MAGIC);
        writer.u16(1); // major version
        writer.u16(0); // minor version
        writer.block.extend_from_slice(&(-1i64).to_le_bytes()); // section length: not given
        writer.option(SHB_OS, std::env::consts::OS.as_bytes());
        writer.option(SHB_USER_APPLICATION, cut(application).as_bytes());
        writer.option(OPT_END, &[]);
        writer.finish()?;
        Ok(writer)
    }

    /// Describes an interface. Interfaces may be added at any time before their first frame.
    ///
    /// # Errors
    /// `InvalidInput` beyond [`MAX_INTERFACES`]; otherwise what the sink returned.
    pub fn add_interface(
        &mut self,
        name: &str,
        description: &str,
        link_type: LinkType,
    ) -> io::Result<InterfaceId> {
        if self.interfaces as usize >= MAX_INTERFACES {
            let text = format!("pcapng: more than {MAX_INTERFACES} interfaces in one capture");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.begin(INTERFACE_DESCRIPTION_BLOCK);
        self.u16(link_type.0);
        self.u16(0); // reserved
        self.u32(MAX_CAPTURED_LEN as u32);
        self.option(IF_NAME, cut(name).as_bytes());
        if !description.is_empty() {
            self.option(IF_DESCRIPTION, cut(description).as_bytes());
        }
        self.option(IF_TSRESOL, &[9]); // 10^-9 s
        self.option(OPT_END, &[]);
        self.finish()?;
        self.interfaces += 1;
        Ok(InterfaceId(self.interfaces - 1))
    }

    /// Writes one frame (Enhanced Packet Block).
    ///
    /// # Errors
    /// What the sink returned; the capture is then cut short in the middle of a block and should be given up.
    pub fn write_packet(
        &mut self,
        interface: InterfaceId,
        info: &PacketInfo<'_>,
        frame: &[u8],
    ) -> io::Result<()> {
        let kept = &frame[..frame.len().min(MAX_CAPTURED_LEN)];
        self.begin(ENHANCED_PACKET_BLOCK);
        self.u32(interface.0);
        self.u32((info.time_ns >> 32) as u32); // the high half comes first in either byte order
        self.u32(info.time_ns as u32);
        self.u32(kept.len() as u32);
        self.u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        self.padded(kept);
        let has_options = info.comment.is_some() || info.direction.is_some() || info.dropped.is_some();
        if let Some(comment) = info.comment {
            self.option(OPT_COMMENT, cut(comment).as_bytes());
        }
        if let Some(direction) = info.direction {
            let flags: u32 = match direction {
                Direction::Inbound => 1,
                Direction::Outbound => 2,
            };
            self.option(EPB_FLAGS, &flags.to_le_bytes());
        }
        if let Some(dropped) = info.dropped {
            self.option(EPB_DROPCOUNT, &dropped.to_le_bytes());
        }
        if has_options {
            self.option(OPT_END, &[]);
        }
        self.finish()
    }

    /// Hands everything written so far to the sink's own `flush`: a live Wireshark sees it then.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// The sink, after a flush.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn begin(&mut self, block_type: u32) {
        self.block.clear();
        self.u32(block_type);
        self.u32(0); // total length, set by finish
    }

    fn finish(&mut self) -> io::Result<()> {
        let total = self.block.len() as u32 + 4;
        self.block[4..8].copy_from_slice(&total.to_le_bytes());
        self.u32(total); // again at the end, so that a reader can go backwards
        self.out.write_all(&self.block)
    }

    fn u16(&mut self, value: u16) {
        self.block.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.block.extend_from_slice(&value.to_le_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.u16(code);
        self.u16(value.len() as u16); // every caller is bounded by MAX_COMMENT_LEN
        self.padded(value);
    }
}

/// The start of `text` that fits [`MAX_COMMENT_LEN`] bytes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_COMMENT_LEN)]
}

#[cfg(test)]
mod tests;
