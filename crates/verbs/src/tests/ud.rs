//! Datagrams through the device: GRH, Q_Key, multicast, and RX-10 (a completed datagram has left).

use std::net::IpAddr;

use everywire_transport::ib::packet::GRH_LEN;

use crate::test_support::*;
use crate::*;

const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));

fn open(device: &Device) -> Side {
    let side = Side::new(device, QpType::Ud);
    open_ud(&side.qp);
    side
}

fn datagram(wr_id: u64, ah: &Ah, to: Qpn, sge: Sge) -> SendWr {
    SendWr { ud: Some(ah.dest(to, QKEY)), ..SendWr::new(wr_id, SendOp::Send).with_sges([sge]) }
}

#[test]
fn a_datagram_comes_with_its_sender_and_grh() {
    let mut net = Net::pair();
    let (a, b) = (open(&net.devices[0]), open(&net.devices[1]));
    let ah = net
        .block_on(a.pd.create_ah(AhAttr { traffic_class: 4, ..AhAttr::new([10, 0, 0, 2].into()) }))
        .unwrap();
    a.fill(0, b"datagram");
    b.qp.post_recv(RecvWr::new(5, [b.mr.sge(0..200)])).unwrap();
    a.qp.post_send(datagram(1, &ah, b.qp.qpn(), a.mr.sge(..8))).unwrap();
    net.settle();
    assert_eq!(a.completions().len(), 1);
    let received = b.completions();
    let entry = received[0];
    assert_eq!((entry.wr_id, entry.status, entry.byte_len), (5, WcStatus::Success, 48));
    assert_eq!((entry.src_qp, entry.grh), (a.qp.qpn(), true));
    assert_eq!(b.bytes(GRH_LEN, 8), b"datagram");
    // Annex A17.4.5.2: over IPv4 the last 20 bytes of the GRH area are the IPv4 header.
    let header = b.bytes(20, 20);
    assert_eq!((header[0], header[1], header[9]), (0x45, 4, 17));
    assert_eq!(header[12..], [10, 0, 0, 1, 10, 0, 0, 2]);
}

#[test]
fn a_wrong_queue_key_is_dropped_and_counted() {
    let mut net = Net::pair();
    let (a, b) = (open(&net.devices[0]), open(&net.devices[1]));
    let ah = net.block_on(a.pd.create_ah(AhAttr::new([10, 0, 0, 2].into()))).unwrap();
    b.qp.post_recv(RecvWr::new(5, [b.mr.sge(0..200)])).unwrap();
    let mut wr = datagram(1, &ah, b.qp.qpn(), a.mr.sge(..8));
    wr.ud = Some(ah.dest(b.qp.qpn(), QKey(0x2222)));
    a.qp.post_send(wr).unwrap();
    net.settle();
    assert!(b.completions().is_empty());
    assert_eq!(net.devices[1].counters().get(Counter::DropBadQkey), 1);
}

#[test]
fn a_completed_datagram_survives_its_queue_pair() {
    // RX-10.
    let mut net = Net::pair();
    let (a, b) = (open(&net.devices[0]), open(&net.devices[1]));
    let ah = net.block_on(a.pd.create_ah(AhAttr::new([10, 0, 0, 2].into()))).unwrap();
    b.qp.post_recv(RecvWr::new(5, [b.mr.sge(0..200)])).unwrap();
    let Side { qp, cq, mr, .. } = a;
    qp.post_send(datagram(1, &ah, b.qp.qpn(), mr.sge(..8))).unwrap();
    let mut out = Vec::new();
    assert_eq!(cq.poll(&mut out, 1), Ok(0), "nothing has left yet");
    net.drain();
    assert_eq!(cq.poll(&mut out, 1), Ok(1));
    drop(qp);
    net.settle();
    assert_eq!(b.completions().len(), 1);
}

#[test]
fn groups_reach_every_member_and_nobody_else() {
    let mut net = Net::of(3);
    let a = open(&net.devices[0]);
    let members = [open(&net.devices[1]), open(&net.devices[1]), open(&net.devices[2])];
    let outsider = open(&net.devices[2]);
    for side in members.iter().chain([&outsider]) {
        (0..2).for_each(|n| side.qp.post_recv(RecvWr::new(n, [side.mr.sge(0..200)])).unwrap());
    }
    members.iter().for_each(|side| side.qp.attach_multicast(GROUP).unwrap());
    members[0].qp.attach_multicast(GROUP).unwrap(); // twice is once
    net.settle();
    assert!(
        !net.groups[0].contains(&GROUP) && net.groups[1].contains(&GROUP) && net.groups[2].contains(&GROUP)
    );
    let ah = net.block_on(a.pd.create_ah(AhAttr::new(GROUP))).unwrap();
    a.qp.post_send(datagram(1, &ah, Qpn::MULTICAST, a.mr.sge(..8))).unwrap();
    net.settle();
    for side in &members {
        assert_eq!(side.completions().iter().filter(|entry| entry.opcode == WcOpcode::Recv).count(), 1);
    }
    assert!(outsider.completions().is_empty());

    // The group is left with its last member, detached or destroyed.
    members[0].qp.detach_multicast(GROUP).unwrap();
    assert!(members[0].qp.detach_multicast(GROUP).is_err());
    net.settle();
    assert!(net.groups[1].contains(&GROUP));
    drop(members);
    net.settle();
    assert!(!net.groups[1].contains(&GROUP) && !net.groups[2].contains(&GROUP));
    assert_eq!(net.devices[1].lock().groups.len(), 0);

    // What the driver has not seen yet need not be undone by it.
    for _ in 0..3 {
        outsider.qp.attach_multicast(GROUP).unwrap();
        outsider.qp.detach_multicast(GROUP).unwrap();
    }
    assert_eq!(net.devices[2].drive().poll_command(), None);
}

#[test]
fn joining_is_refused_with_the_reason() {
    let limits = DeviceLimits { max_mcast_grp: 1, max_mcast_qp_attach: 1, ..DeviceLimits::default() };
    let device = Device::new(DeviceConfig { limits, ..DeviceConfig::roce_v2([10, 0, 0, 1].into()) });
    let (one, two, rc) = (open(&device), open(&device), Side::new(&device, QpType::Rc));
    assert!(rc.qp.attach_multicast(GROUP).unwrap_err().what().contains("UD"));
    assert!(one.qp.attach_multicast([10, 0, 0, 2].into()).unwrap_err().what().contains("multicast"));
    one.qp.attach_multicast(GROUP).unwrap();
    assert_eq!(two.qp.attach_multicast(GROUP).unwrap_err().kind(), ErrorKind::OutOfResources);
    let error = one.qp.attach_multicast([239, 1, 2, 4].into()).unwrap_err();
    assert!(error.what().contains("max_mcast_grp"), "{error}");
}
