//! The target core against the standard, by hand: a host that sends entries and moves data itself.
//! Rows NV-.. of the case list are named beside the tests that hold them.

use std::sync::Arc;
use std::time::Duration;

use everywire_block::{IoMemory, RamBackend, SharedBuffer};

use super::config::ControllerModel;
use super::*;
use crate::pdu::command::{DSM_DEALLOCATE, DsmRange, IoOpcode, NSID_ALL};
use crate::pdu::fabrics::{
    CATTR_DISABLE_SQFLOW, CNTLID_DYNAMIC, CNTLID_STATIC_ANY, Connect, ConnectData, InvalidParameter,
    PropertyGet, PropertySet, connect_at,
};
use crate::pdu::features as f;
use crate::pdu::log::LogRequest;
use crate::pdu::properties::*;
use crate::pdu::{Field, Keyed, Sgl, discovery, identify, log};

mod lifecycle;

const NQN: &str = "nqn.2026-01.lab:s1";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:9b04fe4d-5424-49c3-8bce-82dcf6642f73";
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-5424-49c3-8bce-82dcf6642f73";

struct Bench {
    target: Target,
    now: Instant,
    host: &'static str,
    /// Commands sent, for command identifiers.
    sent: u16,
    /// In-capsule bytes of the next command.
    extra: Vec<u8>,
}

/// How a command ended, and its data.
#[derive(Debug)]
struct Done {
    cqe: Cqe,
    data: Vec<u8>,
}

impl Done {
    fn status(&self) -> Status {
        Status(self.cqe.status().0 & !Status::MORE)
    }

    fn ok(self) -> Self {
        assert!(self.cqe.status().is_success(), "{:?}", self.cqe.status());
        self
    }
}

fn nqn(text: &str) -> Nqn {
    text.parse().expect("an NQN")
}

fn ram(blocks: u64) -> NamespaceConfig {
    NamespaceConfig::new(Arc::new(RamBackend::new(512, blocks).expect("fits")))
}

fn keyed(len: u32) -> Sgl {
    Sgl::keyed(Keyed { addr: 0x1000, len, key: 7, invalidate: true })
}

fn origin() -> QueueOrigin {
    let addr = |text: &str| text.parse().expect("an address");
    QueueOrigin {
        port_id: 1,
        peer: addr("192.168.77.12:1024"),
        local: addr("192.168.77.11:4420"),
        interface: None,
    }
}

impl Bench {
    fn with(limits: Limits, subsystem: SubsystemConfig) -> Self {
        let mut target = Target::new(limits);
        target.add_subsystem(&subsystem).expect("a subsystem");
        let address = "192.168.77.11:4420".parse().expect("an address");
        target
            .add_listener(Listener { port_id: 1, address, provider: discovery::PRTYPE_ROCE_V2 })
            .expect("a listener");
        Self { target, now: Instant::now(), host: HOST, sent: 0, extra: Vec::new() }
    }

    fn new() -> Self {
        Self::with(Limits::default(), SubsystemConfig::new(nqn(NQN)).namespace(ram(65536)))
    }

    fn open(&mut self, qid: u16, hsqsize: u16) -> QueueId {
        let request = CmRequest { qid, hsqsize, hrqsize: hsqsize + 1, ..Default::default() };
        self.target.open_queue(self.now, origin(), &request).expect("a queue")
    }

    /// Sends one entry. `host` is the host's memory for the data of the command.
    fn send(&mut self, queue: QueueId, sqe: Sqe, host: &[u8]) -> Option<Done> {
        self.sent += 1;
        let sqe = Sqe { cid: self.sent, ..sqe };
        let capsule = SharedBuffer::new(std::mem::take(&mut self.extra));
        let mut data = Vec::new();
        let outcome = match self.target.begin(self.now, queue, &sqe, &capsule.io()) {
            Step::Respond(outcome) => outcome,
            Step::Held => return None,
            Step::Run(job) => {
                let buf = SharedBuffer::new(vec![0; job.len as usize]);
                match &job.data {
                    _ if job.direction != Direction::FromHost => {}
                    DataPointer::InCapsule { offset, len } => {
                        buf.store(0, &capsule.to_vec()[*offset..*offset + *len as usize]);
                    }
                    _ => buf.store(0, &host[..job.len as usize]),
                }
                let Ran::Done(outcome) = self.target.run(self.now, queue, &job, &buf.io()) else {
                    panic!("RAM completes at once")
                };
                if job.direction == Direction::ToHost {
                    data = buf.to_vec();
                }
                outcome
            }
        };
        let cqe = self.target.respond(queue, sqe.cid, outcome)?;
        assert_eq!(cqe.cid, sqe.cid);
        Some(Done { cqe, data })
    }

    fn done(&mut self, queue: QueueId, sqe: Sqe, host: &[u8]) -> Done {
        self.send(queue, sqe, host).expect("an answer")
    }

    fn connect_data(&self, subsystem: &str, cntlid: u16) -> ConnectData {
        let field = |text: &str| discovery::field(text);
        ConnectData { hostid: [9; 16], cntlid, subnqn: field(subsystem), hostnqn: field(self.host) }
    }

    fn connect(&mut self, queue: QueueId, connect: Connect, data: &ConnectData) -> Done {
        let sqe = Connect { sgl: keyed(1024), ..connect }.to_sqe();
        self.done(queue, sqe, &data.emit())
    }

    /// Connects an admin queue and enables the controller.
    fn admin(&mut self, subsystem: &str, kato: u32) -> (QueueId, u16) {
        let queue = self.open(0, 31);
        let data = self.connect_data(subsystem, CNTLID_DYNAMIC);
        let cntlid = self.connect(queue, Connect::new(0, 31, kato), &data).ok().cqe.dword0() as u16;
        self.done(queue, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
        (queue, cntlid)
    }

    fn io(&mut self, cntlid: u16, qid: u16) -> QueueId {
        let queue = self.open(qid, 15);
        let data = self.connect_data(NQN, cntlid);
        self.connect(queue, Connect::new(qid, 15, 0), &data).ok();
        queue
    }

    fn ready() -> (Self, QueueId, QueueId) {
        let mut bench = Self::new();
        let (admin, cntlid) = bench.admin(NQN, 0);
        let io = bench.io(cntlid, 1);
        (bench, admin, io)
    }

    fn identify(&mut self, queue: QueueId, cns: u8, nsid: u32) -> Done {
        let sqe = Sqe { cdw10: cns.into(), sgl: keyed(4096), ..Sqe::new(0x06, nsid) };
        self.done(queue, sqe, &[])
    }

    fn log(&mut self, queue: QueueId, lid: u8, offset: u64, len: u32) -> Done {
        let request = LogRequest { lid, lsp: 0, retain: false, len: len.into(), offset };
        self.done(queue, Sqe { sgl: keyed(len), ..request.to_sqe(0) }, &[])
    }

    /// Events but for changed deadlines, which the tests of deadlines look at.
    fn events(&mut self) -> Vec<TargetEvent> {
        let all = std::iter::from_fn(|| self.target.poll_event());
        all.filter(|event| !matches!(event, TargetEvent::Deadline { .. })).collect()
    }

    fn closed(&mut self) -> Vec<QueueId> {
        let close = |event| match event {
            TargetEvent::Close { queue, .. } => Some(queue),
            TargetEvent::Respond { .. } | TargetEvent::Deadline { .. } => None,
        };
        self.events().into_iter().filter_map(close).collect()
    }
}

fn parameter(done: &Done) -> InvalidParameter {
    assert_eq!(done.status(), Status::CONNECT_INVALID_PARAMETERS.dnr());
    InvalidParameter::from_cqe(&done.cqe)
}

#[test]
fn a_host_enables_identifies_writes_and_reads() {
    let (mut bench, admin, io) = Bench::ready();
    let csts = bench.done(admin, PropertyGet::new(CSTS, false).to_sqe(), &[]).ok();
    assert_eq!(csts.cqe.dword0(), CSTS_RDY);
    let cap = Capabilities(bench.done(admin, PropertyGet::new(CAP, true).to_sqe(), &[]).ok().cqe.result);
    assert_eq!(cap.mqes(), 1023);
    let bytes: Vec<u8> = (0..4096u32).map(|i| (i / 16) as u8).collect();
    bench.done(io, Sqe { sgl: keyed(4096), ..Sqe::rw(IoOpcode::WRITE, 1, 8, 8) }, &bytes).ok();
    let read = bench.done(io, Sqe { sgl: keyed(4096), ..Sqe::rw(IoOpcode::READ, 1, 8, 8) }, &[]).ok();
    assert_eq!(read.data, bytes);
    bench.extra = bytes[..512].to_vec();
    bench.done(io, Sqe { sgl: Sgl::in_capsule(0, 512), ..Sqe::rw(IoOpcode::WRITE, 1, 9, 1) }, &[]).ok();
    let read = bench.done(io, Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::READ, 1, 9, 1) }, &[]).ok();
    assert_eq!(read.data, bytes[..512]);
    bench.done(io, Sqe::rw(IoOpcode::WRITE_ZEROES, 1, 8, 1), &[]).ok();
    let read = bench.done(io, Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::READ, 1, 8, 1) }, &[]).ok();
    assert_eq!(read.data, [0; 512]);
    bench.done(io, Sqe::new(IoOpcode::FLUSH.0, 1), &[]).ok();
    bench.done(io, Sqe::new(IoOpcode::FLUSH.0, NSID_ALL), &[]).ok();
}

/// NV-01, NV-08, NV-15 and the rest of NVMe-oF 1.1 figure 22.
#[test]
fn every_invalid_connect_parameter_is_pointed_at() {
    let mut bench = Bench::new();
    let good = bench.connect_data(NQN, CNTLID_DYNAMIC);
    let admin = Connect::new(0, 31, 0);
    let unterminated = [b'n'; 256];
    let cases: Vec<(Connect, ConnectData, InvalidParameter)> = vec![
        (Connect { qid: 1, ..admin }, good.clone(), InvalidParameter::command(connect_at::QID)),
        (Connect { sqsize: 0, ..admin }, good.clone(), InvalidParameter::command(connect_at::SQSIZE)),
        (Connect { sqsize: 1024, ..admin }, good.clone(), InvalidParameter::command(connect_at::SQSIZE)),
        (Connect { sqsize: 32, ..admin }, good.clone(), InvalidParameter::command(connect_at::SQSIZE)),
        (
            admin,
            ConnectData { hostid: [0; 16], ..good.clone() },
            InvalidParameter::data(connect_at::DATA_HOSTID),
        ),
        (admin, ConnectData { cntlid: 3, ..good.clone() }, InvalidParameter::data(connect_at::DATA_CNTLID)),
        (
            admin,
            ConnectData { cntlid: CNTLID_STATIC_ANY, ..good.clone() },
            InvalidParameter::data(connect_at::DATA_CNTLID),
        ),
        (
            admin,
            ConnectData { subnqn: discovery::field("nqn.2026-01.lab:nobody"), ..good.clone() },
            InvalidParameter::data(connect_at::DATA_SUBNQN),
        ),
        (
            admin,
            ConnectData { subnqn: unterminated, ..good.clone() },
            InvalidParameter::data(connect_at::DATA_SUBNQN),
        ),
        (
            admin,
            ConnectData { hostnqn: [0; 256], ..good.clone() },
            InvalidParameter::data(connect_at::DATA_HOSTNQN),
        ),
        (
            admin,
            ConnectData { hostnqn: discovery::field("iqn.2014-08.org:a"), ..good.clone() },
            InvalidParameter::data(connect_at::DATA_HOSTNQN),
        ),
        (
            admin,
            ConnectData { hostnqn: unterminated, ..good.clone() },
            InvalidParameter::data(connect_at::DATA_HOSTNQN),
        ),
    ];
    for (connect, data, wrong) in cases {
        let queue = bench.open(0, 31);
        assert_eq!(parameter(&bench.connect(queue, connect, &data)), wrong, "{connect:?}");
        bench.target.close_queue(queue);
    }
    let queue = bench.open(0, 31);
    let format = bench.connect(queue, Connect { recfmt: 1, ..admin }, &good);
    assert_eq!(format.status(), Status::CONNECT_INCOMPATIBLE_FORMAT.dnr());
    assert_eq!(InvalidParameter::from_cqe(&format.cqe), InvalidParameter::command(connect_at::RECFMT));
    // The same queue may still connect properly.
    bench.connect(queue, admin, &good).ok();
    assert_eq!(bench.connect(queue, admin, &good).status(), Status::COMMAND_SEQUENCE_ERROR.dnr());
    assert_eq!(bench.target.controller_count(), 1);
}

/// NV-15: an I/O queue must name the association's own host, host identifier, subsystem and controller.
#[test]
fn an_io_queue_of_another_host_is_refused() {
    let mut bench = Bench::new();
    let (_, cntlid) = bench.admin(NQN, 0);
    let good = bench.connect_data(NQN, cntlid);
    let connect = Connect::new(1, 15, 0);
    for (data, at) in [
        (ConnectData { cntlid: cntlid + 1, ..good.clone() }, connect_at::DATA_CNTLID),
        (ConnectData { hostid: [8; 16], ..good.clone() }, connect_at::DATA_HOSTID),
        (ConnectData { hostnqn: discovery::field(OTHER), ..good.clone() }, connect_at::DATA_HOSTNQN),
        (
            ConnectData { subnqn: discovery::field("nqn.2026-01.lab:x"), ..good.clone() },
            connect_at::DATA_SUBNQN,
        ),
    ] {
        let queue = bench.open(1, 15);
        assert_eq!(parameter(&bench.connect(queue, connect, &data)), InvalidParameter::data(at));
    }
    let disc = ConnectData { subnqn: discovery::field(crate::DISCOVERY_NQN), ..good };
    let queue = bench.open(1, 15);
    assert_eq!(parameter(&bench.connect(queue, connect, &disc)), InvalidParameter::command(connect_at::QID));
}

#[test]
fn a_queue_identifier_over_the_granted_number_is_refused() {
    let mut bench = Bench::new();
    let (admin, cntlid) = bench.admin(NQN, 0);
    let ask = Sqe { cdw10: f::NUMBER_OF_QUEUES.into(), cdw11: 1 | 1 << 16, ..Sqe::new(0x09, 0) };
    assert_eq!(bench.done(admin, ask, &[]).ok().cqe.dword0(), 1 | 1 << 16);
    bench.io(cntlid, 2);
    let queue = bench.open(3, 15);
    let data = bench.connect_data(NQN, cntlid);
    assert_eq!(
        parameter(&bench.connect(queue, Connect::new(3, 15, 0), &data)),
        InvalidParameter::command(42)
    );
    // NVMe Base 2.0 §5.27.1.5: not after I/O queues exist, and not FFFFh.
    assert_eq!(bench.done(admin, ask, &[]).status(), Status::COMMAND_SEQUENCE_ERROR.dnr());
    let ffff = Sqe { cdw11: 0xffff, ..ask };
    assert_eq!(bench.done(admin, ffff, &[]).status(), Status::INVALID_FIELD.dnr());
}

/// NV-01: depths from 2 to 1024; NV-08: SQHD in every completion, modulo the queue's size, from Connect on.
#[test]
fn sqhd_advances_modulo_the_queue_size() {
    for entries in [2u16, 16, 32, 128, 1024] {
        let mut bench = Bench::new();
        let queue = bench.open(0, entries - 1);
        let data = bench.connect_data(NQN, CNTLID_DYNAMIC);
        let first = bench.connect(queue, Connect::new(0, entries - 1, 0), &data).ok();
        assert_eq!(first.cqe.sqhd, 1 % entries);
        for sent in 2..=2 * entries {
            let done = bench.done(queue, PropertyGet::new(VS, false).to_sqe(), &[]);
            assert_eq!(done.cqe.sqhd, sent % entries);
        }
    }
    let mut bench = Bench::new();
    let queue = bench.open(0, 31);
    let data = bench.connect_data(NQN, CNTLID_DYNAMIC);
    let connect = Connect { cattr: CATTR_DISABLE_SQFLOW, ..Connect::new(0, 31, 0) };
    assert_eq!(bench.connect(queue, connect, &data).ok().cqe.sqhd, 0xffff);
}

#[test]
fn cm_requests_are_checked() {
    let good = CmRequest { qid: 0, hsqsize: 31, hrqsize: 32, ..Default::default() };
    assert_eq!(CmRequest::check(&good.emit()), Ok(good));
    assert_eq!(CmRequest::check(&good.emit()[..31]), Err(CmStatus::INVALID_LENGTH));
    assert_eq!(CmRequest::check(&CmRequest { recfmt: 1, ..good }.emit()), Err(CmStatus::INVALID_RECFMT));
    assert_eq!(CmRequest::check(&CmRequest { hsqsize: 0, ..good }.emit()), Err(CmStatus::INVALID_HSQSIZE));
    assert_eq!(CmRequest::check(&CmRequest { hrqsize: 0, ..good }.emit()), Err(CmStatus::INVALID_HRQSIZE));
    let mut bench = Bench::new();
    let far = CmRequest { qid: 65, ..good };
    assert_eq!(bench.target.open_queue(bench.now, origin(), &far), Err(CmStatus::INVALID_QID));
}

/// NV-02: whatever the in-capsule size, IOCCSZ tells it.
#[test]
fn ioccsz_is_the_capsule_size() {
    for in_capsule_data in [0, 16, 4096, 8192, 65536] {
        let limits = Limits { in_capsule_data, ..Limits::default() };
        let mut bench = Bench::with(limits, SubsystemConfig::new(nqn(NQN)).namespace(ram(64)));
        let (admin, _) = bench.admin(NQN, 0);
        let id =
            identify::IdentifyController::parse(&bench.identify(admin, 1, 0).ok().data).expect("4096 bytes");
        assert_eq!((id.ioccsz * 16, id.iorcsz, id.icdoff), (64 + in_capsule_data, 1, 0));
    }
}

/// NV-09: a discovery controller takes KATO and Keep Alive; KATO 0 is no timer.
#[test]
fn discovery_with_and_without_keep_alive() {
    let mut bench = Bench::new();
    let (persistent, _) = bench.admin(crate::DISCOVERY_NQN, 30_000);
    let (plain, _) = bench.admin(crate::DISCOVERY_NQN, 0);
    for _ in 0..10_000 {
        bench.now += Duration::from_secs(20);
        bench.done(persistent, Sqe::new(0x18, 0), &[]).ok();
        bench.target.handle_timeout(bench.now, persistent);
        bench.target.handle_timeout(bench.now, plain);
    }
    assert_eq!(bench.target.queue_deadline(plain), None);
    assert!(bench.closed().is_empty());
    bench.now += Duration::from_secs(31);
    bench.target.handle_timeout(bench.now, persistent);
    assert_eq!(bench.closed(), [persistent]);
}

#[test]
fn an_expired_keep_alive_ends_the_whole_association() {
    let mut bench = Bench::new();
    let (admin, cntlid) = bench.admin(NQN, 5000);
    let io = bench.io(cntlid, 1);
    bench.now += Duration::from_secs(4);
    // Traffic-based keep alive: I/O counts.
    bench.done(io, Sqe::new(IoOpcode::FLUSH.0, 1), &[]).ok();
    bench.now += Duration::from_secs(4);
    bench.target.handle_timeout(bench.now, admin);
    assert!(bench.closed().is_empty());
    bench.now += Duration::from_secs(2);
    assert!(bench.target.queue_deadline(admin).is_some_and(|at| at <= bench.now));
    bench.target.handle_timeout(bench.now, admin);
    assert_eq!(bench.closed(), [io, admin]);
    assert_eq!((bench.target.controller_count(), bench.target.queue_count()), (0, 0));
}

#[test]
fn a_connection_without_connect_is_closed() {
    let mut bench = Bench::new();
    let queue = bench.open(0, 31);
    bench.now += Duration::from_secs(31);
    bench.target.handle_timeout(bench.now, queue);
    assert_eq!(bench.closed(), [queue]);
}

/// NV-11: the log read in 1 KiB pieces is the log.
#[test]
fn the_discovery_log_comes_whole_in_pieces() {
    let mut bench = Bench::new();
    for i in 0..300 {
        let config = SubsystemConfig::new(nqn(&format!("nqn.2026-01.lab:many-{i:03}")));
        bench.target.add_subsystem(&config).expect("a subsystem");
    }
    let (queue, _) = bench.admin(crate::DISCOVERY_NQN, 0);
    let header = discovery::DiscoveryHeader::parse(&bench.log(queue, log::DISCOVERY, 0, 1024).ok().data)
        .expect("1 KiB");
    assert_eq!(header.numrec, 302, "301 subsystems and the discovery subsystem itself");
    let mut page = Vec::new();
    for piece in 0..=header.numrec {
        page.extend(bench.log(queue, log::DISCOVERY, piece * 1024, 1024).ok().data);
    }
    let (after, entries) = discovery::parse_log(&page).expect("a log");
    assert_eq!(after.genctr, header.genctr);
    let names: std::collections::BTreeSet<_> =
        entries.iter().map(|entry| entry.subsystem().to_owned()).collect();
    assert_eq!(names.len(), 302);
    for entry in &entries {
        assert_eq!((entry.trtype, entry.adrfam, entry.cntlid), (1, 1, 0xffff));
        assert_eq!((entry.address(), entry.port()), (Some("192.168.77.11".parse().expect("ip")), Some(4420)));
    }
    let past = bench.log(queue, log::DISCOVERY, (header.numrec + 2) * 1024, 1024);
    assert_eq!(past.status(), Status::INVALID_FIELD.dnr());
}

/// NV-13: a hidden subsystem is neither in the log nor connectable; NV-14: taking a host off ends its associations.
#[test]
fn hosts_see_and_use_only_what_they_may() {
    let config =
        SubsystemConfig { hosts: Some(vec![nqn(HOST)]), ..SubsystemConfig::new(nqn(NQN)).namespace(ram(64)) };
    let mut bench = Bench::with(Limits::default(), config);
    bench.host = OTHER;
    let (disc, _) = bench.admin(crate::DISCOVERY_NQN, 0);
    let page = bench.log(disc, log::DISCOVERY, 0, 1024).ok().data;
    assert_eq!(discovery::DiscoveryHeader::parse(&page).expect("1 KiB").numrec, 1);
    let queue = bench.open(0, 31);
    let data = bench.connect_data(NQN, CNTLID_DYNAMIC);
    let refused = bench.connect(queue, Connect::new(0, 31, 0), &data);
    assert_eq!(refused.status(), Status::CONNECT_INVALID_HOST.dnr());

    bench.target.allow_host(&nqn(NQN), &nqn(OTHER)).expect("exists");
    let (other, _) = bench.admin(NQN, 0);
    bench.host = HOST;
    let (mine, cntlid) = bench.admin(NQN, 0);
    let io = bench.io(cntlid, 1);
    bench.target.remove_host(&nqn(NQN), &nqn(HOST), false).expect("exists");
    assert_eq!(bench.closed(), [io, mine]);
    bench.done(other, Sqe::new(0x18, 0), &[]).ok();
    let queue = bench.open(0, 31);
    let data = bench.connect_data(NQN, CNTLID_DYNAMIC);
    assert_eq!(
        bench.connect(queue, Connect::new(0, 31, 0), &data).status(),
        Status::CONNECT_INVALID_HOST.dnr()
    );
    // The option to keep them.
    bench.target.remove_host(&nqn(NQN), &nqn(OTHER), true).expect("exists");
    assert!(bench.closed().is_empty());
}

/// NV-16: the same queue identifier again, before and after the old queue is gone.
#[test]
fn reconnecting_a_queue_identifier() {
    let mut bench = Bench::new();
    let (admin, cntlid) = bench.admin(NQN, 0);
    let old = bench.io(cntlid, 1);
    let new = bench.open(1, 15);
    let data = bench.connect_data(NQN, cntlid);
    let early = bench.connect(new, Connect::new(1, 15, 0), &data).status();
    assert!(early == Status::COMMAND_SEQUENCE_ERROR && !early.is_dnr());
    bench.target.close_queue(old);
    bench.connect(new, Connect::new(1, 15, 0), &data).ok();
    bench.done(new, Sqe::new(IoOpcode::FLUSH.0, 1), &[]).ok();
    // The whole association again, at once.
    bench.target.close_queue(admin);
    assert_eq!(bench.closed(), [new]);
    let (_, again) = bench.admin(NQN, 0);
    assert_ne!(again, cntlid, "a controller identifier is not reused at once");
    bench.io(again, 1);
}

/// NV-17, the core's part: what completes after its queue is gone is dropped.
#[test]
fn completions_after_the_queue_is_gone_are_dropped() {
    let (mut bench, admin, io) = Bench::ready();
    let capsule = SharedBuffer::new(Vec::new());
    let sqe = Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::READ, 1, 0, 1) };
    let Step::Run(job) = bench.target.begin(bench.now, io, &sqe, &capsule.io()) else {
        panic!("a read runs")
    };
    bench.target.close_queue(admin);
    let buf = SharedBuffer::new(vec![0; 512]);
    let Ran::Done(outcome) = bench.target.run(bench.now, io, &job, &buf.io()) else { panic!("RAM") };
    assert!(bench.target.respond(io, job.cid, outcome).is_none());
    assert_eq!(bench.closed(), [io]);
    assert!(bench.send(io, sqe, &[]).is_none());
}

/// NV-20: dword 0 bit 0 says whether the command was aborted.
#[test]
fn abort_tells_the_truth() {
    let (mut bench, admin, _) = Bench::ready();
    let aer = Sqe::new(0x0c, 0);
    assert!(bench.send(admin, aer, &[]).is_none());
    let held = bench.sent;
    let abort = |sqid: u32, cid: u16| Sqe { cdw10: sqid | u32::from(cid) << 16, ..Sqe::new(0x08, 0) };
    assert_eq!(bench.done(admin, abort(1, held), &[]).ok().cqe.dword0(), 1);
    assert_eq!(bench.done(admin, abort(0, 999), &[]).ok().cqe.dword0(), 1);
    assert!(bench.events().is_empty());
    assert_eq!(bench.done(admin, abort(0, held), &[]).ok().cqe.dword0(), 0);
    let events = bench.events();
    let [TargetEvent::Respond { cqe, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!((cqe.cid, cqe.status().code()), (held, Status::ABORT_REQUESTED));
    assert_eq!(bench.done(admin, abort(0, held), &[]).ok().cqe.dword0(), 1);
}

/// NV-21: no fused operation is advertised, and neither half of one is carried out.
#[test]
fn fused_commands_are_not_advertised_and_not_done() {
    let (mut bench, admin, io) = Bench::ready();
    let id = identify::IdentifyController::parse(&bench.identify(admin, 1, 0).ok().data).expect("4096 bytes");
    assert_eq!(id.fuses, 0);
    bench.done(io, Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::WRITE, 1, 0, 1) }, &[5; 512]).ok();
    for (opcode, fuse) in [(IoOpcode::COMPARE, 1), (IoOpcode::WRITE, 2)] {
        let sqe = Sqe { sgl: keyed(512), flags: 0x40 | fuse, ..Sqe::rw(opcode, 1, 0, 1) };
        assert_eq!(bench.done(io, sqe, &[6; 512]).status(), Status::INVALID_FIELD.dnr());
    }
    let read = bench.done(io, Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::READ, 1, 0, 1) }, &[]).ok();
    assert_eq!(read.data, [5; 512]);
}

#[test]
fn asynchronous_events() {
    let (mut bench, admin, io) = Bench::ready();
    let on =
        Sqe { cdw10: f::ASYNC_EVENT_CONFIG.into(), cdw11: f::AEC_NAMESPACE_ATTRIBUTE, ..Sqe::new(0x09, 0) };
    bench.done(admin, on, &[]).ok();
    for _ in 0..4 {
        assert!(bench.send(admin, Sqe::new(0x0c, 0), &[]).is_none());
    }
    let fifth = bench.done(admin, Sqe::new(0x0c, 0), &[]);
    assert_eq!(fifth.status(), Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr());
    let nsid = bench.target.add_namespace(&nqn(NQN), &ram(64)).expect("room");
    let events = bench.events();
    let [TargetEvent::Respond { cqe, .. }] = events[..] else { panic!("{events:?}") };
    // Notice (2), namespace attribute changed (0), log page 4.
    assert_eq!(cqe.dword0(), 0x0004_0002);
    // Masked until the log is read.
    let nsid2 = bench.target.add_namespace(&nqn(NQN), &ram(64)).expect("room");
    assert!(bench.events().is_empty());
    let page = bench.log(admin, log::CHANGED_NAMESPACES, 0, 4096).ok().data;
    assert_eq!((u32::get(&page), u32::get(&page[4..]), u32::get(&page[8..])), (nsid, nsid2, 0));
    assert_eq!(bench.events().len(), 1);
    bench.done(io, Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::READ, nsid, 0, 1) }, &[]).ok();
    bench.target.remove_namespace(&nqn(NQN), nsid).expect("exists");
    let gone = bench.done(io, Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::READ, nsid, 0, 1) }, &[]);
    assert_eq!(gone.status(), Status::INVALID_NAMESPACE.dnr());
}

#[test]
fn discovery_changes_are_told() {
    let mut bench = Bench::new();
    let (disc, _) = bench.admin(crate::DISCOVERY_NQN, 0);
    let on = Sqe { cdw10: f::ASYNC_EVENT_CONFIG.into(), cdw11: f::AEC_DISCOVERY_LOG, ..Sqe::new(0x09, 0) };
    bench.done(disc, on, &[]).ok();
    assert!(bench.send(disc, Sqe::new(0x0c, 0), &[]).is_none());
    bench.target.add_subsystem(&SubsystemConfig::new(nqn("nqn.2026-01.lab:new"))).expect("new");
    let events = bench.events();
    let [TargetEvent::Respond { cqe, .. }] = events[..] else { panic!("{events:?}") };
    // Notice (2), discovery log page change (F0h), log page 70h.
    assert_eq!(cqe.dword0(), 0x0070_f002);
}

#[test]
fn io_errors_have_their_statuses() {
    let (mut bench, _, io) = Bench::ready();
    let read = |slba, blocks, len| Sqe { sgl: keyed(len), ..Sqe::rw(IoOpcode::READ, 1, slba, blocks) };
    let cases = [
        (read(65536, 1, 512), Status::LBA_OUT_OF_RANGE),
        (read(65535, 2, 1024), Status::LBA_OUT_OF_RANGE),
        (read(u64::MAX, 1, 512), Status::LBA_OUT_OF_RANGE),
        (read(0, 8, 4095), Status::DATA_SGL_LENGTH_INVALID),
        (read(0, 8, 8192), Status::DATA_SGL_LENGTH_INVALID),
        (read(0, 4096, 2 << 20), Status::INVALID_FIELD),
        (Sqe { nsid: 2, ..read(0, 1, 512) }, Status::INVALID_NAMESPACE),
        (Sqe { nsid: 0, ..read(0, 1, 512) }, Status::INVALID_NAMESPACE),
        (Sqe { nsid: NSID_ALL, ..read(0, 1, 512) }, Status::INVALID_NAMESPACE),
        (Sqe { flags: 0, ..read(0, 1, 512) }, Status::INVALID_FIELD),
        (Sqe { flags: 0x80, ..read(0, 1, 512) }, Status::INVALID_FIELD),
        (Sqe { cdw12: 1 << 29, ..read(0, 1, 512) }, Status::INVALID_FIELD),
        (Sqe { sgl: Sgl([0; 16]), ..read(0, 1, 512) }, Status::SGL_DESCRIPTOR_TYPE_INVALID),
        (
            Sqe { sgl: Sgl::in_capsule(1, 512), ..Sqe::rw(IoOpcode::WRITE, 1, 0, 1) },
            Status::SGL_OFFSET_INVALID,
        ),
        (Sqe::new(0x04, 1), Status::INVALID_OPCODE),
        (Sqe::new(0xff, 1), Status::INVALID_OPCODE),
        (PropertyGet::new(VS, false).to_sqe(), Status::INVALID_OPCODE),
        (Connect::new(1, 15, 0).to_sqe(), Status::COMMAND_SEQUENCE_ERROR),
        (Sqe::rw(IoOpcode::WRITE_ZEROES, 1, 65536, 1), Status::LBA_OUT_OF_RANGE),
    ];
    for (sqe, status) in cases {
        bench.extra = vec![0; 512];
        assert_eq!(bench.done(io, sqe, &[0; 8192]).status(), status.dnr(), "{sqe:?}");
    }
}

#[test]
fn compare_and_deallocate() {
    let (mut bench, _, io) = Bench::ready();
    bench.done(io, Sqe { sgl: keyed(1024), ..Sqe::rw(IoOpcode::WRITE, 1, 4, 2) }, &[3; 1024]).ok();
    let compare = Sqe { sgl: keyed(1024), ..Sqe::rw(IoOpcode::COMPARE, 1, 4, 2) };
    bench.done(io, compare, &[3; 1024]).ok();
    let mut differs = [3; 1024];
    differs[1023] = 4;
    assert_eq!(bench.done(io, compare, &differs).status(), Status::COMPARE_FAILURE.dnr());
    let range = |slba, blocks| DsmRange { slba, blocks, attributes: 0 }.emit();
    let dsm = |ranges: u32| Sqe {
        cdw10: ranges - 1,
        cdw11: DSM_DEALLOCATE,
        sgl: keyed(ranges * 16),
        ..Sqe::new(IoOpcode::DATASET_MANAGEMENT.0, 1)
    };
    let outside = [range(4, 1), range(65536, 1)].concat();
    assert_eq!(bench.done(io, dsm(2), &outside).status(), Status::LBA_OUT_OF_RANGE.dnr());
    bench.done(io, compare, &[3; 1024]).ok();
    // As Linux sends it: one range in a page, all of which is transferred.
    let mut page = range(4, 1).to_vec();
    page.resize(4096, 0xff);
    bench.done(io, Sqe { sgl: keyed(4096), ..dsm(1) }, &page).ok();
    let too_long = Sqe { sgl: keyed(4112), ..dsm(1) };
    assert_eq!(bench.done(io, too_long, &[0; 4112]).status(), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let mut half = [3; 1024];
    half[..512].fill(0);
    bench.done(io, compare, &half).ok();
}

#[test]
fn admin_commands_need_an_enabled_controller_and_known_values() {
    let mut bench = Bench::new();
    let queue = bench.open(0, 31);
    let early = bench.done(queue, PropertyGet::new(CAP, true).to_sqe(), &[]);
    assert_eq!(early.status(), Status::COMMAND_SEQUENCE_ERROR.dnr());
    let data = bench.connect_data(NQN, CNTLID_DYNAMIC);
    let cntlid = bench.connect(queue, Connect::new(0, 31, 0), &data).ok().cqe.dword0() as u16;
    assert_eq!(bench.identify(queue, 1, 0).status(), Status::COMMAND_SEQUENCE_ERROR.dnr());
    let io = bench.open(1, 15);
    let io_data = bench.connect_data(NQN, cntlid);
    let io_early = bench.connect(io, Connect::new(1, 15, 0), &io_data);
    assert_eq!(io_early.status(), Status::COMMAND_SEQUENCE_ERROR.dnr());
    for wrong in [
        PropertySet { offset: CSTS, ..PropertySet::new(CC, 1) },
        PropertySet { attrib: 1, ..PropertySet::new(CC, 1) },
        PropertySet::new(CC, CC_EN | 5 << 16),
        PropertySet::new(CC, CC_DEFAULT | CC_EN | 1 << 7),
    ] {
        assert_eq!(bench.done(queue, wrong.to_sqe(), &[]).status(), Status::INVALID_FIELD.dnr());
    }
    for wrong in [PropertyGet::new(CAP, false), PropertyGet::new(CC, true), PropertyGet::new(0x1000, false)] {
        assert_eq!(bench.done(queue, wrong.to_sqe(), &[]).status(), Status::INVALID_FIELD.dnr());
    }
    bench.done(queue, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
    let log = |lid, len: u64, offset| Sqe {
        sgl: keyed(len as u32),
        ..LogRequest { lid, lsp: 0, retain: false, len, offset }.to_sqe(0)
    };
    let cases = [
        (Sqe::new(0x05, 0), Status::INVALID_OPCODE),
        (Sqe::new(0x80, 0), Status::INVALID_OPCODE),
        (log(log::ANA, 16, 0), Status::INVALID_LOG_PAGE),
        (log(log::DISCOVERY, 1024, 0), Status::INVALID_LOG_PAGE),
        (log(log::SMART, 512, 2), Status::INVALID_FIELD),
        (log(log::SMART, 512, 516), Status::INVALID_FIELD),
        (log(log::SMART, 2 << 20, 0), Status::INVALID_FIELD),
        (Sqe { sgl: keyed(4096), cdw10: 0x7f, ..Sqe::new(0x06, 1) }, Status::INVALID_FIELD),
        (Sqe { sgl: keyed(4092), cdw10: 1, ..Sqe::new(0x06, 0) }, Status::DATA_SGL_LENGTH_INVALID),
        (Sqe { sgl: keyed(4096), ..Sqe::new(0x06, 0) }, Status::INVALID_NAMESPACE),
        (Sqe { sgl: keyed(4096), cdw10: 3, ..Sqe::new(0x06, 9) }, Status::INVALID_NAMESPACE),
        (Sqe { cdw10: f::HOST_IDENTIFIER.into(), ..Sqe::new(0x09, 0) }, Status::COMMAND_SEQUENCE_ERROR),
        (Sqe { cdw10: f::HOST_IDENTIFIER.into(), ..Sqe::new(0x0a, 0) }, Status::INVALID_FIELD),
        (Sqe { cdw10: 0x42, ..Sqe::new(0x09, 0) }, Status::INVALID_FIELD),
        (Sqe { cdw10: 0x8000_000b, ..Sqe::new(0x09, 0) }, Status::FEATURE_NOT_SAVEABLE),
        (Sqe { cdw10: 6, ..Sqe::new(0x0a, 0) }, Status::INVALID_FIELD),
    ];
    for (sqe, status) in cases {
        assert_eq!(bench.done(queue, sqe, &[]).status(), status.dnr(), "{sqe:?}");
    }
    let host_id = Sqe { sgl: keyed(16), cdw10: f::HOST_IDENTIFIER.into(), cdw11: 1, ..Sqe::new(0x0a, 0) };
    assert_eq!(bench.done(queue, host_id, &[]).ok().data, [9; 16]);
    // The error log has the newest first, and completions said that there was more to know.
    let page = bench.log(queue, log::ERROR_INFORMATION, 0, 64).ok().data;
    let entry = log::ErrorEntry::parse(&page).expect("64 bytes");
    assert_eq!(Status(entry.status >> 1).code(), Status::INVALID_FIELD);
}

#[test]
fn shutdown_and_reset() {
    let (mut bench, admin, _) = Bench::ready();
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT | CC_EN | CC_SHN_NORMAL).to_sqe(), &[]).ok();
    let csts = bench.done(admin, PropertyGet::new(CSTS, false).to_sqe(), &[]).ok().cqe.dword0();
    assert_eq!(csts & CSTS_SHST, CSTS_SHST_COMPLETE);
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT).to_sqe(), &[]).ok();
    let csts = bench.done(admin, PropertyGet::new(CSTS, false).to_sqe(), &[]).ok().cqe.dword0();
    assert_eq!(csts & CSTS_RDY, 0);
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
    let csts = bench.done(admin, PropertyGet::new(CSTS, false).to_sqe(), &[]).ok().cqe.dword0();
    assert_eq!(csts, CSTS_RDY);
    bench.target.shutdown();
    assert_eq!(bench.closed().len(), 2);
}

#[test]
fn namespace_identity_is_stable() {
    let ids = |subsystem: &str| {
        let config = SubsystemConfig::new(nqn(subsystem)).namespace(ram(64)).namespace(ram(64));
        let mut bench = Bench::with(Limits::default(), config);
        let queue = bench.open(0, 31);
        let data = bench.connect_data(subsystem, CNTLID_DYNAMIC);
        bench.connect(queue, Connect::new(0, 31, 0), &data).ok();
        bench.done(queue, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
        let page = |bench: &mut Bench, nsid| bench.identify(queue, 3, nsid).ok().data;
        let (one, two) = (page(&mut bench, 1), page(&mut bench, 2));
        let ns =
            identify::IdentifyNamespace::parse(&bench.identify(queue, 0, 1).ok().data).expect("4096 bytes");
        let named = identify::parse_descriptors(&one);
        assert_eq!(named.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(named[0].1, ns.nguid);
        assert_eq!((ns.nsze, ns.block_size(), ns.nmic, ns.metadata_size()), (64, Some(512), 1, 0));
        (one, two)
    };
    let (one, two) = ids(NQN);
    assert_ne!(one, two);
    assert_eq!(ids(NQN), (one.clone(), two));
    assert_ne!(ids("nqn.2026-01.lab:s2").0, one);
}

#[test]
fn static_controllers() {
    let controllers = ControllerModel::Static(vec![5, 6]);
    let config = SubsystemConfig { controllers, ..SubsystemConfig::new(nqn(NQN)).namespace(ram(64)) };
    let mut bench = Bench::with(Limits::default(), config);
    let ask = |bench: &mut Bench, cntlid| {
        let queue = bench.open(0, 31);
        let data = bench.connect_data(NQN, cntlid);
        (queue, bench.connect(queue, Connect::new(0, 31, 0), &data))
    };
    assert_eq!(ask(&mut bench, 6).1.ok().cqe.dword0(), 6);
    assert_eq!(parameter(&ask(&mut bench, 7).1), InvalidParameter::data(connect_at::DATA_CNTLID));
    assert_eq!(ask(&mut bench, 6).1.status(), Status::CONNECT_CONTROLLER_BUSY);
    let (queue, any) = ask(&mut bench, CNTLID_STATIC_ANY);
    assert_eq!(any.ok().cqe.dword0(), 5);
    assert_eq!(ask(&mut bench, CNTLID_STATIC_ANY).1.status(), Status::CONNECT_CONTROLLER_BUSY);
    bench.target.close_queue(queue);
    assert_eq!(ask(&mut bench, CNTLID_STATIC_ANY).1.ok().cqe.dword0(), 5);
}

#[test]
fn two_hosts_share_a_namespace() {
    let (mut bench, _, first) = Bench::ready();
    bench.host = OTHER;
    let (_, cntlid) = bench.admin(NQN, 0);
    let second = bench.io(cntlid, 1);
    bench.done(first, Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::WRITE, 1, 3, 1) }, &[8; 512]).ok();
    let read = bench.done(second, Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::READ, 1, 3, 1) }, &[]).ok();
    assert_eq!(read.data, [8; 512]);
}

#[test]
fn limits_bound_connections_and_controllers() {
    let limits = Limits { max_controllers: 1, max_connections: 3, ..Limits::default() };
    let mut bench = Bench::with(limits, SubsystemConfig::new(nqn(NQN)).namespace(ram(64)));
    bench.admin(NQN, 0);
    let queue = bench.open(0, 31);
    let data = bench.connect_data(NQN, CNTLID_DYNAMIC);
    let busy = bench.connect(queue, Connect::new(0, 31, 0), &data).status();
    assert_eq!(busy, Status::CONNECT_CONTROLLER_BUSY);
    bench.open(0, 31);
    bench.events();
    // Full: the oldest of those without Connect goes for a newer one, and only such.
    bench.open(0, 31);
    let events = bench.events();
    let displaced = TargetEvent::Close { queue, reason: CloseReason::Displaced };
    assert_eq!(format!("{events:?}"), format!("{:?}", [displaced]));
    assert_eq!(bench.target.queue_count(), 3);
    let limits = Limits { max_connections: 2, ..Limits::default() };
    let mut bench = Bench::with(limits, SubsystemConfig::new(nqn(NQN)).namespace(ram(64)));
    let (_, cntlid) = bench.admin(NQN, 0);
    bench.io(cntlid, 1);
    let request = CmRequest { hsqsize: 31, hrqsize: 32, ..Default::default() };
    assert_eq!(bench.target.open_queue(bench.now, origin(), &request), Err(CmStatus::NO_RESOURCES));
}
