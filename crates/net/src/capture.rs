//! `--capture FILE`: every datagram of a device as a whole Ethernet frame in a pcapng file, live.
//!
//! A UDP socket shows neither Ethernet nor IP headers, so they are put together from what is known: addresses, TOS, TTL; the
//! IPv4 Identification as the kernel writes it when sending (0, 1, 2 … in a train) and, when receiving, as the ICRC tells
//! (`HiddenId`), so that Wireshark can check ICRCs too. MAC addresses are made up from the IP addresses (02:…). Raw Ethernet
//! frames are written as they are.
//!
//! A capture that cannot be written any more ends with a warning; it never stops the device. What is no capture is never
//! overwritten.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use everywire_fabric::ib::erf_record;
use everywire_fabric::pcapng::{Direction, InterfaceId, LinkType, PacketInfo, Writer};
use everywire_wire::eth::{EthHeader, Ethertype};
use everywire_wire::ip::{IpHeader, Ipv4Header, Ipv6Header, PROTOCOL_UDP};
use everywire_wire::roce::ICRC_LEN;
use everywire_wire::udp::UdpHeader;
use everywire_wire::{HiddenId, IcrcV4, MacAddr, UdpFrame};

/// Bytes kept in memory before the file is written.
const BUFFER: usize = 1 << 20;

/// How captures begin: pcapng's section header, then pcap in both byte orders, with micro- and nanoseconds.
const MAGICS: [[u8; 4]; 5] = [
    [0x0a, 0x0d, 0x0d, 0x0a],
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x4d, 0x3c, 0xb2, 0xa1],
];

/// A datagram as a socket knows it.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Sender.
    pub src: SocketAddr,
    /// Receiver; an IPv6 address has the flow label in its flow information, where it is known.
    pub dst: SocketAddr,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// UDP payload: BTH to ICRC.
    pub payload: &'a [u8],
}

/// A capture file that is being written.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    /// `None` after an error.
    writer: Option<Writer<BufWriter<File>>>,
    interface: InterfaceId,
    frame: Vec<u8>,
    unflushed: bool,
}

impl Capture {
    /// Whether a capture may be written to `path`: there is nothing, an empty file, an older capture, or a pipe. Changes
    /// nothing.
    ///
    /// # Errors
    /// `AlreadyExists` with what it is instead; or it cannot be looked at.
    pub fn may_write(path: &Path) -> io::Result<()> {
        let kind = match std::fs::metadata(path) {
            Ok(meta) => meta.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if kind.is_dir() || kind.is_block_device() {
            let what = if kind.is_dir() { "it is a directory" } else { "it is a block device" };
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        if kind.is_file() { holds_a_capture(&mut File::open(path)?) } else { Ok(()) }
    }

    /// Creates the file and writes its head; `device` is what Wireshark shows as the interface.
    ///
    /// # Errors
    /// What the file system said; as [`Capture::may_write`].
    pub fn create(path: &Path, device: &str) -> io::Result<Capture> {
        Capture::create_of(path, device, LinkType::ETHERNET)
    }

    fn create_of(path: &Path, device: &str, link: LinkType) -> io::Result<Capture> {
        let file = BufWriter::with_capacity(BUFFER, open(path)?);
        let mut writer = Writer::new(file, concat!("everywire ", env!("CARGO_PKG_VERSION")))?;
        let interface = writer.add_interface(device, "RDMA device of this process", link)?;
        writer.flush()?;
        Ok(Capture {
            path: path.to_owned(),
            writer: Some(writer),
            interface,
            frame: Vec::new(),
            unflushed: false,
        })
    }

    /// The same of InfiniBand packets, which stand in ERF records; see [`Capture::infiniband`].
    ///
    /// # Errors
    /// As [`Capture::create`].
    pub fn create_infiniband(path: &Path, device: &str) -> io::Result<Capture> {
        Capture::create_of(path, device, LinkType::ERF)
    }

    /// Writes an InfiniBand packet, LRH to VCRC.
    pub fn infiniband(&mut self, direction: Direction, packet: &[u8]) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        self.frame(direction, &erf_record(time_ns, packet), None);
    }

    /// Writes a datagram that was sent, whose IPv4 Identification the kernel writes as `id`.
    pub fn sent(&mut self, datagram: &Datagram<'_>, id: u16) {
        self.datagram(Direction::Outbound, datagram, id, Ipv4Header::DF, None);
    }

    /// Writes a datagram that was received; its Identification is what makes the ICRC right.
    pub fn received(&mut self, datagram: &Datagram<'_>) {
        let hidden =
            match (datagram.src.ip(), datagram.dst.ip(), datagram.payload.split_last_chunk::<ICRC_LEN>()) {
                (IpAddr::V4(src), IpAddr::V4(dst), Some((covered, icrc))) => {
                    let net =
                        IcrcV4 { src, dst, id: 0, flags_frag: Ipv4Header::DF, src_port: datagram.src.port() };
                    HiddenId::new().verify(&net, covered, *icrc)
                }
                (IpAddr::V6(_), ..) => {
                    return self.datagram(Direction::Inbound, datagram, 0, 0, None);
                }
                _ => None,
            };
        match hidden {
            Some(fields) => {
                let flags = if fields.df { Ipv4Header::DF } else { 0 };
                self.datagram(Direction::Inbound, datagram, fields.id, flags, None);
            }
            None => {
                let comment = Some("no IPv4 Identification makes this ICRC right: damaged, or not RoCE v2");
                self.datagram(Direction::Inbound, datagram, 0, Ipv4Header::DF, comment);
            }
        }
    }

    fn datagram(
        &mut self,
        direction: Direction,
        datagram: &Datagram<'_>,
        id: u16,
        flags: u16,
        comment: Option<&str>,
    ) {
        let Some(ip) = ip_header(datagram, id, flags) else { return };
        let mut frame = UdpFrame {
            eth: EthHeader {
                dst: made_up_mac(datagram.dst.ip()),
                src: made_up_mac(datagram.src.ip()),
                vlan: None,
                ethertype: Ethertype::IPV4,
            },
            ip,
            // Any checksum but 0, to have the right one filled in: the kernel sends one.
            udp: UdpHeader {
                src_port: datagram.src.port(),
                dst_port: datagram.dst.port(),
                length: 0,
                checksum: 1,
            },
            payload: datagram.payload,
            trailer: &[],
        };
        frame.fill_lengths_and_checksums();
        let mut bytes = std::mem::take(&mut self.frame);
        bytes.clear();
        frame.emit(&mut bytes);
        self.frame(direction, &bytes, comment);
        self.frame = bytes;
    }

    /// Writes a frame as it is.
    pub fn frame(&mut self, direction: Direction, frame: &[u8], comment: Option<&str>) {
        let Some(writer) = &mut self.writer else { return };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        let info = PacketInfo { time_ns, direction: Some(direction), dropped: None, comment };
        let result = writer.write_packet(self.interface, &info, frame);
        self.unflushed = true;
        self.end_on_error(result);
    }

    /// Brings everything to the file. The driver calls it whenever it has nothing else to do.
    pub fn flush(&mut self) {
        if self.unflushed
            && let Some(writer) = &mut self.writer
        {
            let result = writer.flush();
            self.unflushed = false;
            self.end_on_error(result);
        }
    }

    fn end_on_error(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            tracing::warn!(path = %self.path.display(), %error, "the capture ends here: it cannot be written");
            self.writer = None;
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Opens the file, empty. What is in it is looked at through the same descriptor, so that nobody can put another in its place.
fn open(path: &Path) -> io::Result<File> {
    Capture::may_write(path)?;
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return OpenOptions::new().write(true).open(path);
    }
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    holds_a_capture(&mut file)?;
    file.set_len(0)?;
    io::Seek::rewind(&mut file)?;
    Ok(file)
}

/// That a file is empty or begins as captures do.
fn holds_a_capture(file: &mut File) -> io::Result<()> {
    let mut magic = [0; 4];
    let has = file.metadata()?.len();
    if has == 0 || (has >= 4 && file.read_exact(&mut magic).is_ok() && MAGICS.contains(&magic)) {
        return Ok(());
    }
    let text = format!("it holds {has} bytes that are no pcap or pcapng capture, and is not overwritten");
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}

fn ip_header(datagram: &Datagram<'_>, id: u16, flags_frag: u16) -> Option<IpHeader> {
    let ends = (datagram.src.ip(), datagram.dst.ip());
    let header = match ip_header_of(ends, PROTOCOL_UDP, 0)? {
        IpHeader::V4(header) => {
            IpHeader::V4(Ipv4Header { tos: datagram.tos, id, flags_frag, ttl: datagram.ttl, ..header })
        }
        IpHeader::V6(header) => IpHeader::V6(Ipv6Header {
            traffic_class: datagram.tos,
            flow_label: flow_label(datagram.dst),
            hop_limit: datagram.ttl,
            ..header
        }),
    };
    Some(header)
}

/// The header of a packet with `length` bytes of this protocol; `None` for addresses of two families.
pub(crate) fn ip_header_of(ends: (IpAddr, IpAddr), protocol: u8, length: usize) -> Option<IpHeader> {
    match ends {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(IpHeader::V4(
            Ipv4Header {
                tos: 0,
                total_len: (Ipv4Header::LEN + length) as u16,
                id: 0,
                flags_frag: Ipv4Header::DF,
                ttl: 64,
                protocol,
                checksum: 0,
                src,
                dst,
            }
            .with_checksum(),
        )),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(IpHeader::V6(Ipv6Header {
            traffic_class: 0,
            flow_label: 0,
            payload_len: length as u16,
            next_header: protocol,
            hop_limit: 64,
            src,
            dst,
        })),
        _ => None,
    }
}

/// The flow label to send to this address with.
pub(crate) fn flow_label(dst: SocketAddr) -> u32 {
    match dst {
        SocketAddr::V6(v6) => v6.flowinfo() & 0x000f_ffff,
        SocketAddr::V4(_) => 0,
    }
}

/// A locally administered MAC address that shows the IP address, or the one of its group.
pub(crate) fn made_up_mac(ip: IpAddr) -> MacAddr {
    if ip.is_multicast() {
        return MacAddr::for_multicast(ip);
    }
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            MacAddr([0x02, 0x00, a, b, c, d])
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            MacAddr([0x02, 0x06, a, b, c, d])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// UDP payloads of a capture of real kernels, with the addresses they had.
    fn kernel_datagrams(file: &str) -> Vec<(SocketAddr, SocketAddr, u16, Vec<u8>)> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures").join(file);
        let bytes = std::fs::read(path).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let mut found = Vec::new();
        let mut at = 24; // classic pcap: a global header, then records of 16 bytes and a frame
        while at + 16 <= bytes.len() {
            let len = word(at + 8);
            if let Ok(frame) = UdpFrame::parse(&bytes[at + 16..at + 16 + len])
                && frame.is_roce()
            {
                let id = if let IpHeader::V4(h) = frame.ip { h.id } else { 0 };
                found.push((frame.src(), frame.dst(), id, frame.payload.to_vec()));
            }
            at += 16 + len;
        }
        found
    }

    fn fields(path: &Path, names: &[&str]) -> Option<Vec<String>> {
        let mut tshark = Command::new("tshark");
        tshark.args(["-n", "--disable-protocol", "rpcordma", "-r"]).arg(path).args([
            "-T",
            "fields",
            "-E",
            "separator=|",
        ]);
        for name in names {
            tshark.args(["-e", name]);
        }
        match tshark.output() {
            Ok(output) => {
                Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
            }
            Err(error) => {
                everywire_testkit::skipped(format_args!("tshark: {error}"));
                None
            }
        }
    }

    /// What the socket hides comes back: Identifications as the kernel wrote them, and nothing malformed.
    #[test]
    fn what_is_no_capture_is_not_overwritten() {
        let path = std::env::temp_dir().join(format!("everywire-capture-{}", std::process::id()));
        std::fs::write(&path, b"a letter").unwrap();
        for result in [Capture::may_write(&path), Capture::create(&path, "x").map(drop)] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("8 bytes that are no pcap or pcapng capture"), "{text}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"a letter");
        std::fs::write(&path, b"").unwrap();
        drop(Capture::create(&path, "x").unwrap());
        let first = std::fs::read(&path).unwrap();
        // A capture is written anew, with nothing left of the old one.
        std::fs::write(&path, [&first[..], &[7; 4096]].concat()).unwrap();
        drop(Capture::create(&path, "x").unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), first);
        std::fs::remove_file(&path).unwrap();
        assert!(Capture::may_write(Path::new("/")).unwrap_err().to_string().contains("directory"));
        assert!(Capture::may_write(Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn received_datagrams_get_their_identification_back() {
        for file in ["rping.pcap", "rping6.pcap"] {
            let datagrams = kernel_datagrams(file);
            assert!(datagrams.len() > 10, "{file}");
            let path =
                std::env::temp_dir().join(format!("everywire-capture-{}-{file}ng", std::process::id()));
            let mut capture = Capture::create(&path, "rocev2:test").unwrap();
            for (src, dst, _, payload) in &datagrams {
                capture.received(&Datagram { src: *src, dst: *dst, tos: 0, ttl: 64, payload });
            }
            drop(capture);
            let names = ["ip.id", "udp.srcport", "frame.comment", "_ws.malformed", "infiniband.bth.opcode"];
            let Some(lines) = fields(&path, &names) else { return };
            assert_eq!(lines.len(), datagrams.len());
            for (line, (src, _, id, payload)) in lines.iter().zip(&datagrams) {
                let id = if src.is_ipv4() { format!("0x{id:04x}") } else { String::new() };
                assert_eq!(*line, format!("{id}|{}|||{}", src.port(), payload[0]), "{file}");
            }
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_damaged_datagram_says_so() {
        let (src, dst, _, mut payload) = kernel_datagrams("rping.pcap").swap_remove(0);
        payload[20] ^= 0x10;
        let path =
            std::env::temp_dir().join(format!("everywire-capture-{}-damaged.pcapng", std::process::id()));
        let mut capture = Capture::create(&path, "rocev2:test").unwrap();
        capture.received(&Datagram { src, dst, tos: 0, ttl: 64, payload: &payload });
        capture.flush();
        if let Some(lines) = fields(&path, &["frame.comment"]) {
            assert!(lines[0].contains("ICRC"), "{lines:?}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("everywire-capture-{}-full.pcapng", std::process::id()));
        let mut capture = Capture::create(&path, "x").unwrap();
        std::fs::remove_file(&path).unwrap();
        let Ok(full) = File::options().write(true).open("/dev/full") else { return };
        assert!(
            Capture::create(Path::new("/dev/full"), "x").is_err(),
            "refused at once where it can be seen at once"
        );
        // A writer whose head still fits the buffer, on a disk that takes nothing.
        capture.writer = Writer::new(BufWriter::with_capacity(BUFFER, full), "x").ok();
        capture.frame(Direction::Inbound, &[0; 64], None);
        capture.flush();
        assert!(capture.writer.is_none());
        capture.frame(Direction::Inbound, &[0; 64], None);
    }
}
