//! The bytes of ibsim's protocol: control messages of 80 bytes and MAD packets of 288.
//!
//! libumad2sim (Debian's ibsim-utils) speaks it in place of /dev/infiniband/umad; both ends are on one machine, so structures
//! are in host byte order, save what comes from the network. Nothing here knows clients or fabrics.

use everywire_wire::{Lid, MAD_LEN, Mad};

/// First word of every control message.
const MAGIC: u32 = 0xdead_beef;
/// Bytes of a control message.
pub const CONTROL_LEN: usize = 80;
/// Bytes of a control message's data.
pub const DATA_LEN: usize = 64;
/// Where they begin.
const DATA: usize = 16;
/// Bytes of a MAD packet.
pub const PACKET_LEN: usize = 288;
/// Where its MAD begins.
const MAD: usize = 32;
/// Status of a request that nobody answered: ETIMEDOUT.
pub const TIMED_OUT: u32 = 110;
/// Bytes of a client's node name, with its NUL.
const NODE_ID: usize = 32;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To be let in.
    Connect(Connect),
    /// To be let out.
    Disconnect,
    /// LID and state of its port.
    Port,
    /// Firmware version and the like.
    Vendor,
    /// Its port's GID.
    Gid,
    /// Its port's GUID.
    Guid,
    /// NodeInfo.
    NodeInfo,
    /// PortInfo of this port.
    PortInfo(u8),
    /// To have, or no longer have, the port's IsSM bit.
    SetIsSm(bool),
    /// The partition table's first block.
    Pkeys,
}

/// The data of a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Its process; its sockets' names end with it.
    pub pid: u32,
    /// The only QP it serves, or 0.
    pub qp: u32,
    /// Whether it is a subnet manager.
    pub is_sm: bool,
    /// Name of the host it wants to be on (`SIM_HOST`), NUL-padded; empty: any.
    pub node: [u8; NODE_ID],
}

impl Connect {
    /// The host's name.
    pub fn host(&self) -> String {
        let end = self.node.iter().position(|byte| *byte == 0).unwrap_or(NODE_ID);
        String::from_utf8_lossy(&self.node[..end]).trim_matches('"').to_owned()
    }
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Which client, as CONNECT's answer has numbered it.
    pub client: u32,
    /// What it wants.
    pub request: Request,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

impl Control {
    /// Reads a message; `None` where it is none.
    pub fn parse(bytes: &[u8]) -> Option<Control> {
        if bytes.len() != CONTROL_LEN || word(bytes, 0) != MAGIC || word(bytes, 12) as usize > DATA_LEN {
            return None;
        }
        let data = &bytes[DATA..];
        let request = match word(bytes, 8) {
            1 => Request::Connect(Connect {
                pid: word(data, 0),
                qp: word(data, 4),
                is_sm: word(data, 8) != 0,
                node: data[12..12 + NODE_ID].try_into().ok()?,
            }),
            2 => Request::Disconnect,
            3 => Request::Port,
            4 => Request::Vendor,
            5 => Request::Gid,
            6 => Request::Guid,
            7 => Request::NodeInfo,
            8 => Request::PortInfo(data[0]),
            9 => Request::SetIsSm(word(data, 0) != 0),
            10 => Request::Pkeys,
            _ => return None,
        };
        Some(Control { client: word(bytes, 4), request })
    }
}

/// The answer to a message: the message itself with as much of this data as its length says, or with type 0, an error.
pub fn answer(message: &[u8], data: Option<&[u8]>) -> [u8; CONTROL_LEN] {
    let mut out = [0; CONTROL_LEN];
    let len = message.len().min(CONTROL_LEN);
    out[..len].copy_from_slice(&message[..len]);
    match data {
        Some(data) => {
            // The client has room for what it asked for, and no more.
            let len = data.len().min(DATA_LEN).min(word(&out, 12) as usize);
            out[DATA..DATA + len].copy_from_slice(&data[..len]);
        }
        None => out[8..12].fill(0),
    }
    out
}

/// The answer to CONNECT: the client's number stands where its process was, and in the message's head.
pub fn welcome(message: &[u8], client: u32) -> [u8; CONTROL_LEN] {
    let mut out = answer(message, Some(&client.to_ne_bytes()));
    out[4..8].copy_from_slice(&client.to_ne_bytes());
    out
}

/// A MAD between a client and the fabric.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Where it goes; the permissive LID for directed routes.
    pub dlid: Lid,
    /// Where it comes from; zero: the client leaves that to the fabric.
    pub slid: Lid,
    /// Destination QP.
    pub dqp: u32,
    /// Source QP.
    pub sqp: u32,
    /// 0, or [`TIMED_OUT`] toward a client.
    pub status: u32,
    /// The datagram.
    pub mad: Mad,
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    word(bytes, at).to_be()
}

fn lid(bytes: &[u8], at: usize) -> Lid {
    Lid(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

impl Packet {
    /// Reads a packet; `None` where it is none.
    pub fn parse(bytes: &[u8]) -> Option<Packet> {
        let mad: Mad = bytes.get(MAD..PACKET_LEN)?.try_into().ok()?;
        if bytes.len() != PACKET_LEN {
            return None;
        }
        Some(Packet {
            dlid: lid(bytes, 0),
            slid: lid(bytes, 4),
            dqp: be32(bytes, 8),
            sqp: be32(bytes, 12),
            status: be32(bytes, 16),
            mad,
        })
    }

    /// The packet's bytes.
    pub fn bytes(&self) -> [u8; PACKET_LEN] {
        let mut out = [0; PACKET_LEN];
        out[0..2].copy_from_slice(&self.dlid.0.to_be_bytes());
        out[4..6].copy_from_slice(&self.slid.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.dqp.to_be_bytes());
        out[12..16].copy_from_slice(&self.sqp.to_be_bytes());
        out[16..20].copy_from_slice(&self.status.to_be_bytes());
        out[24..32].copy_from_slice(&(MAD_LEN as u64).to_be_bytes());
        out[MAD..].copy_from_slice(&self.mad);
        out
    }
}
