//! What a fabric and an attached program say to each other, one message a packet of an AF_UNIX SOCK_SEQPACKET socket.
//!
//! First HELLO from the program, then WELCOME, REFUSED or NO_SUCH_PORT from the fabric; after that packets and credits both ways, the port's
//! values and answers from the fabric, questions and BYE from the program. Both ends are on one machine, yet may be of two
//! versions: HELLO and WELCOME carry [`VERSION`], and numbers are little-endian.
//!
//! Credits are totals, as in IBTA §7.9.4: CREDIT says how many packets of a lane the other end may have sent since the
//! beginning. Nothing is ever dropped, so sending without credit ends the attachment.

use everywire_fabric::ib::IbPort;
use everywire_wire::{Gid, Guid, Lid, Mtu, PKey};

/// Version of this protocol.
pub const VERSION: u16 = 5;
/// Service levels and virtual lanes of a port.
pub const LEVELS: usize = 16;
/// Lanes of the socket: one a service level, and one for management packets, which have virtual lane 15.
pub const LANES: usize = LEVELS + 1;
/// Most bytes of a packet, from LRH to VCRC: the headers of 4096 bytes of payload are well below 256 bytes.
pub const MAX_PACKET: usize = 4096 + 256;
/// Most bytes of a message: a packet and its tag.
pub const MAX_MESSAGE: usize = MAX_PACKET + 1;
/// Most entries of a partition table that is told.
pub const MAX_PKEYS: usize = 128;
/// Most bytes of the reason of a refusal, and of a port's name.
pub const MAX_TEXT: usize = 1024;
/// Packets that each side keeps room for, a lane.
pub const WINDOW: u32 = 64;

/// The first bytes of HELLO.
const MAGIC: [u8; 8] = *b"EWFABRIC";

/// First bytes of messages.
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
/// First byte of a packet's message; the packet follows.
pub const PACKET: u8 = 4;
const CREDIT: u8 = 5;
const PORT: u8 = 6;
const RESOLVE: u8 = 7;
const RESOLVED: u8 = 8;
const BYE: u8 = 9;
const WRONG_KEY: u8 = 10;
const NO_SUCH_PORT: u8 = 11;

/// What a program is told of its port, when it attaches and whenever something changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortValues {
    /// PortInfo:PortState, 1 (Down) to 4 (Active).
    pub state: u8,
    /// Base LID; zero before the subnet manager has given one.
    pub lid: Lid,
    /// LID mask control.
    pub lmc: u8,
    /// Where the subnet manager is.
    pub sm_lid: Lid,
    /// Its service level.
    pub sm_sl: u8,
    /// PortInfo:SubnetTimeOut.
    pub subnet_timeout: u8,
    /// NeighborMTU.
    pub mtu: Mtu,
    /// Data bits a second; zero while there is no link.
    pub data_bits: u64,
    /// The subnet's prefix.
    pub gid_prefix: u64,
    /// Partitions, in table order; invalid entries included.
    pub pkeys: Vec<PKey>,
    /// Whether the subnet manager asks clients to register anew.
    pub reregister: bool,
}

impl PortValues {
    /// What the port's agent says.
    pub fn of(values: &IbPort) -> PortValues {
        PortValues {
            state: values.state,
            lid: values.lid,
            lmc: values.lmc,
            sm_lid: values.sm_lid,
            sm_sl: values.sm_sl,
            subnet_timeout: values.subnet_timeout,
            mtu: values.mtu,
            data_bits: values.data_bits,
            gid_prefix: values.gid_prefix,
            pkeys: values.pkeys.clone(),
            reregister: values.client_reregister,
        }
    }
}

/// What the fabric says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Version of the protocol that the fabric speaks.
    pub version: u16,
    /// GUID of the adapter.
    pub node_guid: Guid,
    /// GUID of the port.
    pub port_guid: Guid,
    /// IP address that stands for the port; `::` if none does.
    pub ip: Gid,
    /// The port's values.
    pub port: PortValues,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A program wants to be this port, `HOST/PORT`.
    Hello { version: u16, port: &'a str },
    /// It is.
    Welcome(Box<Welcome>),
    /// It is not, or no longer; the reason.
    Refused(&'a str),
    /// There is no such port, or none for programs; what there is instead.
    NoSuchPort(&'a str),
    /// LRH to VCRC.
    Packet(&'a [u8]),
    /// So many packets of this lane may have been sent.
    Credit { lane: u8, total: u32 },
    /// The port's values have changed.
    Port(Box<PortValues>),
    /// Which GID has this IP address?
    Resolve { token: u64, ip: Gid },
    /// This one; zero where nobody has it. With the port's name, and whether a program is attached to it.
    Resolved { token: u64, gid: Gid, attached: bool, port: &'a str },
    /// The program has dropped a packet for its Q_Key, or else its P_Key; the packet's headers.
    WrongKey { is_qkey: bool, head: &'a [u8] },
    /// The program leaves in order.
    Bye,
}

/// A reader that never goes beyond the end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// All that is left, as text.
    fn text(&mut self) -> Option<&'a str> {
        let bytes = self.take(self.0.len().min(MAX_TEXT))?;
        std::str::from_utf8(bytes).ok()
    }

    fn port(&mut self) -> Option<PortValues> {
        let state = self.u8().filter(|state| (1..=5).contains(state))?;
        let (lid, lmc) = (Lid(self.u16()?), self.u8().filter(|lmc| *lmc <= 7)?);
        let (sm_lid, sm_sl, subnet_timeout) = (Lid(self.u16()?), self.u8()?, self.u8()?);
        let mtu = Mtu::from_code(self.u8()?)?;
        let (data_bits, gid_prefix, reregister) = (self.u64()?, self.u64()?, self.u8()? != 0);
        let count = usize::from(self.u16()?);
        if count > MAX_PKEYS {
            return None;
        }
        let pkeys = (0..count).map(|_| self.u16().map(PKey)).collect::<Option<_>>()?;
        Some(PortValues {
            state,
            lid,
            lmc,
            sm_lid,
            sm_sl,
            subnet_timeout,
            mtu,
            data_bits,
            gid_prefix,
            pkeys,
            reregister,
        })
    }
}

fn put_port(out: &mut Vec<u8>, port: &PortValues) {
    out.push(port.state);
    out.extend(port.lid.0.to_le_bytes());
    out.push(port.lmc);
    out.extend(port.sm_lid.0.to_le_bytes());
    out.extend([port.sm_sl, port.subnet_timeout, port.mtu.code()]);
    out.extend(port.data_bits.to_le_bytes());
    out.extend(port.gid_prefix.to_le_bytes());
    out.push(port.reregister.into());
    let pkeys = &port.pkeys[..port.pkeys.len().min(MAX_PKEYS)];
    out.extend((pkeys.len() as u16).to_le_bytes());
    pkeys.iter().for_each(|pkey| out.extend(pkey.0.to_le_bytes()));
}

impl<'a> Message<'a> {
    /// Reads a message; `None` where it is none of this protocol. Of a HELLO or WELCOME of another version only the version
    /// is sure to be right.
    pub fn parse(bytes: &'a [u8]) -> Option<Message<'a>> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            HELLO => {
                if reader.array()? != MAGIC {
                    return None;
                }
                Message::Hello { version: reader.u16()?, port: reader.text()? }
            }
            WELCOME => Message::Welcome(Box::new(Welcome {
                version: reader.u16()?,
                node_guid: Guid(reader.u64()?),
                port_guid: Guid(reader.u64()?),
                ip: Gid(reader.array()?),
                port: reader.port()?,
            })),
            REFUSED => Message::Refused(reader.text()?),
            NO_SUCH_PORT => Message::NoSuchPort(reader.text()?),
            PACKET => Message::Packet(reader.take(reader.0.len()).filter(|p| p.len() <= MAX_PACKET)?),
            CREDIT => {
                let lane = reader.u8().filter(|lane| usize::from(*lane) < LANES)?;
                Message::Credit { lane, total: reader.u32()? }
            }
            PORT => Message::Port(Box::new(reader.port()?)),
            RESOLVE => Message::Resolve { token: reader.u64()?, ip: Gid(reader.array()?) },
            RESOLVED => {
                let (token, gid) = (reader.u64()?, Gid(reader.array()?));
                Message::Resolved { token, gid, attached: reader.u8()? != 0, port: reader.text()? }
            }
            WRONG_KEY => {
                let is_qkey = reader.u8()? != 0;
                let head = reader.take(reader.0.len()).filter(|head| head.len() <= MAX_TEXT)?;
                Message::WrongKey { is_qkey, head }
            }
            BYE => Message::Bye,
            _ => return None,
        };
        reader.0.is_empty().then_some(message)
    }

    /// The message's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Hello { version, port } => {
                out.push(HELLO);
                out.extend(MAGIC);
                out.extend(version.to_le_bytes());
                out.extend(port.as_bytes());
            }
            Message::Welcome(welcome) => {
                out.push(WELCOME);
                out.extend(welcome.version.to_le_bytes());
                out.extend(welcome.node_guid.0.to_le_bytes());
                out.extend(welcome.port_guid.0.to_le_bytes());
                out.extend(welcome.ip.0);
                put_port(&mut out, &welcome.port);
            }
            Message::Refused(text) => {
                out.push(REFUSED);
                out.extend(text.as_bytes().iter().take(MAX_TEXT));
            }
            Message::NoSuchPort(text) => {
                out.push(NO_SUCH_PORT);
                out.extend(text.as_bytes().iter().take(MAX_TEXT));
            }
            Message::Packet(packet) => {
                out.push(PACKET);
                out.extend(*packet);
            }
            Message::Credit { lane, total } => {
                out.extend([CREDIT, *lane]);
                out.extend(total.to_le_bytes());
            }
            Message::Port(port) => {
                out.push(PORT);
                put_port(&mut out, port);
            }
            Message::Resolve { token, ip } => {
                out.push(RESOLVE);
                out.extend(token.to_le_bytes());
                out.extend(ip.0);
            }
            Message::Resolved { token, gid, attached, port } => {
                out.push(RESOLVED);
                out.extend(token.to_le_bytes());
                out.extend(gid.0);
                out.push(u8::from(*attached));
                out.extend(port.as_bytes().iter().take(MAX_TEXT));
            }
            Message::WrongKey { is_qkey, head } => {
                out.extend([WRONG_KEY, u8::from(*is_qkey)]);
                out.extend(head.iter().take(MAX_TEXT));
            }
            Message::Bye => out.push(BYE),
        }
        out
    }
}

/// Whether a total of credits allows one more after `sent`: both count modulo 2^32, and differ by a window at most.
pub fn allows(total: u32, sent: u32) -> bool {
    total.wrapping_sub(sent) as i32 > 0
}

/// The lane of a packet, by virtual lane and service level in its LRH (IBTA §7.7: the first halves of the first two bytes).
pub fn lane_of(packet: &[u8]) -> Option<u8> {
    match *packet {
        [first, _, ..] if first >> 4 == 15 => Some(LEVELS as u8),
        [_, second, ..] => Some(second >> 4),
        _ => None,
    }
}
