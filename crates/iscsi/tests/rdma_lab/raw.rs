//! An initiator that says what it is told to, by verbs alone.

use bytes::Bytes;
use everywire_iscsi::keys::text;
use everywire_iscsi::pdu::{Digests, FINAL, Header as Bhs, LoginRequest, Pdu, ScsiCommand};
use everywire_iscsi::rdma::{ControlHeader, HEADER_LEN, Header, Tagged};
use everywire_verbs::{
    Access, ConnParam, ConnectOptions, Connection, Cq, MemoryRegion, Qp, QpCaps, QpInit, QpType, RKey,
    RecvWr, SendOp, SendWr, WcOpcode, WcStatus,
};

use super::{Host, address};
use crate::lab::{HOST, TARGET};

const RECEIVES: usize = 32;
const LEN: usize = 16384;
const INLINE: u32 = 4096;
/// What Linux's initiators log in with, in one request (captures/iser.pcap).
pub const LINUX: &[(&str, &str)] = &[
    ("InitiatorName", HOST),
    ("TargetName", TARGET),
    ("SessionType", "Normal"),
    ("ErrorRecoveryLevel", "0"),
    ("InitialR2T", "No"),
    ("ImmediateData", "Yes"),
    ("MaxBurstLength", "16776192"),
    ("FirstBurstLength", "262144"),
    ("InitiatorRecvDataSegmentLength", "262144"),
    ("TargetRecvDataSegmentLength", "8192"),
    ("RDMAExtensions", "Yes"),
];

pub struct Raw {
    qp: Qp,
    cq: Cq,
    pub cm: Connection,
    messages: MemoryRegion,
    /// Messages too long to travel in their work requests, and where the next one goes.
    outgoing: MemoryRegion,
    long: std::cell::Cell<usize>,
    /// Memory that the target may reach.
    pub data: MemoryRegion,
    pub cmd_sn: std::cell::Cell<u32>,
}

impl Raw {
    /// Connects, with this byte of private data: 80h takes SEND with Invalidate, C0h does not.
    pub async fn connect(host: &Host, flags: u8) -> Raw {
        let pd = host.device.alloc_pd().expect("a domain");
        let cq = host.device.create_cq(128).expect("a queue");
        let caps = QpCaps {
            max_send_wr: 64,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE,
        };
        let qp = pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) }).expect("a queue pair");
        let messages = pd.register(RECEIVES * LEN, Access::LOCAL_WRITE).expect("memory");
        let outgoing = pd.register(8 * LEN, Access::empty()).expect("memory");
        let data = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let data = pd.register(1 << 20, data).expect("memory");
        qp.to_init(Access::REMOTE_READ | Access::REMOTE_WRITE).expect("INIT");
        let raw = |index: usize| RecvWr::new(index as u64, [messages.sge(index * LEN..(index + 1) * LEN)]);
        (0..RECEIVES).for_each(|index| qp.post_recv(raw(index)).expect("room"));
        let param =
            ConnParam { initiator_depth: 0, ..ConnParam::with_private_data([flags, 0, 0, 0].as_slice()) };
        let connecting = host.device.connect(ConnectOptions::new(address(), &qp).param(param));
        let cm = connecting.await.expect("connects");
        assert_eq!(cm.private_data()[..4], [0x80, 0, 0, 0], "as isert answers");
        Raw { qp, cq, cm, messages, outgoing, long: 0.into(), data, cmd_sn: 1.into() }
    }

    pub fn bytes(&self, bytes: &[u8]) {
        let wr = SendWr::new(u64::MAX, SendOp::Send);
        let wr = if bytes.len() <= INLINE as usize {
            wr.with_inline(bytes)
        } else {
            let at = self.long.get();
            self.long.set((at + LEN) % self.outgoing.len());
            self.outgoing.write_at(at, bytes).expect("inside");
            wr.with_sges([self.outgoing.sge(at..at + bytes.len())])
        };
        // On a connection that is over this is flushed, or refused.
        let _ = self.qp.post_send(wr);
    }

    pub fn say(&self, header: ControlHeader, pdu: &Pdu) {
        let mut bytes = Header::Control(header).emit().to_vec();
        bytes.extend_from_slice(&pdu.to_bytes(Digests::default()));
        self.bytes(&bytes);
    }

    /// The next message, with the key that it invalidated; `None` once the connection is over.
    pub async fn message(&self) -> Option<(Bytes, Option<RKey>)> {
        let mut batch = Vec::new();
        loop {
            self.cq.wait(&mut batch, 1).await.expect("a queue");
            let completion = batch.pop().expect("one");
            if completion.status != WcStatus::Success {
                return None;
            }
            if completion.opcode == WcOpcode::Recv {
                let at = completion.wr_id as usize * LEN;
                let bytes = self.messages.read_vec(at, completion.byte_len as usize).expect("inside");
                self.qp
                    .post_recv(RecvWr::new(completion.wr_id, [self.messages.sge(at..at + LEN)]))
                    .expect("room");
                return Some((bytes.into(), completion.invalidated));
            }
        }
    }

    pub async fn hear(&self) -> Option<Pdu> {
        let (bytes, _) = self.message().await?;
        assert_eq!(Header::parse(&bytes), Ok(Header::Control(ControlHeader::default())));
        Some(Pdu::from_bytes(&bytes.slice(HEADER_LEN..), 1 << 20).expect("a PDU"))
    }

    /// Logs in with these keys in one request; the answer's status and keys.
    pub async fn login(&self, keys: &[(&str, &str)]) -> ((u8, u8), Vec<(String, String)>) {
        let request = LoginRequest {
            flags: 0x87,
            isid: [0x40, 0, 1, 0x37, 0, 0],
            cmd_sn: 1,
            ..LoginRequest::default()
        };
        let data = text::emit(keys.iter().copied());
        self.say(ControlHeader::default(), &Pdu::with_data(request, data).immediate());
        let answer = self.hear().await.expect("an answer");
        let Bhs::LoginResponse(response) = answer.header else { panic!("{answer:?}") };
        ((response.class, response.detail), text::parse(&answer.data).expect("text"))
    }

    /// Where the target may write to, and read from.
    pub fn tag(&self, at: usize) -> Tagged {
        let remote = self.data.remote(at);
        Tagged { stag: remote.rkey.0, base: remote.addr }
    }

    /// A command, with its number.
    pub fn command(&self, itt: u32, flags: u8, edtl: u32, cdb: &[u8]) -> Pdu {
        let cmd_sn = self.cmd_sn.get();
        self.cmd_sn.set(cmd_sn + 1);
        let mut header = ScsiCommand { flags: FINAL | flags, itt, edtl, cmd_sn, ..ScsiCommand::default() };
        header.cdb[..cdb.len()].copy_from_slice(cdb);
        Pdu::new(header)
    }
}
