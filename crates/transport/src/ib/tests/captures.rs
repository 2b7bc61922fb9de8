//! Linux kernels' own conversations (soft-RoCE, Linux 6.1): we take one side's place, the captured packets of the other
//! side go in, and what we send is held against what the kernel sent.
//!
//! Not compared: MigReq (we set it), AckReq within a message, queue pair numbers (both ends are the bench's), and how many
//! acknowledgements stand for several packets.

use everywire_wire::{Syndrome, UdpFrame};

use super::*;
use crate::ib::tests::memory::Region;

/// The kernel that connects in every capture, and the one that listens.
const CLIENT: &str = "192.168.77.12";
const SERVER: &str = "192.168.77.11";

/// UDP payloads of RoCE packets, with their sender, in order. QP1 left out.
fn packets(file: &str) -> Vec<(String, Vec<u8>)> {
    let path = format!("{}/../../captures/{file}.pcap", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let mut all = Vec::new();
    let mut rest = &bytes[24..];
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        if let Ok(udp) = UdpFrame::parse(&rest[16..16 + len])
            && udp.is_roce()
        {
            all.push((udp.ip.src().to_string(), udp.payload.to_vec()));
        }
        rest = &rest[16 + len..];
    }
    all.retain(|(_, p)| RocePacket::parse(p).unwrap().bth.dest_qp != Qpn::GSI);
    all
}

/// A bench whose queue pair `at` takes the place of the kernel that sent from `psns[at]`.
fn bench(psns: [u32; 2]) -> Bench {
    let mut bench = Bench::new(Setup { psns, rd_atomic: 16, ..Setup::default() });
    // Only the node under test runs; what it sends goes nowhere.
    bench.judge = Box::new(|_, _| Fate::Drop);
    bench
}

/// Maps the memory that a captured request names, at node `at`.
fn map(bench: &mut Bench, at: usize, va: u64, rkey: u32, bytes: Vec<u8>) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let region = Region { pd: PD, key: rkey, base: va, bytes, access, valid: true };
    bench.nodes[at].env.memory.regions.push(region);
}

/// What node `at` sends now, deferred acknowledgements included.
fn output(bench: &mut Bench, at: usize) -> Vec<Vec<u8>> {
    bench.transmit();
    bench.now += Duration::from_micros(50);
    bench.transmit();
    let log = std::mem::take(&mut bench.log);
    log.into_iter().filter(|(from, _)| *from == at).map(|(_, bytes)| bytes).collect()
}

/// The packet without what differs for good reason.
fn essence(bytes: &[u8]) -> Vec<u8> {
    let mut packet = RocePacket::parse(bytes).unwrap();
    packet.bth.mig_req = false;
    packet.bth.ack_req &= packet.bth.opcode.ends_message();
    packet.bth.dest_qp = Qpn::new(0);
    packet.icrc = [0; 4];
    let mut out = Vec::new();
    packet.emit(&mut out);
    out
}

fn essences(all: &[Vec<u8>]) -> Vec<Vec<u8>> {
    all.iter().map(|p| essence(p)).collect()
}

fn from<'a>(all: &'a [(String, Vec<u8>)], who: &'a str) -> impl Iterator<Item = &'a Vec<u8>> {
    all.iter().filter(move |(src, _)| src == who).map(|(_, p)| p)
}

fn first_psn<'a>(mut all: impl Iterator<Item = &'a Vec<u8>>) -> u32 {
    all.find_map(|p| Some(RocePacket::parse(p).unwrap().bth).filter(|b| b.opcode.is_request()))
        .unwrap()
        .psn
        .get()
}

fn feed(bench: &mut Bench, to: usize, bytes: &[u8]) {
    bench.forge(to, &RocePacket::parse(bytes).unwrap());
}

/// ib_read_bw: ten READs of 8 KiB, all outstanding at once. We ask exactly as the kernel asked, and take its answers.
#[test]
fn read_bw_as_the_requester() {
    let all = packets("ib_read_bw");
    let requests: Vec<Vec<u8>> = from(&all, CLIENT).cloned().collect();
    assert_eq!(requests.len(), 10);
    let reth = RocePacket::parse(&requests[0]).unwrap().reth.unwrap();
    let mut bench = bench([first_psn(requests.iter()), 1]);
    // The kernel's receiver has no socket buffer to overflow.
    bench.nodes[0].env.read_window = PeerWindow::new(200_000, 200_000);
    for wr_id in 0..10 {
        let (into, remote) =
            (bench.nodes[0].sge(wr_id * 8192, 8192), Remote { addr: reth.va, rkey: reth.rkey });
        bench.nodes[0].send(read(wr_id, into, remote));
    }
    assert_eq!(essences(&output(&mut bench, 0)), essences(&requests));
    let mut data = Vec::new();
    for response in from(&all, SERVER) {
        data.extend_from_slice(RocePacket::parse(response).unwrap().payload);
        feed(&mut bench, 0, response);
    }
    assert_eq!(bench.nodes[0].sent(), ok(0..10));
    assert_eq!(bench.nodes[0].bytes()[..81_920], data);
    assert!(output(&mut bench, 0).is_empty());
    bench.assert_idle();
}

/// The same from the other end: the kernel's requests get the kernel's answers, byte for byte.
#[test]
fn read_bw_as_the_responder() {
    let all = packets("ib_read_bw");
    let answers: Vec<Vec<u8>> = from(&all, SERVER).cloned().collect();
    let reth = RocePacket::parse(&all[0].1).unwrap().reth.unwrap();
    let first: Vec<u8> =
        answers.iter().take(8).flat_map(|p| RocePacket::parse(p).unwrap().payload.to_vec()).collect();
    let mut bench = bench([first_psn(from(&all, CLIENT)), 1]);
    map(&mut bench, 1, reth.va, reth.rkey.0, first);
    from(&all, CLIENT).for_each(|request| feed(&mut bench, 1, request));
    assert_eq!(essences(&output(&mut bench, 1)), essences(&answers));
}

/// ib_atomic_lat: fetch-and-adds one by one, both ends.
#[test]
fn atomic_lat_both_ends() {
    let all = packets("ib_atomic_lat");
    let parsed: Vec<RocePacket<'_>> = all.iter().map(|(_, p)| RocePacket::parse(p).unwrap()).collect();
    let eth = parsed[0].atomic_eth.unwrap();
    let original = parsed[1].atomic_ack.unwrap().original;
    let mut us = bench([parsed[0].bth.psn.get(), 1]);
    // Their counter is in their byte order's memory as a host number, as in ours.
    map(&mut us, 1, eth.va, eth.rkey.0, original.to_ne_bytes().to_vec());
    for (i, pair) in all.chunks(2).enumerate() {
        let remote = Remote { addr: eth.va, rkey: eth.rkey };
        let into = us.nodes[0].sge(i as u64 * 8, 8);
        us.nodes[0]
            .send(SendWr::new(i as u64, SendOp::FetchAdd { remote, add: eth.swap_add }).with_sges([into]));
        assert_eq!(essences(&output(&mut us, 0)), [essence(&pair[0].1)]);
        feed(&mut us, 1, &pair[0].1);
        assert_eq!(essences(&output(&mut us, 1)), [essence(&pair[1].1)]);
        feed(&mut us, 0, &pair[1].1);
        assert_eq!(us.nodes[0].sent(), ok([i as u64]));
        let got = u64::from_ne_bytes(us.nodes[0].bytes()[i * 8..i * 8 + 8].try_into().unwrap());
        assert_eq!(got, parsed[2 * i + 1].atomic_ack.unwrap().original);
    }
}

/// Ping-pongs of SENDs: each side in turn sends a message and acknowledges the other's.
fn ping_pong(file: &str) {
    let all = packets(file);
    let psns = [first_psn(from(&all, CLIENT)), first_psn(from(&all, SERVER))];
    let mut us = bench(psns);
    for at in 0..2 {
        let ours = if at == 0 { CLIENT } else { SERVER };
        for id in 0..20 {
            us.nodes[at].recv(id, 100_000, 8192);
        }
        let (mut message, mut sent) = (Vec::new(), 0);
        let mut expected = Vec::new();
        let mut got = Vec::new();
        for (who, bytes) in &all {
            let packet = RocePacket::parse(bytes).unwrap();
            if who != ours {
                feed(&mut us, at, bytes);
                got.extend(output(&mut us, at));
                continue;
            }
            expected.push(essence(bytes));
            if packet.bth.opcode.is_request() {
                message.extend_from_slice(packet.payload);
                if packet.bth.opcode.ends_message() {
                    us.nodes[at].bytes()[..message.len()].copy_from_slice(&message);
                    let sge = us.nodes[at].sge(0, message.len() as u32);
                    us.nodes[at].send(send(sent, sge));
                    sent += 1;
                    message.clear();
                    got.extend(output(&mut us, at));
                }
            }
        }
        assert_eq!(essences(&got), expected, "{file} as {ours}");
        assert_eq!(us.nodes[at].sent(), ok(0..sent));
    }
}

#[test]
fn rc_pingpong_both_ends() {
    ping_pong("rc_pingpong");
}

#[test]
fn send_lat_both_ends() {
    ping_pong("ib_send_lat");
}

/// ib_send_bw over UC: the kernel's packets land, and ours look like them.
#[test]
fn send_bw_uc_both_ends() {
    let all = packets("ib_send_bwUC");
    let psn = first_psn(all.iter().map(|(_, p)| p));
    let mut us = Bench::new(Setup { ty: QpType::Uc, psns: [psn, 1], ..Setup::default() });
    let messages =
        all.iter().filter(|(_, p)| RocePacket::parse(p).unwrap().bth.opcode.ends_message()).count();
    let data: Vec<u8> =
        all.iter().flat_map(|(_, p)| RocePacket::parse(p).unwrap().payload.to_vec()).collect();
    let len = data.len() / messages;
    for id in 0..messages as u64 {
        us.nodes[1].recv(id, id * len as u64, len as u32);
    }
    all.iter().for_each(|(_, p)| feed(&mut us, 1, p));
    assert_eq!(us.nodes[1].received(), ok(0..messages as u64));
    assert_eq!(us.nodes[1].bytes()[..data.len()], data);
    us.nodes[0].bytes()[..data.len()].copy_from_slice(&data);
    for id in 0..messages as u64 {
        let sge = us.nodes[0].sge(id * len as u64, len as u32);
        us.nodes[0].send(send(id, sge));
    }
    us.judge = Box::new(|_, _| Fate::Drop);
    let sent = essences(&output(&mut us, 0));
    assert_eq!(sent, all.iter().map(|(_, p)| essence(p)).collect::<Vec<_>>());
}

/// ib_send_bw over UD.
#[test]
fn send_bw_ud_both_ends() {
    let all = packets("ib_send_bwUD");
    let first = RocePacket::parse(&all[0].1).unwrap();
    let mut us = Bench::new(Setup { ty: QpType::Ud, psns: [first.bth.psn.get(), 1], ..Setup::default() });
    let deth = first.deth.unwrap();
    for at in 0..2 {
        us.nodes[at].modify(&QpAttr { qkey: Some(deth.qkey), ..QpAttr::to(QpState::Rts) });
    }
    for (id, (_, bytes)) in all.iter().enumerate() {
        us.nodes[1].recv(id as u64, 0, 40 + 4096);
        feed(&mut us, 1, bytes);
        let wc = us.nodes[1].env.recvs.pop_front().unwrap();
        let packet = RocePacket::parse(bytes).unwrap();
        assert_eq!((wc.wr_id, wc.byte_len as usize), (id as u64, 40 + packet.payload.len()));
        assert_eq!(wc.src_qp, packet.deth.unwrap().src_qp);
        assert_eq!(us.nodes[1].bytes()[40..40 + packet.payload.len()], *packet.payload);
    }
}

/// lossy_write: ib_write_bw of 16 KiB messages over a link that loses, delays and reorders. Every answer that the kernel
/// gave to these packets, we give too: sequence NAKs, acknowledgements of duplicates, message numbers.
#[test]
fn lossy_write_as_the_responder() {
    let all = packets("lossy_write");
    let requests: Vec<&Vec<u8>> = from(&all, CLIENT).collect();
    // The first PSN is that of the first message; its packet was not the first to arrive.
    let reth = requests.iter().find_map(|p| RocePacket::parse(p).unwrap().reth).unwrap();
    let psn = requests.iter().map(|p| RocePacket::parse(p).unwrap().bth.psn.get()).min().unwrap();
    let mut us = bench([psn, 1]);
    map(&mut us, 1, reth.va, reth.rkey.0, vec![0; reth.length as usize]);
    let mut ours: Vec<(u32, Syndrome, u32)> = Vec::new();
    for request in &requests {
        feed(&mut us, 1, request);
        for answer in output(&mut us, 1) {
            let packet = RocePacket::parse(&answer).unwrap();
            let aeth = packet.aeth.unwrap();
            ours.push((packet.bth.psn.get(), aeth.syndrome, aeth.msn));
        }
    }
    assert_eq!(us.nodes[1].qp.state(), QpState::Rts, "the kernel broke no rule");
    let theirs = from(&all, SERVER).map(|p| RocePacket::parse(p).unwrap());
    let mut compared = 0;
    for packet in theirs {
        let aeth = packet.aeth.unwrap();
        let answer = (packet.bth.psn.get(), aeth.syndrome, aeth.msn);
        assert!(ours.contains(&answer), "{answer:?} is not among {ours:?}");
        compared += 1;
    }
    assert_eq!(compared, 27);
}

/// The same answers at the requester: a sequence NAK makes us go back to its PSN at once, an acknowledgement completes the
/// messages that end at or before it.
#[test]
fn lossy_write_as_the_requester() {
    let all = packets("lossy_write");
    let psn = from(&all, CLIENT).map(|p| RocePacket::parse(p).unwrap().bth.psn.get()).min().unwrap();
    let mut us = bench([psn, 1]);
    let remote = Remote { addr: 0x1000, rkey: RKey(1) };
    for wr_id in 0..20 {
        let sge = us.nodes[0].sge(0, 16_384);
        us.nodes[0].send(write(wr_id, sge, remote));
    }
    output(&mut us, 0);
    let (mut acked, mut done) = (psn, 0);
    for answer in from(&all, SERVER) {
        let packet = RocePacket::parse(answer).unwrap();
        let at = packet.bth.psn.get();
        let is_nak = packet.aeth.unwrap().syndrome.0 == 0x60;
        let una = if is_nak { at } else { at + 1 };
        let is_news = una > acked || (is_nak && una == acked);
        acked = acked.max(una);
        feed(&mut us, 0, answer);
        let complete = u64::from((acked - psn) / 16);
        assert_eq!(us.nodes[0].sent(), ok(done..complete), "after PSN {at}");
        done = complete;
        let sent = output(&mut us, 0);
        if is_nak && is_news && !sent.is_empty() {
            assert_eq!(
                RocePacket::parse(&sent[0]).unwrap().bth.psn.get(),
                at,
                "goes back to what is missing"
            );
        }
    }
    assert_eq!(done, 2, "the capture acknowledges two messages");
    assert_eq!(us.nodes[0].qp.state(), QpState::Rts);
}
