//! Walks `captures/nvme_rdma.pcap`: Ethernet, IPv4, UDP, RoCE, then whole RC messages and CM private data.
//! A Linux 6.1 host (192.168.77.12) against Linux 6.1 nvmet-rdma (192.168.77.11).
#![allow(dead_code)]

use std::collections::HashMap;

use everywire_wire::roce::RocePacket;

const HOST: [u8; 4] = [192, 168, 77, 12];
const CM_ATTRIBUTES: std::ops::RangeInclusive<u16> = 0x10..=0x19;

/// Who sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Host,
    Target,
}

/// What a train of packets meant.
#[derive(Debug, Clone)]
pub enum What {
    /// CM request: the NVMe private data after the IP CM header.
    ConnectRequest(Vec<u8>),
    /// CM reply: the private data.
    ConnectReply(Vec<u8>),
    Disconnect,
    /// A whole SEND and the key it invalidates.
    Send {
        qp: u32,
        bytes: Vec<u8>,
        invalidate: Option<u32>,
    },
    /// A whole WRITE.
    Write {
        va: u64,
        key: u32,
        bytes: Vec<u8>,
    },
    /// A whole READ, at its last response; `len` as requested.
    Read {
        va: u64,
        key: u32,
        bytes: Vec<u8>,
    },
}

#[derive(Debug, Clone)]
pub struct Message {
    pub frame: usize,
    pub from: From,
    pub what: What,
}

pub fn messages() -> Vec<Message> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures/nvme_rdma.pcap");
    let file = std::fs::read(path).expect("the capture");
    let mut walk = Walk::default();
    let (mut at, mut frame) = (24, 0);
    while at + 16 <= file.len() {
        let len = u32::from_le_bytes(file[at + 8..at + 12].try_into().expect("4 bytes")) as usize;
        frame += 1;
        walk.frame(frame, &file[at + 16..at + 16 + len]);
        at += 16 + len;
    }
    walk.out
}

#[derive(Default)]
struct Walk {
    out: Vec<Message>,
    sends: HashMap<u32, Vec<u8>>,
    writes: HashMap<u32, (u64, u32, Vec<u8>)>,
    /// By the responder's peer QP; the target has one READ outstanding at a time in this capture.
    reads: HashMap<u32, Vec<u8>>,
    read_request: Option<(u64, u32, u32)>,
}

impl Walk {
    fn frame(&mut self, frame: usize, bytes: &[u8]) {
        if bytes[12..14] != [8, 0] || bytes[23] != 17 {
            return;
        }
        let ip = &bytes[14..];
        let from = if ip[12..16] == HOST { From::Host } else { From::Target };
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let roce = RocePacket::parse(&ip[28..total]).expect("a RoCE packet");
        let qp = roce.bth.dest_qp.get();
        let what = if roce.deth.is_some() { Self::cm(roce.payload) } else { self.rc(qp, &roce) };
        self.out.extend(what.map(|what| Message { frame, from, what }));
    }

    fn cm(mad: &[u8]) -> Option<What> {
        let attribute = u16::from_be_bytes([mad[16], mad[17]]);
        assert!(CM_ATTRIBUTES.contains(&attribute));
        match attribute {
            0x10 => Some(What::ConnectRequest(mad[200..256].to_vec())),
            0x13 => Some(What::ConnectReply(mad[60..256].to_vec())),
            0x15 => Some(What::Disconnect),
            _ => None,
        }
    }

    fn rc(&mut self, qp: u32, roce: &RocePacket<'_>) -> Option<What> {
        let opcode = roce.bth.opcode;
        let payload = roce.payload;
        match opcode.0 {
            0 => {
                self.sends.insert(qp, payload.to_vec());
                None
            }
            1 => {
                self.sends.get_mut(&qp).expect("a FIRST before").extend_from_slice(payload);
                None
            }
            2 | 4 | 23 => {
                let mut bytes = self.sends.remove(&qp).unwrap_or_default();
                bytes.extend_from_slice(payload);
                let invalidate = roce.ieth.map(|ieth| ieth.rkey.0);
                Some(What::Send { qp, bytes, invalidate })
            }
            6 | 7 | 8 | 10 => {
                if let Some(reth) = roce.reth {
                    self.writes.insert(qp, (reth.va, reth.rkey.0, Vec::new()));
                }
                self.writes.get_mut(&qp).expect("a FIRST before").2.extend_from_slice(payload);
                if !opcode.ends_message() {
                    return None;
                }
                let (va, key, bytes) = self.writes.remove(&qp).expect("just used");
                Some(What::Write { va, key, bytes })
            }
            12 => {
                let reth = roce.reth.expect("a RETH");
                self.read_request = Some((reth.va, reth.rkey.0, reth.length));
                None
            }
            13..=16 => {
                let bytes = self.reads.entry(qp).or_default();
                bytes.extend_from_slice(payload);
                if !matches!(opcode.0, 15 | 16) {
                    return None;
                }
                let bytes = self.reads.remove(&qp).expect("just used");
                let (va, key, len) = self.read_request.take().expect("a request before");
                assert_eq!(bytes.len(), len as usize);
                Some(What::Read { va, key, bytes })
            }
            17 => None,
            other => panic!("opcode {other} is not in this capture"),
        }
    }
}
