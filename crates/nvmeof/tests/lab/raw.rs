//! A host that sends capsules by hand: queue pair, private data and descriptors as a test wants them.
//!
//! It follows the transport's rules (a receive for every response, one capsule for every SEND) and nothing else; what the
//! commands say is the test's business.

use everywire_nvmeof::pdu::cm::CmRequest;
use everywire_nvmeof::pdu::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, PropertySet};
use everywire_nvmeof::pdu::properties::{CC, CC_DEFAULT, CC_EN};
use everywire_nvmeof::pdu::{Cqe, Field, Keyed, Sgl, Sqe};
use everywire_verbs::{
    Access, CmError, Completion, ConnParam, ConnectOptions, Connection, Cq, MemoryRegion, Qp, QpCaps, QpInit,
    QpType, RecvWr, SendOp, SendWr, WcOpcode, WcStatus,
};

use super::{Host, address, identity, nqn};

/// Bytes of a capsule here.
const CAPSULE: usize = 64 + 4096;
/// Work request ids of receives have this bit.
const RECEIVE: u64 = 1 << 32;

/// One queue of a host.
pub struct Raw {
    qp: Qp,
    cq: Cq,
    cm: Connection,
    capsules: MemoryRegion,
    responses: MemoryRegion,
    /// The host's data, open to the controller.
    pub data: MemoryRegion,
    entries: u16,
    sent: u16,
}

impl Raw {
    /// Connects at the transport. `ird`: READs that the controller may have outstanding here.
    pub async fn open(host: &Host, qid: u16, entries: u16, ird: u8, data: usize) -> Result<Self, CmError> {
        let pd = host.device.alloc_pd().expect("a protection domain");
        let depth = u32::from(entries);
        let cq = host.device.create_cq(4 * depth).expect("a completion queue");
        let caps = QpCaps {
            max_send_wr: 2 * depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) }).expect("a queue pair");
        let region = |len, access| pd.register(len, access).expect("memory");
        let capsules = region(CAPSULE * usize::from(entries), Access::empty());
        let responses = region(Cqe::LEN * usize::from(entries), Access::LOCAL_WRITE);
        let data = region(data, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
        qp.to_init(Access::REMOTE_READ | Access::REMOTE_WRITE).expect("INIT");
        for index in 0..entries {
            qp.post_recv(receive(&responses, index)).expect("room");
        }
        let private = CmRequest { qid, hrqsize: entries, hsqsize: entries - 1, ..Default::default() };
        let param = ConnParam {
            responder_resources: ird,
            initiator_depth: 0,
            ..ConnParam::with_private_data(private.emit())
        };
        let cm = host.device.connect(ConnectOptions::new(address(), &qp).param(param)).await?;
        Ok(Self { qp, cq, cm, capsules, responses, data, entries, sent: 0 })
    }

    /// An admin queue with the controller enabled, and the controller's identifier.
    pub async fn admin(host: &Host, kato: u32) -> (Self, u16) {
        let mut queue = Self::open(host, 0, 32, 16, 1 << 16).await.expect("connects");
        let cntlid = queue.connect(0, CNTLID_DYNAMIC, kato).await;
        queue.set_cc(CC_DEFAULT | CC_EN).await;
        (queue, cntlid)
    }

    /// An I/O queue of that controller.
    pub async fn io(host: &Host, cntlid: u16, qid: u16, entries: u16, ird: u8, data: usize) -> Self {
        let mut queue = Self::open(host, qid, entries, ird, data).await.expect("connects");
        queue.connect(qid, cntlid, 0).await;
        queue
    }

    async fn connect(&mut self, qid: u16, cntlid: u16, kato: u32) -> u16 {
        let data = ConnectData {
            hostid: identity(1).id,
            cntlid,
            subnqn: nqn().to_field(),
            hostnqn: identity(1).nqn.to_field(),
        };
        self.data.write_at(0, &data.emit()).expect("in range");
        let connect = Connect { sgl: self.block(0, 1024), ..Connect::new(qid, self.entries - 1, kato) };
        self.ok(connect.to_sqe(), &[]).await.dword0() as u16
    }

    /// Writes CC.
    pub async fn set_cc(&mut self, value: u32) {
        self.ok(PropertySet::new(CC, value).to_sqe(), &[]).await;
    }

    /// A keyed block of the host's data.
    pub fn keyed(&self, at: usize, len: u32) -> Keyed {
        let remote = self.data.remote(at);
        Keyed { addr: remote.addr, len, key: remote.rkey.0, invalidate: false }
    }

    /// The same as a command's descriptor.
    pub fn block(&self, at: usize, len: u32) -> Sgl {
        Sgl::keyed(self.keyed(at, len))
    }

    /// Sends a capsule; its command identifier. At most one less than there are entries may be outstanding.
    pub fn send(&mut self, sqe: Sqe, extra: &[u8]) -> u16 {
        let cid = self.sent;
        self.sent = self.sent.wrapping_add(1);
        let at = usize::from(cid % self.entries) * CAPSULE;
        self.capsules.write_at(at, &Sqe { cid, ..sqe }.emit()).expect("in range");
        self.capsules.write_at(at + Sqe::LEN, extra).expect("in range");
        let wr = SendWr::new(0, SendOp::Send);
        let wr = wr.with_sges([self.capsules.sge(at..at + Sqe::LEN + extra.len())]);
        self.qp.post_send(wr).expect("room");
        cid
    }

    /// The next responses, at least one; none when the connection has broken.
    pub async fn responses(&mut self) -> Vec<Cqe> {
        let mut found = Vec::new();
        let mut batch: Vec<Completion> = Vec::new();
        while found.is_empty() {
            self.cq.wait(&mut batch, 64).await.expect("a completion queue");
            for completion in batch.drain(..) {
                if completion.status != WcStatus::Success {
                    return Vec::new();
                }
                if completion.opcode == WcOpcode::Recv {
                    let index = (completion.wr_id & !RECEIVE) as u16;
                    let at = usize::from(index) * Cqe::LEN;
                    let raw = self.responses.read_vec(at, Cqe::LEN).expect("in range");
                    found.push(Cqe::get(&raw));
                    self.qp.post_recv(receive(&self.responses, index)).expect("room");
                }
            }
        }
        found
    }

    /// Sends a command and waits for its response, which must be the only one; `None` when the connection has broken.
    pub async fn command(&mut self, sqe: Sqe, extra: &[u8]) -> Option<Cqe> {
        let cid = self.send(sqe, extra);
        let responses = self.responses().await;
        let cqe = responses.first().copied()?;
        assert_eq!((responses.len(), cqe.cid), (1, cid));
        Some(cqe)
    }

    /// The same for a command that must succeed.
    pub async fn ok(&mut self, sqe: Sqe, extra: &[u8]) -> Cqe {
        let cqe = self.command(sqe, extra).await.expect("an answer");
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        cqe
    }

    /// Disconnects and waits for the confirmation.
    pub async fn close(self) {
        self.cm.disconnect().await;
    }

    /// Whether the other side has ended the connection.
    pub fn is_closed(&self) -> bool {
        self.cm.closed_reason().is_some()
    }
}

fn receive(responses: &MemoryRegion, index: u16) -> RecvWr {
    let at = usize::from(index) * Cqe::LEN;
    RecvWr::new(RECEIVE | u64::from(index), [responses.sge(at..at + Cqe::LEN)])
}
