//! Replays of Linux kernels' own conversations: we take one side's place, the captured MADs of the other side go in, and
//! ours must equal the captured ones in every field that is not drawn at random.
//!
//! Random are the sender's communication id, its starting PSN and its transaction ids; they are translated, so that their
//! reuse (a DREQ with the REQ's transaction id) is compared too.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use everywire_wire::cm::{CmMad, CmMessage, RejReason, Rep, Req};
use everywire_wire::{Mtu, Qpn, RocePacket, UdpFrame};

use crate::cm::ib::*;
use crate::mad::{Gsi, MadPath};

/// A captured MAD and the way it went.
#[derive(Clone, Copy)]
struct Captured {
    from: IpAddr,
    to: IpAddr,
    mad: CmMad,
}

/// The frames of a capture file.
fn frames(file: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../../captures/{file}.pcap", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes[..4], [0xd4, 0xc3, 0xb2, 0xa1], "a little-endian pcap file");
    let mut frames = Vec::new();
    let mut rest = &bytes[24..];
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

/// Every CM MAD of a capture file, in order.
fn read(file: &str) -> Vec<Captured> {
    let mut mads = Vec::new();
    for frame in frames(file) {
        let Ok(udp) = UdpFrame::parse(&frame) else { continue };
        let Ok(packet) = RocePacket::parse(udp.payload) else { continue };
        if !udp.is_roce() || packet.bth.dest_qp != Qpn::GSI {
            continue;
        }
        let mad = CmMad::parse(Gsi::mad(&packet).unwrap()).unwrap();
        mads.push(Captured { from: udp.ip.src(), to: udp.ip.dst(), mad });
    }
    mads
}

/// The captured MADs, one conversation after the other, each starting with its REQ.
fn conversations(file: &str) -> Vec<Vec<Captured>> {
    let mut by_id: BTreeMap<u32, usize> = BTreeMap::new();
    let mut all: Vec<Vec<Captured>> = Vec::new();
    for captured in read(file) {
        let (local, remote) = ids(&captured.mad.message);
        if let CmMessage::Req(_) = captured.mad.message {
            by_id.insert(local, all.len());
            all.push(vec![captured]);
        } else if let Some(&at) = by_id.get(&local).or_else(|| by_id.get(&remote)) {
            all[at].push(captured);
        }
    }
    all
}

fn ids(message: &CmMessage) -> (u32, u32) {
    match *message {
        CmMessage::Req(m) => (m.local_comm_id, 0),
        CmMessage::Rep(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Rtu(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Rej(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Dreq(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Drep(m) => (m.local_comm_id, m.remote_comm_id),
        _ => unreachable!("not in these captures"),
    }
}

/// What our side drew instead of the captured side.
struct Translation {
    comm_id: (u32, u32),
    psn: everywire_wire::Psn,
    tid: (u64, u64),
}

impl Translation {
    /// A captured MAD as it would be had its sender, or its receiver, drawn our numbers.
    fn apply(&self, mad: &CmMad) -> CmMad {
        let mut mad = *mad;
        if mad.header.transaction_id == self.tid.0 {
            mad.header.transaction_id = self.tid.1;
        }
        let swap = |id: &mut u32| {
            if *id == self.comm_id.0 {
                *id = self.comm_id.1;
            }
        };
        match &mut mad.message {
            CmMessage::Req(m) => {
                swap(&mut m.local_comm_id);
                m.starting_psn = self.psn;
            }
            CmMessage::Rep(m) => {
                swap(&mut m.local_comm_id);
                swap(&mut m.remote_comm_id);
            }
            CmMessage::Rtu(m) => {
                swap(&mut m.local_comm_id);
                swap(&mut m.remote_comm_id);
            }
            CmMessage::Rej(m) => {
                swap(&mut m.local_comm_id);
                swap(&mut m.remote_comm_id);
            }
            CmMessage::Dreq(m) => {
                swap(&mut m.local_comm_id);
                swap(&mut m.remote_comm_id);
            }
            CmMessage::Drep(m) => {
                swap(&mut m.local_comm_id);
                swap(&mut m.remote_comm_id);
            }
            _ => unreachable!("not in these captures"),
        }
        mad
    }
}

fn engine(guid: everywire_wire::Guid) -> Cm {
    Cm::new(CmConfig { node_guid: guid, ..CmConfig::default() }, 7)
}

fn next(cm: &mut Cm) -> CmMad {
    CmMad::parse(&cm.poll_transmit().expect("a MAD to send").1).unwrap()
}

/// Takes the active side's place in a conversation. Returns the events that the program saw.
fn replay_active(talk: &[Captured]) -> Vec<CmEvent> {
    let CmMessage::Req(req) = talk[0].mad.message else { panic!("a REQ first") };
    let (us, now) = (talk[0].from, Instant::now());
    let path = MadPath { link: crate::ib::PathLink::Udp, local: us, remote: talk[0].to, scope_id: 0 };
    let mut cm = engine(req.local_ca_guid);
    let id = cm.connect(now, &as_params(path, &req)).unwrap();
    let ours = next(&mut cm);
    let CmMessage::Req(our_req) = ours.message else { panic!("a REQ") };
    let translation = Translation {
        comm_id: (req.local_comm_id, id.0),
        psn: our_req.starting_psn,
        tid: (talk[0].mad.header.transaction_id, ours.header.transaction_id),
    };
    assert_eq!(ours, translation.apply(&talk[0].mad));
    let mut events = Vec::new();
    for captured in &talk[1..] {
        let expected = translation.apply(&captured.mad);
        if captured.from != us {
            cm.handle_mad(now, path, &expected.emit());
            events.extend(std::iter::from_fn(|| cm.poll_event()));
            continue;
        }
        match captured.mad.message {
            CmMessage::Rtu(_) => cm.establish(now, id, &[]).unwrap(),
            CmMessage::Dreq(_) => cm.disconnect(now, id, &[]).unwrap(),
            _ => panic!("not in these captures"),
        }
        assert_eq!(next(&mut cm), expected);
    }
    assert!(!cm.has_transmit());
    events
}

/// Takes the passive side's place in a conversation.
fn replay_passive(talk: &[Captured], listening: bool) -> Vec<CmEvent> {
    let CmMessage::Req(req) = talk[0].mad.message else { panic!("a REQ first") };
    let (us, now) = (talk[0].to, Instant::now());
    let path = MadPath { link: crate::ib::PathLink::Udp, local: us, remote: talk[0].from, scope_id: 0 };
    let answer = talk.iter().find_map(|captured| match captured.mad.message {
        CmMessage::Rep(rep) => Some(rep),
        _ => None,
    });
    let mut cm = engine(answer.map_or(everywire_wire::Guid(0), |rep| rep.local_ca_guid));
    if listening {
        cm.listen(&ListenParams { service_id: req.service_id, local: None, backlog: 1 }).unwrap();
    }
    cm.handle_mad(now, path, &talk[0].mad.emit());
    let mut events: Vec<CmEvent> = std::iter::from_fn(|| cm.poll_event()).collect();
    let mut translation = Translation { comm_id: (0, 0), psn: req.starting_psn, tid: (0, 0) };
    if let (Some(rep), Some(CmEvent::Request(request))) = (answer, events.first()) {
        let (id, request_path) = (request.id, request.path);
        assert_eq!(request_path, path);
        let params = cm.accept(now, id, &as_answer(&rep)).unwrap();
        assert_eq!((params.dest_qpn, params.sq_psn), (req.local_qpn, req.starting_psn));
        translation.comm_id = (rep.local_comm_id, id.0);
        translation.psn = params.rq_psn;
    }
    for captured in &talk[1..] {
        let mut expected = translation.apply(&captured.mad);
        if captured.from != us {
            cm.handle_mad(now, path, &expected.emit());
            events.extend(std::iter::from_fn(|| cm.poll_event()));
            continue;
        }
        if let CmMessage::Rep(rep) = &mut expected.message {
            rep.starting_psn = translation.psn;
        }
        assert_eq!(next(&mut cm), expected);
    }
    events
}

fn as_params(path: MadPath, req: &Req) -> ConnectParams {
    ConnectParams {
        gids: None,
        path,
        service_id: req.service_id,
        transport: Transport::Rc,
        qpn: req.local_qpn,
        pkey: req.pkey,
        path_mtu: Mtu::from_code(req.path_mtu).unwrap(),
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        flow_control: req.end_to_end_flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        ack_timeout: None,
        flow_label: req.primary.flow_label,
        traffic_class: 0,
        hop_limit: 64,
        private_data: req.private_data.to_vec(),
    }
}

fn as_answer(rep: &Rep) -> AcceptParams {
    AcceptParams {
        qpn: rep.local_qpn,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        flow_control: rep.end_to_end_flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        private_data: rep.private_data.to_vec(),
    }
}

/// What the program sees of an active connection from REQ to DREP.
fn assert_active_life(events: &[CmEvent]) {
    assert!(
        matches!(events, [CmEvent::Reply(_), CmEvent::Disconnected { cause: DisconnectCause::Local, .. }]),
        "{events:?}"
    );
}

fn assert_passive_life(events: &[CmEvent]) {
    assert!(
        matches!(
            events,
            [
                CmEvent::Request(_),
                CmEvent::Established { by: EstablishedBy::Rtu, .. },
                CmEvent::Disconnected { cause: DisconnectCause::Peer, .. }
            ]
        ),
        "{events:?}"
    );
}

#[test]
fn rping_over_ipv4_and_ipv6_and_nvme() {
    for (file, connections) in [("rping", 1), ("rping6", 1), ("nvme_rdma", 3)] {
        let talks = conversations(file);
        assert_eq!(talks.len(), connections, "{file}");
        for talk in talks {
            assert_eq!(talk.len(), 5, "{file}: REQ REP RTU DREQ DREP");
            assert_active_life(&replay_active(&talk));
            assert_passive_life(&replay_passive(&talk, true));
        }
    }
}

#[test]
fn no_listener() {
    let talks = conversations("cm_reject_no_listener");
    let [first, second] = &talks[..] else { panic!("two connections") };
    // Its DREQ was never answered: the server had been killed.
    assert_eq!(first.len(), 4);
    assert!(matches!(replay_active(first)[..], [CmEvent::Reply(_)]));
    assert_passive_life(&replay_passive(first, true));

    assert!(replay_passive(second, false).is_empty());
    let events = replay_active(second);
    let [CmEvent::Rejected { rejection, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(rejection.reason, RejReason::InvalidServiceId);
    assert_eq!(rejection.reason.code(), 8);
    assert!(rejection.info.is_empty());
}

/// The queue pair attributes that follow from the captured REQ and REP (IBTA §12.9.10).
#[test]
fn nvme_negotiation() {
    let talk = &conversations("nvme_rdma")[0];
    let events = replay_active(talk);
    let Some(CmEvent::Reply(reply)) = events.first() else { panic!("{events:?}") };
    let p = reply.params;
    assert_eq!((p.dest_qpn.get(), p.sq_psn.get()), (0x1b, 0xb55627));
    // The host offered 128 responder resources and no depth; nvmet took all and offered none.
    assert_eq!((p.max_rd_atomic, p.max_dest_rd_atomic), (0, 128));
    assert_eq!((p.retry_count, p.rnr_retry_count, p.ack_timeout), (7, 7, 19));
    assert_eq!((p.path_mtu, p.hop_limit, p.flow_label), (Mtu::M1024, 64, 0xf9334));
    // recfmt 0, crqsize 0x20.
    assert_eq!(reply.private_data[..4], [0, 0, 0x20, 0]);
    assert_eq!(reply.private_data.len(), 196);

    let events = replay_passive(talk, true);
    let Some(CmEvent::Request(request)) = events.first() else { panic!("{events:?}") };
    assert_eq!((request.responder_resources, request.initiator_depth), (0, 128));
    assert_eq!(request.private_data.len(), 92);
    // After the 36 bytes of the IP header: recfmt 0, qid 0, hrqsize 0x20, hsqsize 0x1f.
    assert_eq!(request.private_data[36..44], [0, 0, 0, 0, 0x20, 0, 0x1f, 0]);
}

/// Our QP1 packets are Linux's but for two bits: MigReq, which hardware peers want set, and AckReq, which means nothing on UD.
#[test]
fn packets_of_qp1() {
    let mut gsi = Gsi::default();
    let mut compared = 0;
    let mut psn = everywire_wire::Psn::new(0);
    for frame in frames("rping") {
        let Ok(udp) = UdpFrame::parse(&frame) else { continue };
        let Ok(theirs) = RocePacket::parse(udp.payload) else { continue };
        if theirs.bth.dest_qp != Qpn::GSI || theirs.bth.psn != psn {
            continue;
        }
        let mad = Gsi::mad(&theirs).unwrap();
        let ours = gsi.packet(mad);
        assert!(ours.bth.mig_req && !ours.bth.ack_req);
        let mut same = ours;
        same.bth.mig_req = theirs.bth.mig_req;
        same.bth.ack_req = theirs.bth.ack_req;
        same.icrc = theirs.icrc;
        assert_eq!(same, theirs);
        compared += 1;
        psn = psn.next();
    }
    assert_eq!(compared, 3);
}

/// The Starting PSN that one side puts into its REQ or REP is the PSN of the other side's first packet.
#[test]
fn starting_psn_is_the_peers_first() {
    let talk = &conversations("rping")[0];
    let CmMessage::Req(req) = talk[0].mad.message else { panic!("starts with REQ") };
    let CmMessage::Rep(rep) = talk[1].mad.message else { panic!("then REP") };
    let first = |to: IpAddr, qpn: Qpn| {
        frames("rping").iter().find_map(|frame| {
            let udp = UdpFrame::parse(frame).ok()?;
            let packet = RocePacket::parse(udp.payload).ok()?;
            let request = packet.bth.opcode.is_request() && packet.bth.dest_qp == qpn;
            (request && udp.ip.dst() == to).then_some(packet.bth.psn)
        })
    };
    let events = replay_active(talk);
    let Some(CmEvent::Reply(reply)) = events.first() else { panic!("{events:?}") };
    assert_eq!(Some(reply.params.sq_psn), first(talk[0].to, rep.local_qpn));
    // The passive side's part is in `replay_passive`: it sends from the REQ's Starting PSN.
    assert_eq!(Some(req.starting_psn), first(talk[0].from, req.local_qpn));
}
