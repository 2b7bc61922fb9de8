//! Which protocol a queue pair carries, learned from its connection's REQ and REP, and its messages named.
//!
//! Knows NVMe over Fabrics (the port of its REQ and the shape of its private data, NVMe-oF RDMA transport §7.3.6). A capture that
//! lacks the connection set-up shows the transport only.

use std::collections::HashMap;
use std::net::IpAddr;

use everywire_wire::RocePacket;
use everywire_wire::cm::CmMessage;
use everywire_wire::ip_cm::{IpCmHeader, PortSpace, split_service_id};
use serde_json::{Map, Value, json};

use super::packet::{Ends, hex};

/// Connections followed at most; a capture with more shows the later ones as transport only.
const MAX_FLOWS: usize = 65_536;

/// Which way capsules go to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Commands arrive here.
    Controller,
    /// Responses arrive here.
    Host,
}

/// A queue pair known to carry NVMe.
#[derive(Debug, Clone, Copy)]
struct NvmeQueue {
    side: Side,
    qid: u16,
}

/// What was learned so far.
#[derive(Default)]
pub struct Flows {
    /// Queue pairs by address and number.
    nvme: HashMap<(IpAddr, u32), NvmeQueue>,
    /// REQs that wait for their REP: by requester's address and communication ID.
    pending: HashMap<(IpAddr, u32), u16>,
}

impl Flows {
    /// Takes in a CM message.
    pub fn learn(&mut self, message: &CmMessage, ends: Ends) {
        if self.nvme.len() + self.pending.len() >= MAX_FLOWS {
            return;
        }
        let Ends { src, dst } = ends;
        match message {
            CmMessage::Req(req) => {
                let ours = matches!(split_service_id(req.service_id), Some((PortSpace::TCP, _)));
                let Some(user) = req.private_data.get(IpCmHeader::LEN..) else { return };
                if let (true, Some(qid)) = (ours, nvme_request_qid(user)) {
                    self.nvme.insert((src, req.local_qpn.get()), NvmeQueue { side: Side::Host, qid });
                    self.pending.insert((src, req.local_comm_id), qid);
                }
            }
            CmMessage::Rep(rep) => {
                if let Some(qid) = self.pending.remove(&(dst, rep.remote_comm_id)) {
                    self.nvme.insert((src, rep.local_qpn.get()), NvmeQueue { side: Side::Controller, qid });
                }
            }
            _ => {}
        }
    }

    /// Adds the protocol's member to a data packet, if its queue pair is known.
    pub fn describe(&self, packet: &RocePacket<'_>, ends: Ends, object: &mut Map<String, Value>) {
        let Some(queue) = self.nvme.get(&(ends.dst, packet.bth.dest_qp.get())) else { return };
        if !(packet.bth.opcode.is_send() && packet.bth.opcode.starts_message()) {
            return;
        }
        let value = match queue.side {
            Side::Controller => command(packet.payload, queue.qid),
            Side::Host => response(packet.payload, queue.qid),
        };
        if let Some(value) = value {
            object.insert("nvme".into(), value);
        }
    }
}

/// The queue ID in an NVMe/RDMA request's private data (format 0: recfmt, qid, hrqsize, hsqsize, cntlid); `None` for
/// anything else. An NVMe host asks for at least one entry each way.
fn nvme_request_qid(user: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u16::from_le_bytes([*user.get(at)?, *user.get(at + 1)?]));
    let (recfmt, qid, hrqsize, hsqsize) = (word(0)?, word(2)?, word(4)?, word(6)?);
    let rest_is_zero = user.get(10..32)?.iter().all(|&b| b == 0);
    (recfmt == 0 && hrqsize > 0 && hsqsize > 0 && rest_is_zero).then_some(qid)
}

/// A command capsule (NVMe Base 2.0 §3.3.1.1: the submission queue entry comes first).
fn command(bytes: &[u8], qid: u16) -> Option<Value> {
    let sqe: &[u8; 64] = bytes.first_chunk()?;
    let cid = u16::from_le_bytes([sqe[2], sqe[3]]);
    let nsid = u32::from_le_bytes([sqe[4], sqe[5], sqe[6], sqe[7]]);
    let mut value = json!({"capsule": "command", "qid": qid, "command": opcode_name(sqe, qid), "cid": cid});
    if sqe[0] != 0x7f {
        value["nsid"] = json!(nsid);
    }
    if bytes.len() > sqe.len() {
        value["in_capsule"] = json!(bytes.len() - sqe.len());
    }
    Some(value)
}

/// A response capsule: the 16-byte completion queue entry.
fn response(bytes: &[u8], qid: u16) -> Option<Value> {
    let cqe: &[u8; 16] = bytes.first_chunk()?;
    let half = |at: usize| u16::from_le_bytes([cqe[at], cqe[at + 1]]);
    Some(json!({
        "capsule": "response", "qid": qid, "cid": half(12), "sqhd": half(8),
        "status": hex(half(14) >> 1, 4),
    }))
}

fn opcode_name(sqe: &[u8; 64], qid: u16) -> String {
    let name = match (sqe[0], qid) {
        (0x7f, _) => match sqe[4] {
            0x00 => "Property Set",
            0x01 => "Connect",
            0x04 => "Property Get",
            0x05 => "Authentication Send",
            0x06 => "Authentication Receive",
            0x08 => "Disconnect",
            _ => "Fabrics",
        },
        (0x02, 0) => "Get Log Page",
        (0x06, 0) => "Identify",
        (0x08, 0) => "Abort",
        (0x09, 0) => "Set Features",
        (0x0a, 0) => "Get Features",
        (0x0c, 0) => "Asynchronous Event Request",
        (0x18, 0) => "Keep Alive",
        (0x00, _) => "Flush",
        (0x01, 1..) => "Write",
        (0x02, 1..) => "Read",
        (0x05, 1..) => "Compare",
        (0x08, 1..) => "Write Zeroes",
        (0x09, 1..) => "Dataset Management",
        (other, _) => return format!("opcode {other:#04x}"),
    };
    name.to_owned()
}
