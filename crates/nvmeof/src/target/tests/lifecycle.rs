//! Deadlines, reset, shutdown, listeners and descriptor limits of the core. NVMe Base 2.0 §§3.6, 3.7, 3.9.

use super::*;

impl Bench {
    /// Queues whose deadline changed, and nothing else.
    fn deadlines(&mut self) -> Vec<QueueId> {
        let changed = |event| match event {
            TargetEvent::Deadline { queue } => queue,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| self.target.poll_event()).map(changed).collect()
    }

    fn open_at(&mut self, port_id: u16, qid: u16, hsqsize: u16) -> QueueId {
        let request = CmRequest { qid, hsqsize, hrqsize: hsqsize + 1, ..Default::default() };
        let origin = QueueOrigin { port_id, ..origin() };
        self.target.open_queue(self.now, origin, &request).expect("a queue")
    }
}

/// NV-09: each command that changes the keep alive timer says so, and the new deadline counts from that command.
#[test]
fn every_change_of_the_keep_alive_timer_is_told() {
    let mut bench = Bench::new();
    let queue = bench.open(0, 31);
    let opened = bench.now;
    assert_eq!(bench.target.queue_deadline(queue), Some(opened + Duration::from_secs(30)));
    bench.now += Duration::from_secs(1);
    let data = bench.connect_data(NQN, CNTLID_DYNAMIC);
    bench.connect(queue, Connect::new(0, 31, 5000), &data).ok();
    assert_eq!(bench.deadlines(), [queue]);
    bench.now += Duration::from_secs(1);
    bench.done(queue, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
    assert_eq!(bench.deadlines(), [queue]);
    assert_eq!(bench.target.queue_deadline(queue), Some(bench.now + Duration::from_secs(5)));
    // Rounded up to KAS, a second.
    for (kato, seconds) in [(2000, Some(2)), (1, Some(1)), (0, None), (120_000, Some(120))] {
        bench.now += Duration::from_millis(700);
        let set = Sqe { cdw10: f::KEEP_ALIVE_TIMER.into(), cdw11: kato, ..Sqe::new(0x09, 0) };
        bench.done(queue, set, &[]).ok();
        assert_eq!(bench.deadlines(), [queue]);
        let due = seconds.map(|seconds| bench.now + Duration::from_secs(seconds));
        assert_eq!(bench.target.queue_deadline(queue), due);
    }
}

/// NVMe Base 2.0 §3.7.2: a controller level reset deletes all I/O queues.
#[test]
fn a_reset_deletes_io_queues() {
    let mut bench = Bench::new();
    let (admin, cntlid) = bench.admin(NQN, 0);
    let (one, two) = (bench.io(cntlid, 1), bench.io(cntlid, 2));
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT).to_sqe(), &[]).ok();
    assert_eq!(bench.closed(), [one, two]);
    assert!(bench.send(one, Sqe::new(IoOpcode::FLUSH.0, 1), &[]).is_none(), "its connection is gone");
    let early = bench.open(1, 15);
    let data = bench.connect_data(NQN, cntlid);
    let refused = bench.connect(early, Connect::new(1, 15, 0), &data).status();
    assert_eq!(refused, Status::COMMAND_SEQUENCE_ERROR.dnr());
    bench.target.close_queue(early);
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
    let again = bench.io(cntlid, 1);
    bench.done(again, Sqe::new(IoOpcode::FLUSH.0, 1), &[]).ok();
    bench.target.close_queue(one);
    bench.done(again, Sqe::new(IoOpcode::FLUSH.0, 1), &[]).ok();
    // Set Features (Number of Queues) is allowed again only while there are none.
    bench.target.close_queue(again);
    let ask = Sqe { cdw10: f::NUMBER_OF_QUEUES.into(), cdw11: 1 | 1 << 16, ..Sqe::new(0x09, 0) };
    assert_eq!(bench.done(admin, ask, &[]).ok().cqe.dword0(), 1 | 1 << 16);
}

/// NVMe Base 2.0 §3.6.2: after CC.SHN no I/O command is carried out and no I/O queue connected, until a reset.
#[test]
fn no_io_after_a_shutdown() {
    let (mut bench, admin, io) = Bench::ready();
    let write = Sqe { sgl: keyed(512), ..Sqe::rw(IoOpcode::WRITE, 1, 0, 1) };
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT | CC_EN | CC_SHN_NORMAL).to_sqe(), &[]).ok();
    let sequence = Status::COMMAND_SEQUENCE_ERROR.dnr();
    assert_eq!(bench.done(io, write, &[1; 512]).status(), sequence);
    let queue = bench.open(2, 15);
    let data = bench.connect_data(NQN, 1);
    assert_eq!(bench.connect(queue, Connect::new(2, 15, 0), &data).status(), sequence);
    // Taking the notification back is no reset.
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
    assert_eq!(bench.done(io, write, &[1; 512]).status(), sequence);
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT).to_sqe(), &[]).ok();
    bench.done(admin, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
    let io = bench.io(1, 1);
    bench.done(io, write, &[1; 512]).ok();
}

/// NV-14: one host cannot be taken off where there is no list, and asking for it must not shut out the others.
#[test]
fn a_subsystem_open_to_any_host_stays_open() {
    let (mut bench, _, io) = Bench::ready();
    let refused = bench.target.remove_host(&nqn(NQN), &nqn(HOST), false).expect_err("no list");
    assert!(matches!(&refused, ConfigError::OpenToAnyHost(name) if *name == nqn(NQN)), "{refused}");
    assert!(bench.closed().is_empty());
    bench.done(io, Sqe::new(IoOpcode::FLUSH.0, 1), &[]).ok();
    bench.host = OTHER;
    bench.admin(NQN, 0);
}

/// NV-13: a subsystem on one of two listeners is neither shown nor reachable through the other.
#[test]
fn a_subsystem_on_one_listener() {
    let config =
        SubsystemConfig { ports: Some(vec![2]), ..SubsystemConfig::new(nqn(NQN)).namespace(ram(64)) };
    let mut bench = Bench::with(Limits::default(), config);
    let everywhere = "nqn.2026-01.lab:everywhere";
    bench.target.add_subsystem(&SubsystemConfig::new(nqn(everywhere))).expect("new");
    let address = "192.168.78.11:4421".parse().expect("an address");
    bench
        .target
        .add_listener(Listener { port_id: 2, address, provider: discovery::PRTYPE_ROCE_V2 })
        .expect("a listener");
    for (port_id, here) in [(1, false), (2, true)] {
        let queue = bench.open_at(port_id, 0, 31);
        let data = bench.connect_data(crate::DISCOVERY_NQN, CNTLID_DYNAMIC);
        bench.connect(queue, Connect::new(0, 31, 0), &data).ok();
        bench.done(queue, PropertySet::new(CC, CC_DEFAULT | CC_EN).to_sqe(), &[]).ok();
        let page = bench.log(queue, log::DISCOVERY, 0, 4096).ok().data;
        let (_, entries) = discovery::parse_log(&page).expect("a log");
        let shown: Vec<_> = entries
            .iter()
            .filter(|entry| entry.subsystem() == NQN)
            .map(|entry| (entry.portid, entry.port()))
            .collect();
        assert_eq!(shown, if here { vec![(2, Some(4421))] } else { vec![] }, "through listener {port_id}");
        assert!(entries.iter().any(|entry| entry.subsystem() == everywhere));
        let queue = bench.open_at(port_id, 0, 31);
        let data = bench.connect_data(NQN, CNTLID_DYNAMIC);
        let done = bench.connect(queue, Connect::new(0, 31, 0), &data);
        if here {
            done.ok();
        } else {
            assert_eq!(parameter(&done), InvalidParameter::data(connect_at::DATA_SUBNQN));
        }
    }
}

/// NV-05: MSDBD is what the capsule has room for, 16 at most, and never 0, which would mean "no limit". NVMe-oF 1.1 §4.1.
#[test]
fn msdbd_fits_the_capsule() {
    for (in_capsule_data, msdbd) in
        [(0u32, 1u8), (16, 1), (32, 2), (64, 4), (256, 16), (4096, 16), (65536, 16)]
    {
        let limits = Limits { in_capsule_data, ..Limits::default() };
        let mut bench = Bench::with(limits, SubsystemConfig::new(nqn(NQN)).namespace(ram(64)));
        let (admin, cntlid) = bench.admin(NQN, 0);
        let io = bench.io(cntlid, 1);
        let id =
            identify::IdentifyController::parse(&bench.identify(admin, 1, 0).ok().data).expect("4096 bytes");
        assert_eq!(id.msdbd, msdbd, "{in_capsule_data} bytes");
        for (count, status) in [(msdbd, 0), (msdbd + 1, 0x0e)] {
            if u32::from(count) * 16 > in_capsule_data.max(16) && status == 0 {
                continue;
            }
            let blocks = vec![Keyed { addr: 0x1000, len: 512, key: 7, invalidate: false }; count.into()];
            bench.extra = vec![0; usize::from(count) * 16];
            crate::pdu::sgl::emit_segment(&blocks, &mut bench.extra).expect("room");
            let sgl = Sgl::last_segment(0, u32::from(count) * 16);
            let read = Sqe { sgl, ..Sqe::rw(IoOpcode::READ, 1, 0, count.into()) };
            let done = bench.done(io, read, &[]).status();
            assert_eq!((done.sct(), done.sc()), (0, status), "{in_capsule_data} bytes, {count} descriptors");
        }
    }
}
