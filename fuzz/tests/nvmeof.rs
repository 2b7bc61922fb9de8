//! Targets for everything that `everywire-nvmeof` takes from a peer: its parsers, and the target core's whole command
//! input, where any stream of capsules keeps the target within its limits and its queues in step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_block::{RamBackend, SharedBuffer};
use everywire_fuzz::target;
use everywire_nvmeof::pdu::cm::{CmAccept, CmReject, CmRequest};
use everywire_nvmeof::pdu::command::{Cqe, DsmRange, IoOpcode, Sqe};
use everywire_nvmeof::pdu::discovery::{self, DiscoveryEntry, DiscoveryHeader};
use everywire_nvmeof::pdu::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, PropertyGet, PropertySet};
use everywire_nvmeof::pdu::identify::{
    IdentifyController, IdentifyNamespace, emit_descriptors, parse_descriptors,
};
use everywire_nvmeof::pdu::log::{self, LogRequest};
use everywire_nvmeof::pdu::properties::{CC, CC_DEFAULT, CC_EN};
use everywire_nvmeof::pdu::sgl::{DataPointer, Keyed, Sgl};
use everywire_nvmeof::target::{
    Direction, Limits, Listener, NamespaceConfig, QueueId, QueueOrigin, Ran, Step, SubsystemConfig, Target,
    TargetEvent,
};
use everywire_nvmeof::{Nqn, Status};

const NQN: &str = "nqn.2026-01.lab:s1";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:9b04fe4d-5424-49c3-8bce-82dcf6642f73";

/// What parses re-emits; bytes that no field names come back as zeroes, so the second round is exact.
macro_rules! settles {
    ($bytes:expr, $ty:ty) => {
        if let Ok(value) = <$ty>::parse($bytes) {
            let once = value.emit();
            assert_eq!(<$ty>::parse(&once).expect("what was emitted"), value);
            assert_eq!(<$ty>::parse(&once).expect("what was emitted").emit(), once);
        }
    };
}

fn zeroes(len: usize) -> Vec<Vec<u8>> {
    vec![vec![0; len]]
}

fn connect_data() -> ConnectData {
    let field = |text: &str| discovery::field(text);
    ConnectData { hostid: [9; 16], cntlid: CNTLID_DYNAMIC, subnqn: field(NQN), hostnqn: field(HOST) }
}

fn keyed(len: u32) -> Sgl {
    Sgl::keyed(Keyed { addr: 0x1000, len, key: 7, invalidate: true })
}

target!(nvme_sqe, zeroes(64), |bytes| if let Ok(sqe) = Sqe::parse(bytes) {
    assert_eq!(sqe.emit(), bytes[..64]);
    settles!(bytes, Connect);
    settles!(bytes, PropertyGet);
    settles!(bytes, PropertySet);
    let request = LogRequest::from_sqe(&sqe);
    assert!(request.len >= 4 && request.len.is_multiple_of(4));
});
target!(nvme_cqe, zeroes(16), |bytes| if let Ok(cqe) = Cqe::parse(bytes) {
    assert_eq!(cqe.emit(), bytes[..16]);
    assert!(!cqe.status().to_string().is_empty());
});
target!(nvme_connect_data, [connect_data().emit().to_vec()], |bytes| {
    settles!(bytes, ConnectData);
    if let Ok(data) = ConnectData::parse(bytes)
        && let Ok(nqn) = Nqn::from_field(&data.subnqn)
    {
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
    }
});
target!(nvme_cm, [CmRequest { hrqsize: 32, hsqsize: 31, ..Default::default() }.emit().to_vec()], |bytes| {
    if let Ok(request) = CmRequest::parse(bytes) {
        assert_eq!(request.emit(), bytes[..32]);
    }
    if let Ok(accept) = CmAccept::parse(bytes) {
        assert_eq!(accept.emit(), bytes[..32]);
    }
    let _ = CmReject::status(bytes);
    let _ = CmRequest::check(bytes);
});
target!(nvme_identify, zeroes(4096), |bytes| {
    settles!(bytes, IdentifyController);
    settles!(bytes, IdentifyNamespace);
    settles!(bytes, log::Smart);
    settles!(bytes, log::CommandEffects);
    settles!(bytes, log::ErrorEntry);
    if let Ok(namespace) = IdentifyNamespace::parse(bytes) {
        assert!(namespace.block_size().is_none_or(u32::is_power_of_two));
    }
});
target!(nvme_descriptors, [emit_descriptors(&[(2, &[1; 16]), (3, &[2; 16]), (4, &[0])])], |bytes| {
    let found = parse_descriptors(bytes);
    let total: usize = found.iter().map(|(_, value)| 4 + value.len()).sum();
    assert!(total <= bytes.len());
});

fn logs() -> Vec<Vec<u8>> {
    let mut page = DiscoveryHeader { genctr: 3, numrec: 2, recfmt: 0 }.emit().to_vec();
    for _ in 0..2 {
        let entry = DiscoveryEntry {
            traddr: discovery::field("192.168.77.11"),
            trsvcid: discovery::field("4420"),
            subnqn: discovery::field(NQN),
            ..Default::default()
        };
        page.extend_from_slice(&entry.emit());
    }
    vec![page]
}

target!(nvme_discovery_log, logs(), |bytes| if let Ok((header, entries)) = discovery::parse_log(bytes) {
    assert_eq!(header.numrec, entries.len() as u64);
    for entry in entries {
        let _ = (entry.address(), entry.port(), entry.subsystem());
    }
});

target!(nvme_sgl, [[Sgl::last_segment(0, 32).0, keyed(512).0, keyed(512).0].concat()], |bytes| {
    if let Some((descriptor, extra)) = bytes.split_first_chunk::<16>() {
        let load = |at: usize, into: &mut [u8]| into.copy_from_slice(&extra[at..at + into.len()]);
        match DataPointer::resolve(&Sgl(*descriptor), extra.len(), 16, load) {
            Ok(DataPointer::InCapsule { offset, len }) => assert!(offset + len as usize <= extra.len()),
            Ok(pointer) => assert!(pointer.blocks().len() <= 16),
            Err(status) => assert!(status.is_dnr()),
        }
    }
});

/// One capsule of the stream: which queue, milliseconds before it, in-capsule bytes in units of 16, the entry.
const RECORD: usize = 3 + Sqe::LEN;
/// Queue identifiers that the stream can speak on.
const QUEUES: [u16; 4] = [0, 1, 2, 0];

struct Bench {
    target: Target,
    now: Instant,
    queues: [Option<QueueId>; QUEUES.len()],
    limits: Limits,
}

impl Bench {
    fn new() -> Self {
        let limits = Limits { max_connections: 8, max_controllers: 4, ..Limits::default() };
        let mut target = Target::new(limits.clone());
        let backend = Arc::new(RamBackend::new(512, 4096).expect("fits"));
        let nqn = NQN.parse().expect("an NQN");
        target
            .add_subsystem(&SubsystemConfig::new(nqn).namespace(NamespaceConfig::new(backend)))
            .expect("new");
        let address = "192.168.77.11:4420".parse().expect("an address");
        target.add_listener(Listener { port_id: 1, address, provider: 4 }).expect("new");
        Self { target, now: Instant::now(), queues: [None; QUEUES.len()], limits }
    }

    fn queue(&mut self, at: usize) -> Option<QueueId> {
        if self.queues[at].is_none() {
            let request = CmRequest { qid: QUEUES[at], hsqsize: 31, hrqsize: 32, ..Default::default() };
            let address = |text: &str| text.parse().expect("an address");
            let origin = QueueOrigin {
                port_id: 1,
                peer: address("192.168.77.12:1024"),
                local: address("192.168.77.11:4420"),
                interface: None,
            };
            self.queues[at] = self.target.open_queue(self.now, origin, &request).ok();
        }
        self.queues[at]
    }

    fn events(&mut self) {
        while let Some(event) = self.target.poll_event() {
            if let TargetEvent::Close { queue, .. } = event {
                for known in self.queues.iter_mut().filter(|known| **known == Some(queue)) {
                    *known = None;
                }
            }
        }
    }

    fn capsule(&mut self, record: &[u8]) {
        let (at, wait, extra) =
            (usize::from(record[0]) % QUEUES.len(), record[1], usize::from(record[2]) * 16);
        self.now += Duration::from_millis(u64::from(wait));
        let Some(queue) = self.queue(at) else { return };
        if record[0] & 0x80 != 0 {
            self.target.close_queue(queue);
            self.queues[at] = None;
            self.events();
            return;
        }
        let sqe = Sqe::parse(&record[3..]).expect("64 bytes");
        let capsule = SharedBuffer::new(vec![record[0]; extra]);
        let outcome = match self.target.begin(self.now, queue, &sqe, &capsule.io()) {
            Step::Held => return self.events(),
            Step::Respond(outcome) => outcome,
            Step::Run(job) => {
                assert!(job.len <= self.limits.max_transfer());
                assert!(job.direction == Direction::None || job.data.len() == u64::from(job.len));
                // Connect data that is good but for the controller identifier, so that the stream gets far.
                let mut bytes = vec![record[1]; job.len as usize];
                if job.len == 1024 {
                    let cntlid = if QUEUES[at] == 0 { CNTLID_DYNAMIC } else { 1 };
                    bytes = ConnectData { cntlid, ..connect_data() }.emit().to_vec();
                }
                let buf = SharedBuffer::new(bytes);
                match self.target.run(self.now, queue, &job, &buf.io()) {
                    Ran::Done(outcome) => outcome,
                    Ran::Pending(_) => panic!("RAM completes at once"),
                }
            }
        };
        if let Some(cqe) = self.target.respond(queue, sqe.cid, outcome) {
            assert_eq!(cqe.cid, sqe.cid);
            assert!(cqe.sqhd < 1024 || cqe.sqhd == 0xffff);
            assert_eq!(outcome.is_ok(), cqe.status() == Status::SUCCESS);
        }
        self.target.handle_timeout(self.now, queue);
        self.events();
        assert!(self.target.queue_count() <= self.limits.max_connections);
        assert!(self.target.controller_count() <= self.limits.max_controllers);
    }
}

fn record(queue: u8, extra: u8, sqe: Sqe) -> Vec<u8> {
    let mut bytes = vec![queue, 1, extra];
    bytes.extend_from_slice(&sqe.emit());
    bytes
}

/// A host that comes up, uses everything once, and goes.
fn streams() -> Vec<Vec<u8>> {
    let connect = |queue: u8| {
        let sqe = Connect { sgl: keyed(1024), ..Connect::new(QUEUES[usize::from(queue)], 31, 5000) };
        record(queue, 0, sqe.to_sqe())
    };
    let admin = |sqe: Sqe| record(0, 0, sqe);
    let io = |sqe: Sqe| record(1, 0, sqe);
    let start =
        [connect(0), admin(PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe()), connect(1), connect(2)]
            .concat();
    let sized = |opcode, len: u32| Sqe { sgl: keyed(len), ..Sqe::rw(opcode, 1, 8, len / 512) };
    let log = |lid, len: u32| Sqe {
        sgl: keyed(len),
        ..LogRequest { lid, lsp: 0, retain: false, len: len.into(), offset: 0 }.to_sqe(0)
    };
    let identify = |cns: u32, nsid| Sqe { cdw10: cns, sgl: keyed(4096), ..Sqe::new(0x06, nsid) };
    let range = DsmRange { slba: 1, blocks: 1, attributes: 0 };
    let segment = record(1, 2, Sqe { sgl: Sgl::last_segment(0, 32), ..Sqe::rw(IoOpcode::READ, 1, 0, 2) });
    let commands = [
        admin(identify(1, 0)),
        admin(identify(0, 1)),
        admin(identify(2, 0)),
        admin(identify(3, 1)),
        admin(log(log::SMART, 512)),
        admin(log(log::ERROR_INFORMATION, 64)),
        admin(Sqe { cdw10: 7, cdw11: 3 | 3 << 16, ..Sqe::new(0x09, 0) }),
        admin(Sqe { cdw10: 0x0b, cdw11: 1 << 8, ..Sqe::new(0x09, 0) }),
        admin(Sqe { cdw10: 0x81, cdw11: 1, sgl: keyed(16), ..Sqe::new(0x0a, 0) }),
        admin(Sqe::new(0x0c, 0)),
        admin(Sqe::new(0x08, 0)),
        admin(Sqe::new(0x18, 0)),
        admin(PropertyGet::new(0, true).to_sqe()),
        io(sized(IoOpcode::WRITE, 4096)),
        io(sized(IoOpcode::READ, 4096)),
        io(sized(IoOpcode::COMPARE, 512)),
        io(Sqe::rw(IoOpcode::WRITE_ZEROES, 1, 0, 8)),
        io(Sqe::new(IoOpcode::FLUSH.0, 1)),
        io(Sqe {
            cdw11: 4,
            sgl: keyed(range.emit().len() as u32),
            ..Sqe::new(IoOpcode::DATASET_MANAGEMENT.0, 1)
        }),
        record(1, 32, Sqe { sgl: Sgl::in_capsule(0, 512), ..Sqe::rw(IoOpcode::WRITE, 1, 0, 1) }),
        segment,
    ];
    let all = [start.clone(), commands.concat(), record(0x80, 0, Sqe::default())].concat();
    let mut seeds: Vec<Vec<u8>> =
        commands.iter().map(|command| [start.clone(), command.clone()].concat()).collect();
    seeds.push(all);
    seeds
}

target!(nvme_target_input, streams(), |bytes| {
    let mut bench = Bench::new();
    for record in bytes.chunks_exact(RECORD) {
        bench.capsule(record);
    }
});
