//! Walks `captures/srp*.pcap`: Ethernet, IPv4, UDP, RoCE, then whole RC messages and CM private data. A Linux 6.1 initiator
//! (192.168.77.12, ib_srp) against a Linux 6.1 target (192.168.77.11, ib_srpt).
#![allow(dead_code)]

use std::collections::HashMap;

use everywire_wire::roce::RocePacket;

const INITIATOR: [u8; 4] = [192, 168, 77, 12];

/// Who sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Initiator,
    Target,
}

/// What a train of packets meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The private data of a CM request after the IP CM header, of its reply, of a rejection.
    Request(Vec<u8>),
    Reply(Vec<u8>),
    Reject(Vec<u8>),
    Disconnect,
    /// A whole SEND.
    Send(Vec<u8>),
    /// A whole WRITE.
    Write {
        va: u64,
        key: u32,
        bytes: Vec<u8>,
    },
    /// A READ request.
    Read {
        va: u64,
        key: u32,
        len: u32,
    },
}

pub fn messages(name: &str) -> Vec<(usize, From, What)> {
    let path = format!("{}/../../captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
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
    out: Vec<(usize, From, What)>,
    sends: HashMap<u32, Vec<u8>>,
    writes: HashMap<u32, (u64, u32, Vec<u8>)>,
}

impl Walk {
    fn frame(&mut self, frame: usize, bytes: &[u8]) {
        if bytes[12..14] != [8, 0] || bytes[23] != 17 {
            return;
        }
        let ip = &bytes[14..];
        let from = if ip[12..16] == INITIATOR { From::Initiator } else { From::Target };
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let roce = RocePacket::parse(&ip[28..total]).expect("a RoCE packet");
        let what = if roce.deth.is_some() { cm(roce.payload) } else { self.rc(&roce) };
        self.out.extend(what.map(|what| (frame, from, what)));
    }

    fn rc(&mut self, roce: &RocePacket<'_>) -> Option<What> {
        let (qp, payload) = (roce.bth.dest_qp.get(), roce.payload);
        match roce.bth.opcode.0 {
            0 | 1 => {
                self.sends.entry(qp).or_default().extend_from_slice(payload);
                None
            }
            2 | 4 => {
                let mut bytes = self.sends.remove(&qp).unwrap_or_default();
                bytes.extend_from_slice(payload);
                Some(What::Send(bytes))
            }
            6 | 7 | 8 | 10 => {
                if let Some(reth) = roce.reth {
                    self.writes.insert(qp, (reth.va, reth.rkey.0, Vec::new()));
                }
                self.writes.get_mut(&qp).expect("a FIRST before").2.extend_from_slice(payload);
                if !roce.bth.opcode.ends_message() {
                    return None;
                }
                let (va, key, bytes) = self.writes.remove(&qp).expect("just used");
                Some(What::Write { va, key, bytes })
            }
            12 => {
                let reth = roce.reth.expect("a RETH");
                Some(What::Read { va: reth.va, key: reth.rkey.0, len: reth.length })
            }
            13..=17 => None,
            other => panic!("opcode {other} is not in these captures"),
        }
    }
}

fn cm(mad: &[u8]) -> Option<What> {
    match u16::from_be_bytes([mad[16], mad[17]]) {
        0x10 => Some(What::Request(mad[200..256].to_vec())),
        0x12 => Some(What::Reject(mad[108..256].to_vec())),
        0x13 => Some(What::Reply(mad[60..256].to_vec())),
        0x15 => Some(What::Disconnect),
        _ => None,
    }
}
