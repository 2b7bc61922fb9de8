//! iWARP between simulated hosts: TCP in virtual time brings every byte, whatever the network loses, and a seed replays a run.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use everywire_fabric::faults::{Faults, Ppm};
use everywire_sim::world::{HostConfig, World};
use everywire_verbs::{
    Access, ConnParam, ConnectOptions, Cq, Device, DisconnectReason, ListenOptions, MemoryRegion, Qp, QpInit,
    QpType, RKey, RecvWr, Remote, Rtr, SendOp, SendWr, WcStatus,
};

const LEN: usize = 300_000;

fn pattern() -> Vec<u8> {
    (0..LEN).map(|i| (i / 253) as u8 ^ i as u8).collect()
}

struct Side {
    cq: Cq,
    qp: Qp,
    mr: MemoryRegion,
}

fn side(device: &Device) -> Side {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(64).unwrap();
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.register(LEN, access).unwrap();
    Side { cq, qp, mr }
}

async fn one(cq: &Cq) {
    let mut done = Vec::new();
    cq.wait(&mut done, 1).await.unwrap();
    assert_eq!(done[0].status, WcStatus::Success, "{done:?}");
}

/// Writes and reads back between two hosts; the digest of everything that was on the wire.
fn run(seed: u64, faults: Faults, peer_to_peer: Option<Rtr>) -> u64 {
    let world = World::new(seed);
    let ips: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
    let [a, b] = ips.map(|ip| {
        let mut config = HostConfig::iwarp(ip);
        config.device.iwarp.peer_to_peer = peer_to_peer;
        world.add_host(config)
    });
    world.set_faults(a, faults);
    world.set_faults(b, faults);
    let (server, client) = (world.device(b), world.device(a));
    let listener = server.listen(SocketAddr::new(ips[1], 4420), ListenOptions::default()).unwrap();
    let serving = async move {
        let side = side(&server);
        let request = listener.next_request().await.unwrap();
        let mut region = side.mr.addr().to_be_bytes().to_vec();
        region.extend(side.mr.rkey().0.to_be_bytes());
        side.qp.to_init(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        side.qp.post_recv(RecvWr::new(1, [side.mr.sge(..16)])).unwrap();
        let connection = request.accept(&side.qp, ConnParam::with_private_data(region)).await.unwrap();
        one(&side.cq).await;
        assert_eq!(connection.closed().await, DisconnectReason::Peer);
    };
    drop(world.rt(b).spawn(serving));
    let asking = async move {
        let side = side(&client);
        let options = ConnectOptions::new(SocketAddr::new(ips[1], 4420), &side.qp);
        let connection = client.connect(options).await.unwrap();
        let data = connection.private_data();
        let remote = Remote {
            addr: u64::from_be_bytes(data[..8].try_into().unwrap()),
            rkey: RKey(u32::from_be_bytes(data[8..12].try_into().unwrap())),
        };
        side.mr.write_at(0, &pattern()).unwrap();
        let post = |op| side.qp.post_send(SendWr::new(1, op).with_sges([side.mr.sge(..)])).unwrap();
        post(SendOp::Write { remote });
        one(&side.cq).await;
        side.mr.write_at(0, &vec![0; LEN]).unwrap();
        post(SendOp::Read { remote });
        one(&side.cq).await;
        assert!(side.mr.read_vec(0, LEN).unwrap() == pattern(), "what was written comes back");
        side.qp.post_send(SendWr::new(2, SendOp::Send).with_inline(*b"done")).unwrap();
        one(&side.cq).await;
        assert_eq!(connection.disconnect().await, DisconnectReason::Local);
    };
    world.block_on(Duration::from_secs(120), asking).unwrap();
    world.digest()
}

#[test]
fn every_byte_arrives_and_a_seed_replays() {
    let clean = run(1, Faults::NONE, None);
    assert_eq!(clean, run(1, Faults::NONE, None));
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        run(2, Faults::NONE, Some(rtr));
    }
}

#[test]
fn loss_and_reordering_are_tcps_business() {
    let faults = Faults {
        loss: Ppm(20_000),
        duplicate: Ppm(10_000),
        reorder: Ppm(20_000),
        late_by: Duration::from_micros(50),
        ..Faults::NONE
    };
    assert_eq!(run(3, faults, None), run(3, faults, None));
}
