//! Frames out of a capture file: pcap (either byte order, micro- or nanoseconds) or pcapng, of Ethernet or InfiniBand.
//!
//! Does not look into frames. A file that ends in the middle of a record (a capture still being written) gives the whole
//! records and then says so.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};

use crate::error::CliError;

/// Bytes read ahead: more than the largest record we accept.
const READ_AHEAD: usize = 1 << 20;

/// Extensible Record Format.
const LINKTYPE_ERF: Linktype = Linktype(197);
/// LRH to ICRC or VCRC.
const LINKTYPE_INFINIBAND: Linktype = Linktype(247);

/// What a frame begins with: its interface's link type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Destination and source MAC.
    Ethernet,
    /// A record header of the Extensible Record Format.
    Erf,
    /// LRH.
    InfiniBand,
}

/// One captured frame.
pub struct Frame {
    /// Position in the file, from 1, as Wireshark numbers them.
    pub number: u64,
    /// Nanoseconds since the epoch of the file.
    pub time_ns: u64,
    /// What it begins with.
    pub link: Link,
    /// The bytes as captured.
    pub bytes: Vec<u8>,
    /// Length on the wire; larger than `bytes` when the capture cut it.
    pub wire_len: u32,
}

/// What the interface descriptions said so far.
#[derive(Default)]
struct Interfaces {
    /// Ticks a second, offset in seconds and link type of each pcapng interface.
    ticks: Vec<(u64, i64, Link)>,
    /// Set for a pcap file: ticks a second, and link type.
    legacy: Option<(u64, Link)>,
    /// Whether the numbers in the file's own headers have their high byte first.
    big_endian: bool,
    number: u64,
}

/// Calls `each` with every frame of `path` (`-`: standard input), in order; stops at the first error that `each` returns.
pub fn for_each(path: &Path, each: impl FnMut(Frame) -> Result<(), CliError>) -> Result<(), CliError> {
    if path == Path::new("-") {
        return for_each_in(std::io::stdin(), Path::new("standard input"), each);
    }
    let cannot =
        |why: &dyn std::fmt::Display| CliError::failed(format_args!("cannot read {}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|e| cannot(&e))?;
    if file.metadata().is_ok_and(|meta| meta.is_dir()) {
        return Err(cannot(&"it is a directory"));
    }
    for_each_in(file, path, each)
}

/// The same of an open file; `path` names it in errors.
pub fn for_each_in(
    file: impl std::io::Read + Send,
    path: &Path,
    mut each: impl FnMut(Frame) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let read = Arc::new(AtomicU64::new(0));
    let counted = Counted { file, read: read.clone() };
    let mut reader = create_reader(READ_AHEAD, counted)
        .map_err(|e| not_a_capture(path, &e, 0, read.load(Ordering::Relaxed)))?;
    let mut interfaces = Interfaces::default();
    let mut refilled_at = usize::MAX;
    // Where the next record begins.
    let mut at = 0;
    loop {
        match reader.next() {
            Ok((offset, block)) => {
                let frame = interfaces.take(path, &block)?;
                reader.consume(offset);
                at += offset as u64;
                refilled_at = usize::MAX;
                if let Some(frame) = frame {
                    each(frame)?;
                }
            }
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::UnexpectedEof) => {
                eprintln!("everywire: {}: {}", path.display(), interfaces.cut(at, reader.data()));
                return Ok(());
            }
            Err(PcapError::Incomplete(_)) => {
                let have = reader.data().len();
                if reader.reader_exhausted() || have == refilled_at {
                    eprintln!("everywire: {}: {}", path.display(), interfaces.cut(at, reader.data()));
                    return Ok(());
                }
                refilled_at = have;
                reader.refill().map_err(|e| not_a_capture(path, &e, at, read.load(Ordering::Relaxed)))?;
            }
            Err(e) => return Err(not_a_capture(path, &e, at, read.load(Ordering::Relaxed))),
        }
    }
}

/// A file, and how much of it was read.
struct Counted<R> {
    file: R,
    read: Arc<AtomicU64>,
}

impl<R: std::io::Read> std::io::Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// What stopped the reader at the record that begins at byte `at`, `read` bytes having come from the file.
fn not_a_capture<E>(path: &Path, error: &PcapError<E>, at: u64, read: u64) -> CliError {
    let why = match error {
        // As a file begins that is no capture, or nothing of one.
        PcapError::UnexpectedEof | PcapError::Incomplete(_) if at == 0 => format!(
            "it ends at byte {read}, within its header: a pcap file's has 24 bytes, a pcapng section's at least 28"
        ),
        PcapError::HeaderNotRecognized | PcapError::Eof => "neither a pcap nor a pcapng file".to_owned(),
        PcapError::BufferTooSmall => format!("a record is longer than {READ_AHEAD} bytes"),
        PcapError::ReadError => "it cannot be read".to_owned(),
        _ => format!("the capture is damaged: at byte {at} a record should begin, and there is none"),
    };
    CliError::failed(format_args!("{}: {why}", path.display()))
}

impl Interfaces {
    /// The frame in a record, if it holds one.
    fn take(&mut self, path: &Path, block: &PcapBlockOwned<'_>) -> Result<Option<Frame>, CliError> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let link = link(path, header.network)?;
                let ticks = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
                self.legacy = Some((ticks, link));
                self.big_endian = header.is_bigendian();
                Ok(None)
            }
            PcapBlockOwned::Legacy(record) => {
                let Some((ticks, link)) = self.legacy else { return Ok(None) };
                let part = u64::from(record.ts_usec) * (1_000_000_000 / ticks);
                let time_ns = u64::from(record.ts_sec) * 1_000_000_000 + part;
                Ok(Some(self.frame(link, time_ns, record.data, record.origlen)))
            }
            PcapBlockOwned::NG(Block::SectionHeader(header)) => {
                self.ticks.clear();
                self.big_endian = header.big_endian();
                Ok(None)
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                let link = link(path, interface.linktype)?;
                self.ticks.push((
                    interface.ts_resolution().unwrap_or(1_000_000),
                    interface.if_tsoffset,
                    link,
                ));
                Ok(None)
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let Some(&(ticks, offset, link)) = self.ticks.get(packet.if_id as usize) else {
                    return Err(CliError::failed(format_args!(
                        "{}: a packet names interface {}, of {} described",
                        path.display(),
                        packet.if_id,
                        self.ticks.len()
                    )));
                };
                let raw = u128::from(packet.ts_high) << 32 | u128::from(packet.ts_low);
                let ns =
                    raw * 1_000_000_000 / u128::from(ticks.max(1)) + offset.max(0) as u128 * 1_000_000_000;
                let captured = &packet.data[..packet.data.len().min(packet.caplen as usize)];
                Ok(Some(self.frame(link, ns as u64, captured, packet.origlen)))
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                // Of the first interface (pcapng, simple packet block).
                let link = self.ticks.first().map_or(Link::Ethernet, |interface| interface.2);
                Ok(Some(self.frame(link, 0, packet.data, packet.origlen)))
            }
            PcapBlockOwned::NG(_) => Ok(None),
        }
    }

    /// What is missing where the file ends in the record that begins at byte `at`, of which `have` is there.
    fn cut(&self, at: u64, have: &[u8]) -> String {
        // The length of the frame behind the 16 bytes of a pcap record's header; of a whole block, 4 bytes into it.
        let (what, header, length_at, behind) = match self.legacy {
            Some(_) => ("record", 16, 8, 16),
            None => ("block", 8, 4, 0),
        };
        let length = have.get(..header).and_then(|header| header.get(length_at..length_at + 4));
        let length = length.and_then(|four| four.try_into().ok()).map(|four| match self.big_endian {
            true => u32::from_be_bytes(four),
            false => u32::from_le_bytes(four),
        });
        let expected = match length {
            Some(length) => format!("{} bytes", u64::from(length) + behind),
            None => format!("a header of {header} bytes"),
        };
        format!(
            "cut at byte {}: a {what} of {expected} begins at byte {at}, and {} of them are there; they are left out, and the \
             frames before it (up to number {}) are whole",
            at + have.len() as u64,
            have.len(),
            self.number
        )
    }

    fn frame(&mut self, link: Link, time_ns: u64, bytes: &[u8], wire_len: u32) -> Frame {
        self.number += 1;
        Frame { number: self.number, time_ns, link, bytes: bytes.to_vec(), wire_len }
    }
}

fn link(path: &Path, link_type: Linktype) -> Result<Link, CliError> {
    match link_type {
        Linktype::ETHERNET => Ok(Link::Ethernet),
        LINKTYPE_ERF => Ok(Link::Erf),
        LINKTYPE_INFINIBAND => Ok(Link::InfiniBand),
        other => Err(CliError::failed(format_args!(
            "{}: link type {} is neither Ethernet (1) nor InfiniBand (197 in ERF records, 247), which are decoded",
            path.display(),
            other.0
        ))),
    }
}
