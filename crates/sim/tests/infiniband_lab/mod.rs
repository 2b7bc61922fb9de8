//! What tests of whole devices on InfiniBand share: a queue pair with all that it needs, and how two of them meet.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use everywire_sim::{HostId, World};
use everywire_verbs::{
    Access, Completion, ConnParam, ConnectOptions, ConnectRequest, Connection, Cq, ListenOptions,
    MemoryRegion, Pd, Psn, QKey, Qp, QpAttr, QpInit, QpState, QpType, SendWr, WcStatus,
};

pub const LIMIT: Duration = Duration::from_secs(60);
pub const LEN: usize = 20_000;
pub const QKEY: QKey = QKey(0x1234);

pub fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

pub struct Side {
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: MemoryRegion,
}

pub fn side(world: &World, host: HostId, ty: QpType) -> Side {
    let pd = world.device(host).alloc_pd().unwrap();
    let cq = world.device(host).create_cq(64).unwrap();
    let qp = pd.create_qp(&QpInit::new(ty, &cq)).unwrap();
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mr = pd.register(LEN, all).unwrap();
    Side { pd, cq, qp, mr }
}

/// One that sends and receives datagrams with [`QKEY`].
pub fn datagram_side(world: &World, host: HostId) -> Side {
    let side = side(world, host, QpType::Ud);
    let init = QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) };
    let rts = QpAttr { sq_psn: Some(Psn::new(1)), ..QpAttr::to(QpState::Rts) };
    [init, QpAttr::to(QpState::Rtr), rts].iter().for_each(|attr| side.qp.modify(attr).unwrap());
    side
}

/// Connects the first host to the second, which listens at `listen`, by its address `dst` and path bits if any; `check` sees
/// the request.
pub fn connect_by(
    world: &World,
    hosts: &[HostId],
    ty: QpType,
    [listen, dst]: [SocketAddr; 2],
    path_bits: Option<u8>,
    check: impl FnOnce(&ConnectRequest) + 'static,
) -> ([Side; 2], [Connection; 2]) {
    let [a, b] = [side(world, hosts[0], ty), side(world, hosts[1], ty)];
    let listener = world.device(hosts[1]).listen(listen, ListenOptions::default()).unwrap();
    let qp = b.qp.clone();
    let accepting = async move {
        let request = listener.next_request().await.unwrap();
        check(&request);
        request.accept(&qp, ConnParam::default()).await.unwrap()
    };
    let accepted = Rc::new(RefCell::new(None));
    let into = accepted.clone();
    world.rt_outside().spawn(async move { *into.borrow_mut() = Some(accepting.await) });
    let options = ConnectOptions { path_bits, ..ConnectOptions::new(dst, &a.qp) };
    let connecting = world.device(hosts[0]).connect(options);
    let active = world.block_on(LIMIT, connecting).unwrap().unwrap();
    world.run_until(LIMIT, || accepted.borrow().is_some());
    let passive = accepted.borrow_mut().take().unwrap();
    ([a, b], [active, passive])
}

/// Posts one and waits for it.
pub fn finish(world: &World, side: &Side, wr: SendWr) {
    side.qp.post_send(wr).unwrap();
    arrived(world, &side.cq);
}

/// The next completion, which is a success.
pub fn arrived(world: &World, cq: &Cq) -> Completion {
    let mut done = Vec::new();
    assert!(world.run_until(LIMIT, || cq.poll(&mut done, 1).unwrap() > 0));
    assert_eq!(done[0].status, WcStatus::Success);
    done[0]
}
