//! Multicast in a simulated network, over every wire that has it: members hear each other and themselves, those who only
//! send hear nothing, and who has left hears nothing any more.

use std::net::IpAddr;
use std::time::Duration;

use everywire_sim::{HostConfig, HostId, World};
use everywire_verbs::{
    Access, Cq, MULTICAST_QKEY, MemoryRegion, Multicast, MulticastOptions, Pd, Psn, Qp, QpAttr, QpInit,
    QpState, QpType, RecvWr, SendOp, SendWr, WcStatus,
};

const LIMIT: Duration = Duration::from_secs(60);
const GRH: usize = 40;

struct Side {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: MemoryRegion,
}

/// A datagram queue pair ready to send, with a receive posted.
fn side(world: &World, host: HostId) -> Side {
    let device = world.device(host);
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(64).unwrap();
    let qp = pd.create_qp(&QpInit::new(QpType::Ud, &cq)).unwrap();
    let init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        qkey: Some(MULTICAST_QKEY),
        ..QpAttr::to(QpState::Init)
    };
    let rts = QpAttr { sq_psn: Some(Psn::new(1)), ..QpAttr::to(QpState::Rts) };
    for attr in [init, QpAttr::to(QpState::Rtr), rts] {
        qp.modify(&attr).unwrap();
    }
    let mr = pd.register(4096, Access::LOCAL_WRITE).unwrap();
    for slot in 0..4 {
        qp.post_recv(RecvWr::new(slot, [mr.sge(slot as usize * 512..(slot as usize + 1) * 512)])).unwrap();
    }
    Side { pd, cq, qp, mr }
}

fn join(world: &World, side: &Side, options: MulticastOptions) -> Multicast {
    let (qp, pd) = (side.qp.clone(), side.pd.clone());
    world.block_on(LIMIT, async move { qp.join_multicast(&pd, options).await }).unwrap().unwrap()
}

/// Sends `text` to the group.
fn send(side: &Side, group: &Multicast, text: &str) {
    let wr = SendWr { ud: Some(group.dest()), ..SendWr::new(99, SendOp::Send).with_inline(text.as_bytes()) };
    side.qp.post_send(wr).unwrap();
}

/// What has arrived since the last time.
fn heard(side: &Side) -> Vec<String> {
    let mut done = Vec::new();
    side.cq.poll(&mut done, 64).unwrap();
    let receives = done.iter().filter(|wc| {
        assert_eq!(wc.status, WcStatus::Success);
        wc.wr_id < 4
    });
    receives
        .map(|wc| {
            assert!(wc.grh);
            let at = wc.wr_id as usize * 512 + GRH;
            let text = side.mr.read_vec(at, wc.byte_len as usize - GRH).unwrap();
            side.qp.post_recv(RecvWr::new(wc.wr_id, [side.mr.sge(at - GRH..at - GRH + 512)])).unwrap();
            String::from_utf8(text).unwrap()
        })
        .collect()
}

fn members_hear_each_other(config: fn(IpAddr) -> HostConfig, group: &str, mgid: &str) {
    let world = World::new(7);
    let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
    let hosts = [1, 2, 3].map(|n| world.add_host(config(ip(n))));
    assert!(world.ib_up(LIMIT));
    let [a, b, c] = hosts.map(|host| side(&world, host));
    let group: IpAddr = group.parse().unwrap();
    let at_a = join(&world, &a, MulticastOptions::new(group));
    let at_b = join(&world, &b, MulticastOptions::new(group));
    let at_c = join(&world, &c, MulticastOptions::send_only(group));
    assert_eq!(at_a.mgid().to_string(), mgid);
    assert_eq!((at_a.mgid(), at_a.mlid(), at_a.qkey()), (at_b.mgid(), at_b.mlid(), at_b.qkey()));
    // Memberships reach the switches.
    world.run_for(Duration::from_secs(1));
    send(&a, &at_a, "from a");
    world.run_for(Duration::from_millis(10));
    assert_eq!(
        [heard(&a), heard(&b), heard(&c)],
        [vec!["from a".to_owned()], vec!["from a".to_owned()], vec![]]
    );
    send(&c, &at_c, "from c");
    world.run_for(Duration::from_millis(10));
    assert_eq!(
        [heard(&a), heard(&b), heard(&c)],
        [vec!["from c".to_owned()], vec!["from c".to_owned()], vec![]]
    );
    drop(at_b);
    world.run_for(Duration::from_secs(1));
    send(&c, &at_c, "again");
    world.run_for(Duration::from_millis(10));
    assert_eq!([heard(&a), heard(&b)], [vec!["again".to_owned()], vec![]]);
}

#[test]
fn roce_v2() {
    members_hear_each_other(HostConfig::new, "239.1.2.3", "::ffff:239.1.2.3");
}

/// The MGID is Linux's `cma_iboe_set_mgid`'s for GIDs of type RoCE v1.
#[test]
fn roce_v1() {
    members_hear_each_other(HostConfig::roce_v1, "239.1.2.3", "ff0e::ffff:ef01:203");
}

/// The MGID is RFC 4391's, with rdma_cm's signature.
#[test]
fn infiniband() {
    members_hear_each_other(HostConfig::infiniband, "239.1.2.3", "ff12:4001:ffff::f01:203");
}
