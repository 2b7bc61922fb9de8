//! Associations that end, and what is left of them: keep alive, reset, hosts that die, thousands of connections.

mod lab;

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use everywire_block::{Backend, Geometry, IoBuf, IoFuture, IoResult, RamBackend};
use everywire_fabric::network::{Change, Direction};
use everywire_nvmeof::Status;
use everywire_nvmeof::pdu::cm::CmAccept;
use everywire_nvmeof::pdu::features::KEEP_ALIVE_TIMER;
use everywire_nvmeof::pdu::properties::{CC_DEFAULT, CC_EN, CC_SHN_NORMAL};
use everywire_nvmeof::pdu::{AdminOpcode, IoOpcode, Sqe};
use everywire_nvmeof::rdma::{Controller, InitiatorOptions, discover};
use everywire_nvmeof::target::{Limits, NamespaceConfig, SubsystemConfig};
use everywire_sim::HostConfig;
use everywire_verbs::rt::Rt;
use everywire_verbs::{Access, ConnParam, ListenOptions, QpInit, QpType, RecvWr};
use lab::raw::Raw;
use lab::{LIMIT, Lab, address, identity, nqn, write_and_read};

/// NV-09, NVMe Base 2.0 §3.9: the timer has the timeout of the last Connect or Set Features, from that command on.
#[test]
fn a_new_keep_alive_timeout_counts_at_once() {
    for by_connect in [true, false] {
        let lab = Lab::new(1);
        let host = lab.host();
        let rt = lab.world.rt(lab.host);
        rt.spawn(async move {
            let (mut admin, _) = Raw::admin(&host, if by_connect { 2000 } else { 0 }).await;
            if !by_connect {
                let set = Sqe {
                    cdw10: KEEP_ALIVE_TIMER.into(),
                    cdw11: 2000,
                    ..Sqe::new(AdminOpcode::SET_FEATURES.0, 0)
                };
                admin.ok(set, &[]).await;
            }
            std::future::pending::<()>().await;
        });
        lab.world.run_for(Duration::from_secs(1));
        assert_eq!(lab.target().connections(), 1);
        lab.world.partition(lab.host, true);
        lab.world.run_for(Duration::from_millis(1500));
        assert_eq!(lab.target().connections(), 0, "by Connect: {by_connect}");
    }
}

/// And a longer one counts too: the old timer must not end a host that has said it will be quiet.
#[test]
fn a_longer_keep_alive_timeout_counts_at_once() {
    let lab = Lab::new(2);
    let host = lab.host();
    lab.world.rt(lab.host).spawn(async move {
        let (mut admin, _) = Raw::admin(&host, 2000).await;
        let set =
            Sqe { cdw10: KEEP_ALIVE_TIMER.into(), cdw11: 60_000, ..Sqe::new(AdminOpcode::SET_FEATURES.0, 0) };
        admin.ok(set, &[]).await;
        std::future::pending::<()>().await;
    });
    lab.world.run_for(Duration::from_secs(59));
    assert_eq!(lab.target().connections(), 1);
    lab.world.run_for(Duration::from_secs(2));
    assert_eq!(lab.target().connections(), 0);
}

/// NVMe Base 2.0 §3.7.2: a controller reset deletes the I/O queues; §3.6.2: after a shutdown there is no I/O.
#[test]
fn a_reset_closes_the_io_queues() {
    let lab = Lab::new(3);
    let target = lab.target();
    lab.run(move |host| async move {
        let (mut admin, cntlid) = Raw::admin(&host, 0).await;
        for round in 0..3 {
            let mut first = Raw::io(&host, cntlid, 1, 16, 16, 4096).await;
            let second = Raw::io(&host, cntlid, 2, 16, 16, 4096).await;
            let sgl = first.block(0, 512);
            first.ok(Sqe { sgl, ..Sqe::rw(IoOpcode::WRITE, 1, round, 1) }, &[]).await;
            admin.set_cc(CC_DEFAULT).await;
            host.rt.sleep(Duration::from_millis(100)).await;
            assert!(first.is_closed() && second.is_closed());
            assert_eq!(target.connections(), 1);
            admin.set_cc(CC_DEFAULT | CC_EN).await;
        }
        let mut queue = Raw::io(&host, cntlid, 1, 16, 16, 4096).await;
        admin.set_cc(CC_DEFAULT | CC_EN | CC_SHN_NORMAL).await;
        let sgl = queue.block(0, 512);
        let late = queue.command(Sqe { sgl, ..Sqe::rw(IoOpcode::WRITE, 1, 0, 1) }, &[]).await;
        assert_eq!(late.expect("an answer").status().code(), Status::COMMAND_SEQUENCE_ERROR);
    });
}

/// A host that asks for a connection and never completes it is kept no longer than one that sends no Connect, whatever
/// times it put into its request (a minute and a half here).
#[test]
fn an_accept_that_nobody_completes_is_given_up() {
    let limits = Limits { connect_timeout: Duration::from_secs(10), ..Limits::default() };
    let lab = Lab::with(4, limits);
    let target = lab.target();
    let before = lab.world.device(lab.target_host).usage();
    let host = lab.host();
    lab.world.rt(lab.host).spawn(async move { Raw::open(&host, 0, 32, 16, 4096).await.err().is_some() });
    assert!(lab.world.run_until(LIMIT, || target.half_open() == 1));
    let queues = || target.with(|target| target.queue_count());
    assert_eq!((queues(), target.connections()), (0, 0), "REP is on its way, RTU is not there");
    lab.world.partition(lab.host, true);
    lab.world.run_for(Duration::from_secs(9));
    assert_eq!(target.half_open(), 1);
    lab.world.run_for(Duration::from_secs(2));
    assert_eq!((target.half_open(), queues(), target.connections()), (0, 0, 0));
    assert_eq!(target.half_open_counters().expired, 1);
    assert_eq!(lab.world.device(lab.target_host).usage(), before);
}

/// Thousands of requests that nobody goes on with, from many addresses, take nothing from a host that means it: it connects
/// at once, what they hold is bounded, and it all comes back.
#[test]
fn half_open_connections_are_few_and_cost_nobody_else() {
    const HOSTS: u8 = 160;
    const EACH: u8 = 32;
    let limits = Limits { max_connections: 4, connect_timeout: Duration::from_secs(10), ..Limits::default() };
    let lab = Lab::with(8, limits);
    let target = lab.target();
    let usage = || lab.world.device(lab.target_host).usage();
    let (before, footprint) = (usage(), lab.world.device(lab.target_host).cm_footprint());
    for n in 1..=HOSTS {
        let id = lab.world.add_host(HostConfig::new(format!("10.0.1.{n}").parse().expect("ip")));
        // Requests arrive; what comes back does not.
        lab.world.schedule(lab.world.now(), id, Direction::Back, Change::Partition(true));
        let host = lab::Host { rt: lab.world.rt(id), device: lab.world.device(id) };
        for round in 0..EACH {
            let host = host.clone();
            host.rt.clone().spawn(async move {
                host.rt.sleep(Duration::from_millis(100) * u32::from(round)).await;
                Raw::open(&host, 0, 4, 16, 64).await.is_ok()
            });
        }
    }
    lab.world.run_for(Duration::from_secs(2));
    assert_eq!(target.half_open(), 256);
    let held = usage();
    assert!(held.qps <= before.qps + 256 && held.mrs <= before.mrs + 2 * 256, "{held:?}");
    let taken = lab.run(|host| async move {
        let start = host.rt.now();
        let controller = host.connect(InitiatorOptions::default()).await;
        let taken = host.rt.now() - start;
        write_and_read(&controller.namespace(1).expect("a namespace"), 0, 4096, 1).await;
        controller.disconnect().await.expect("in order");
        taken
    });
    assert!(taken < Duration::from_millis(100), "{taken:?}");
    lab.world.run_for(Duration::from_secs(180));
    let counters = target.half_open_counters();
    assert!(counters.displaced >= 4000 && counters.refused == 0, "{counters:?}");
    assert_eq!((target.half_open(), usage()), (0, before));
    assert_eq!(lab.world.device(lab.target_host).cm_footprint(), footprint);
}

/// A peer that accepts connections and then says nothing is waited for no longer than the time for connecting.
#[test]
fn a_peer_that_accepts_and_is_silent_is_given_up_in_time() {
    let lab = Lab::new(11);
    let mute = lab.world.add_host(HostConfig::new("10.0.0.3".parse().expect("ip")));
    let (rt, device) = (lab.world.rt(mute), lab.world.device(mute));
    rt.spawn(async move {
        let there = "10.0.0.3:4420".parse().expect("an address");
        let listener = device.listen(there, ListenOptions::default()).expect("listens");
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(64).expect("a completion queue");
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).expect("a queue pair");
        qp.to_init(Access::empty()).expect("INIT");
        let memory = pd.register(4096, Access::LOCAL_WRITE).expect("memory");
        for n in 0..16 {
            qp.post_recv(RecvWr::new(n, [memory.sge(..)])).expect("room");
        }
        let accept = CmAccept { crqsize: 32, ..Default::default() };
        let request = listener.next_request().await.expect("a request");
        let param = ConnParam::with_private_data(accept.emit());
        let connection = request.accept(&qp, param).await.expect("connected");
        connection.closed().await;
    });
    lab.run(|host| async move {
        let start = host.rt.now();
        let there = "10.0.0.3:4420".parse().expect("an address");
        let (nqn, who, options) = (nqn(), identity(1), InitiatorOptions::default());
        let connecting = Controller::connect(&host.rt, &host.device, there, &nqn, &who, options);
        let error = connecting.await.err().expect("no answer");
        let text = error.to_string();
        assert!(text.contains("Connect: no answer within 10s"), "{text}");
        assert_eq!((host.rt.now() - start).as_secs(), 10);
    });
}

/// Connections that never send Connect fill the target, and take nothing from a host that does.
#[test]
fn connections_without_connect_lock_nobody_out() {
    let limits = Limits { max_connections: 8, ..Limits::default() };
    let lab = Lab::with(10, limits);
    let target = lab.target();
    lab.run(|host| async move {
        let mut silent = Vec::new();
        for _ in 0..12 {
            silent.push(Raw::open(&host, 0, 4, 16, 64).await.expect("connects"));
        }
        host.rt.sleep(Duration::from_millis(100)).await;
        assert_eq!(target.with(|target| target.queue_count()), 8);
        assert_eq!(silent.iter().filter(|queue| queue.is_closed()).count(), 4, "the oldest");
        let controller = host.connect(InitiatorOptions::default()).await;
        write_and_read(&controller.namespace(1).expect("a namespace"), 0, 4096, 1).await;
        controller.disconnect().await.expect("in order");
    });
}

/// One address alone gets no further than its share, whatever it asks for.
#[test]
fn one_address_has_few_half_open_connections() {
    let lab = Lab::new(9);
    let target = lab.target();
    let id = lab.world.add_host(HostConfig::new("10.0.1.1".parse().expect("ip")));
    lab.world.schedule(lab.world.now(), id, Direction::Back, Change::Partition(true));
    let host = lab::Host { rt: lab.world.rt(id), device: lab.world.device(id) };
    for _ in 0..100 {
        let host = host.clone();
        host.rt.clone().spawn(async move { Raw::open(&host, 0, 4, 16, 64).await.is_ok() });
    }
    lab.world.run_for(Duration::from_secs(1));
    let counters = target.half_open_counters();
    assert_eq!((target.half_open(), counters.displaced), (32, 0));
    assert!(counters.refused >= 68, "{counters:?}");
}

/// RX-33: connections that come and go on a clean link cause no retries and no errors, on neither side.
#[test]
fn a_thousand_connections_on_a_clean_link() {
    let lab = Lab::new(5);
    lab.run(|host| async move {
        for round in 0..1000 {
            let options = InitiatorOptions { queue_entries: 4, keep_alive: None, ..Default::default() };
            let controller = host.connect(options).await;
            let disk = controller.namespace(1).expect("a namespace");
            write_and_read(&disk, round * 4096, 4096, round).await;
            controller.disconnect().await.expect("in order");
        }
    });
    lab.world.run_for(Duration::from_secs(60));
    for host in [lab.host, lab.target_host] {
        let counters = lab.world.device(host).counters();
        assert_eq!(counters.by_name("retry_exceeded_err"), Some(0));
        let bad = [
            "_err",
            "retry",
            "drop_malformed",
            "lost",
            "overflow",
            "duplicate",
            "out_of",
            "unreachable",
            "icrc",
        ];
        // Ending a connection flushes its receives: no error. Nor is an acknowledgement that finds its queue pair gone.
        let is_bad = |name: &str| bad.iter().any(|part| name.contains(part)) && !name.contains("_flush_");
        for (name, count) in counters.iter().filter(|(name, _)| is_bad(name)) {
            assert_eq!(count, 0, "{name}");
        }
    }
}

/// NV-11: a log that gets shorter while it is read is read again, whenever that happens.
#[test]
fn the_discovery_log_shrinks_while_it_is_read() {
    const MANY: usize = 300;
    let name = |i: usize| format!("nqn.2026-01.lab:many-{i:03}").parse().expect("an NQN");
    let mut seen = [false; 2];
    for step in 0..40 {
        let lab = Lab::new(6);
        let target = lab.target();
        for i in 0..MANY {
            target.with(|target| target.add_subsystem(&SubsystemConfig::new(name(i)))).expect("new");
        }
        let host = lab.host();
        let found = lab
            .world
            .rt(lab.host)
            .spawn(async move { discover(&host.rt, &host.device, address(), &identity(1)).await });
        lab.world.run_for(Duration::from_micros(20 * step));
        for i in 10..MANY {
            target.with(|target| target.remove_subsystem(&name(i))).expect("exists");
        }
        let found = lab.world.block_on(LIMIT, found).expect("ends").expect("ran");
        let found = found.unwrap_or_else(|error| panic!("after {} us: {error}", 20 * step));
        // All or those that are left, with the discovery subsystem and the lab's own.
        assert!([MANY + 2, 12].contains(&found.len()), "{} entries", found.len());
        seen[usize::from(found.len() == 12)] = true;
    }
    assert_eq!(seen, [true, true], "some steps before, some after the log was read");
}

/// A disk whose commands complete when a test says so: data moves then, not before.
struct Slow {
    ram: Arc<RamBackend>,
    waiting: Mutex<Vec<Arc<Mutex<Wait>>>>,
}

#[derive(Default)]
struct Wait {
    done: bool,
    waker: Option<Waker>,
}

impl Slow {
    fn new() -> Arc<Self> {
        let ram = Arc::new(RamBackend::new(512, 65536).expect("fits"));
        Arc::new(Self { ram, waiting: Mutex::default() })
    }

    fn later(
        &self,
        work: impl FnOnce(&RamBackend) -> IoFuture<IoResult> + Send + 'static,
    ) -> IoFuture<IoResult> {
        let wait = Arc::new(Mutex::new(Wait::default()));
        self.waiting.lock().expect("whole").push(wait.clone());
        let ram = self.ram.clone();
        IoFuture::pending(async move {
            std::future::poll_fn(|cx| {
                let mut wait = wait.lock().expect("whole");
                wait.waker = Some(cx.waker().clone());
                if wait.done { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            work(&ram).await
        })
    }

    /// Completes some of what waits, again and again, in any order.
    async fn work(self: Arc<Self>, rt: Rt) {
        loop {
            rt.sleep(Duration::from_micros(1 + rt.entropy() % 400)).await;
            let count = self.waiting.lock().expect("whole").len();
            for _ in 0..rt.entropy() % 40 {
                let mut waiting = self.waiting.lock().expect("whole");
                if waiting.is_empty() {
                    break;
                }
                let at = rt.entropy() as usize % waiting.len().min(count.max(1));
                let wait = waiting.swap_remove(at);
                drop(waiting);
                let mut wait = wait.lock().expect("whole");
                wait.done = true;
                if let Some(waker) = wait.waker.take() {
                    waker.wake();
                }
            }
        }
    }
}

impl Backend for Slow {
    fn geometry(&self) -> Geometry {
        self.ram.geometry()
    }

    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult> {
        let into = into.clone();
        self.later(move |ram| ram.read(offset, &into))
    }

    fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoFuture<IoResult> {
        let from = from.clone();
        self.later(move |ram| ram.write(offset, &from, fua))
    }

    fn flush(&self) -> IoFuture<IoResult> {
        self.later(|ram| ram.flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> IoFuture<IoResult> {
        self.later(move |ram| ram.write_zeroes(offset, len, may_unmap))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<IoResult> {
        self.later(move |ram| ram.discard(offset, len))
    }

    fn describe(&self) -> String {
        "a slow disk".to_owned()
    }
}

/// What happens in the middle of a host's I/O.
#[derive(Debug, Clone, Copy)]
enum Blow {
    KillHost,
    Partition,
    RemoveSubsystem,
    RemoveNamespace,
    RemoveHost,
}

impl Blow {
    fn strike(self, lab: &Lab) {
        let target = lab.target();
        match self {
            Blow::KillHost => lab.world.kill(lab.host),
            Blow::Partition => lab.world.partition(lab.host, true),
            Blow::RemoveSubsystem => target.with(|target| target.remove_subsystem(&nqn())).expect("exists"),
            Blow::RemoveNamespace => {
                target.with(|target| target.remove_namespace(&nqn(), 1)).expect("exists")
            }
            Blow::RemoveHost => {
                target.with(|target| target.remove_host(&nqn(), &identity(1).nqn, false)).expect("listed");
            }
        }
    }

    /// Everything as before, with a host that has just been switched on.
    fn mend(self, lab: &Lab, listed: &SubsystemConfig) {
        let target = lab.target();
        match self {
            Blow::KillHost => {}
            Blow::Partition => {
                lab.world.kill(lab.host);
                lab.world.partition(lab.host, false);
            }
            _ => lab.world.kill(lab.host),
        }
        lab.world.run_for(Duration::from_secs(60));
        lab.world.restart(lab.host);
        match self {
            Blow::RemoveSubsystem => target.with(|target| target.add_subsystem(listed)).expect("new"),
            Blow::RemoveNamespace => {
                let namespace = NamespaceConfig::new(lab.backend.clone());
                target.with(|target| target.add_namespace(&nqn(), &namespace)).expect("room");
            }
            Blow::RemoveHost => {
                target.with(|target| target.allow_host(&nqn(), &identity(1).nqn)).expect("exists");
            }
            Blow::KillHost | Blow::Partition => {}
        }
    }
}

/// NV-17: whatever ends it, at whatever moment, with 128 commands at the disk: nothing is left of an association, its
/// buffers come back when the disk lets go of them, and the next host finds everything as it was.
#[test]
fn nothing_is_left_of_io_that_was_under_way() {
    const BLOWS: [Blow; 5] =
        [Blow::KillHost, Blow::Partition, Blow::RemoveSubsystem, Blow::RemoveNamespace, Blow::RemoveHost];
    for seed in 0..4 {
        let slow = Slow::new();
        let lab = Lab::on(seed, slow.clone());
        let rt = lab.world.rt_outside();
        rt.spawn(slow.clone().work(rt.clone()));
        let listed = SubsystemConfig { hosts: Some(vec![identity(1).nqn]), ..lab.subsystem() };
        let target = lab.target();
        target.with(|target| target.remove_subsystem(&nqn())).expect("exists");
        target.with(|target| target.add_subsystem(&listed)).expect("new");
        let before = lab.world.device(lab.target_host).usage();
        for (round, blow) in BLOWS.into_iter().cycle().take(10).enumerate() {
            let host = lab.host();
            lab.world.rt(lab.host).spawn(busy(host));
            lab.world.run_for(Duration::from_micros(4000 + rt.entropy() % 8000));
            assert!(target.data_in_use() > 0, "it was busy");
            blow.strike(&lab);
            lab.world.run_for(Duration::from_micros(rt.entropy() % 2000));
            blow.mend(&lab, &listed);
            let left =
                (target.connections(), target.data_in_use(), slow.waiting.lock().expect("whole").len());
            assert_eq!(left, (0, 0, 0), "seed {seed}, round {round}: {blow:?}");
            let usage = lab.world.device(lab.target_host).usage();
            assert_eq!(usage, before, "seed {seed}, round {round}: {blow:?}");
            let counts = target.with(|target| (target.queue_count(), target.controller_count()));
            assert_eq!(counts, (0, 0), "seed {seed}, round {round}: {blow:?}");
        }
        lab.run(|host| async move {
            let controller = host.connect(InitiatorOptions::default()).await;
            write_and_read(&controller.namespace(1).expect("a namespace"), 0, 1 << 20, 3).await;
            controller.disconnect().await.expect("in order");
        });
    }
}

/// 128 commands outstanding, for ever or until the first fails.
async fn busy(host: lab::Host) {
    let keep_alive = Some(Duration::from_secs(2));
    let options = InitiatorOptions { queue_entries: 130, keep_alive, ..Default::default() };
    let controller = host.connect(options).await;
    let disk = controller.namespace(1).expect("a namespace");
    for i in 0..128u64 {
        let disk = disk.clone();
        host.rt.spawn(async move {
            let buffer = disk.buffer(16 << 10).expect("memory");
            loop {
                let slba = i * 256;
                if disk.write_blocks(slba, 32, &buffer, 0, false).await.is_err()
                    || disk.read_blocks(slba, 32, &buffer, 0).await.is_err()
                {
                    break;
                }
            }
        });
    }
    std::future::pending::<()>().await;
}
