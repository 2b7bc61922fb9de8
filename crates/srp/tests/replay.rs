//! Linux's bytes (captures/srp*.pcap) said again, over the simulator's wire: its login to this target, its target's answer to this
//! initiator, and the WRITE of no bytes that follows a login. Expectations: SRP r16a §6.4–§6.6, IBTA C9-88.

mod capture;
mod lab;

use std::time::Duration;

use capture::{From, What, messages};
use everywire_srp::PortId;
use everywire_srp::iu::{InitiatorIu, LoginReject, LoginRequest, LoginResponse, RejectReason, TargetIu};
use everywire_srp::rdma::Initiator;
use everywire_verbs::{
    Access, CmError, CmErrorKind, ConnParam, ConnectOptions, Connection, Cq, ListenOptions, MemoryRegion, Qp,
    QpCaps, QpInit, QpType, RKey, RecvWr, RejReason, Remote, SendOp, SendWr, WcOpcode, WcStatus,
};
use lab::{Host, LIMIT, Lab, address};

/// Linux's target port in the captures.
const THEIRS: PortId = PortId::new(0x5054_00ff_fe77_000b, 0x5054_00ff_fe77_000b);
const LEN: usize = 8448;
const RECEIVES: usize = 8;

/// The private data of the login in a capture.
fn login(name: &str) -> Vec<u8> {
    let found = messages(name).into_iter().find_map(|(_, _, what)| match what {
        What::Request(private) => Some(private),
        _ => None,
    });
    found.expect("a login")
}

/// A peer that is nothing but a queue pair.
struct Raw {
    qp: Qp,
    cq: Cq,
    memory: MemoryRegion,
}

impl Raw {
    fn new(host: &Host) -> Raw {
        let pd = host.device.alloc_pd().expect("a domain");
        let cq = host.device.create_cq(64).expect("a queue");
        let caps = QpCaps {
            max_send_wr: 16,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 256,
        };
        let qp = pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) }).expect("a queue pair");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.register(LEN * RECEIVES, access).expect("memory");
        qp.to_init(Access::REMOTE_READ | Access::REMOTE_WRITE).expect("INIT");
        for at in 0..RECEIVES {
            let room = memory.sge(at * LEN..(at + 1) * LEN);
            qp.post_recv(RecvWr::new(at as u64, [room])).expect("room");
        }
        Raw { qp, cq, memory }
    }

    /// The next completion of this kind, which must be good.
    async fn next(&self, opcode: WcOpcode) -> (u64, usize) {
        let mut batch = Vec::new();
        loop {
            self.cq.wait(&mut batch, 1).await.expect("a queue");
            let one = batch.pop().expect("one");
            assert_eq!(one.status, WcStatus::Success, "{:?}", one.opcode);
            if one.opcode == opcode {
                return (one.wr_id, one.byte_len as usize);
            }
        }
    }

    async fn hear(&self) -> Vec<u8> {
        let (at, len) = self.next(WcOpcode::Recv).await;
        self.memory.read_vec(at as usize * LEN, len).expect("inside")
    }
}

async fn log_in(host: &Host, private: &[u8]) -> Result<(Raw, Connection), CmError> {
    let raw = Raw::new(host);
    let param = ConnParam { initiator_depth: 0, ..ConnParam::with_private_data(private) };
    let cm = host.device.connect(ConnectOptions::new(address(), &raw.qp).param(param)).await?;
    Ok((raw, cm))
}

/// Linux's login, then its first commands; what ib_srpt granted, and nothing less, is granted here.
#[test]
fn linuxs_initiator_is_answered() {
    let private = login("srp");
    let theirs = messages("srp").into_iter().find_map(|(_, _, what)| match what {
        What::Reply(private) => Some(private),
        _ => None,
    });
    let Ok(TargetIu::Login(theirs)) = TargetIu::parse(&theirs.expect("an answer")) else {
        panic!("no answer")
    };
    let lab = Lab::new(1);
    lab.add_port("linux", THEIRS);
    lab.run(|host| async move {
        let (raw, cm) = log_in(&host, &private).await.unwrap_or_else(|e| panic!("{e}"));
        let TargetIu::Login(ours) = TargetIu::parse(cm.private_data()).expect("an information unit") else {
            panic!("{:02x?}", cm.private_data())
        };
        let request = LoginRequest::parse_rdma_cm(&private).expect("a login");
        agreed(&ours, request.it_iu_len);
        assert_eq!((ours.tag, ours.formats, ours.immediate), (theirs.tag, theirs.formats, theirs.immediate));
        assert_eq!(ours.multi_channel, theirs.multi_channel, "there was no channel before");
        assert!(ours.request_limit_delta >= theirs.request_limit_delta);
        // Commands of the captured host without data, byte for byte; each is answered once, with its own tag.
        let mut asked = 0;
        for (_, from, what) in messages("srp") {
            let (From::Initiator, What::Send(bytes)) = (from, what) else { continue };
            let Ok(InitiatorIu::Command(command)) = InitiatorIu::parse(&bytes) else { continue };
            if !command.out.is_empty() || !command.into.is_empty() || command.cdb[0] != 0 {
                continue;
            }
            raw.qp.post_send(SendWr::new(99, SendOp::Send).with_inline(bytes)).expect("room");
            let answer = raw.hear().await;
            let Ok(TargetIu::Response(response)) = TargetIu::parse(&answer) else { panic!("{answer:02x?}") };
            assert_eq!((response.tag, response.request_limit_delta), (command.tag, 1));
            asked += 1;
            if asked == 4 {
                break;
            }
        }
        assert!(asked > 0, "TEST UNIT READY is in the capture");
        cm.disconnect().await;
    });
}

/// SRP §6.5: no shorter information units than were asked for, and room for a response.
fn agreed(ours: &LoginResponse, it_iu_len: u32) {
    assert!(ours.request_limit_delta > 0 && ours.max_it_iu_len >= it_iu_len && ours.max_ti_iu_len >= 64);
}

/// The same login at a target that has no such port: REJ 28, and SRP_LOGIN_REJ with the login's tag and the reason.
#[test]
fn linuxs_initiator_is_refused_in_srps_words() {
    for name in ["srp", "srp_login_rejected"] {
        let private = login(name);
        let lab = Lab::new(2);
        lab.run(|host| async move {
            let Err(error) = log_in(&host, &private).await else { panic!("it was admitted") };
            let CmErrorKind::Rejected { reason, private_data, .. } = error.kind() else { panic!("{error}") };
            assert_eq!(*reason, RejReason::ConsumerReject);
            let Ok(TargetIu::Reject(reject)) = TargetIu::parse(private_data) else { panic!("{error}") };
            let LoginReject { tag, reason, formats } = reject;
            assert_eq!((tag, reason, formats.0), (0, RejectReason::UNABLE_TO_ASSOCIATE, 6));
        });
    }
}

/// Linux's target writes no bytes to address 0 with key 0 right after RTU, and the initiator must acknowledge it (IBTA C9-88: a
/// WRITE of no bytes has no key to check). Until it has, ib_srpt's channel is not live.
#[test]
fn the_write_of_no_bytes_after_a_login_is_acknowledged() {
    let reply = messages("srp").into_iter().find_map(|(_, _, what)| match what {
        What::Reply(private) => Some(private),
        _ => None,
    });
    let reply = reply.expect("an answer");
    let first = messages("srp").into_iter().find(|(_, _, what)| matches!(what, What::Write { .. }));
    let Some((_, From::Target, What::Write { va: 0, key: 0, bytes })) = first else { panic!("{first:?}") };
    assert_eq!(bytes, [0u8; 0], "as in the capture");
    let lab = Lab::bare(3);
    let there = Host { rt: lab.world.rt(lab.target_host), device: lab.world.device(lab.target_host) };
    let target = lab.world.rt(lab.target_host).spawn(async move {
        let listener = there.device.listen(address(), ListenOptions::default()).expect("listens");
        let request = listener.next_request().await.expect("a login");
        let raw = Raw::new(&there);
        let param = ConnParam { responder_resources: 0, ..ConnParam::with_private_data(reply) };
        let cm = request.accept(&raw.qp, param).await.expect("accepts");
        let nowhere = SendOp::Write { remote: Remote { addr: 0, rkey: RKey(0) } };
        raw.qp.post_send(SendWr::new(7, nowhere)).expect("room");
        assert_eq!(raw.next(WcOpcode::RdmaWrite).await.0, 7);
        cm.closed().await;
    });
    let (rt, device) = (lab.world.rt(lab.host), lab.world.device(lab.host));
    let program = async move {
        let options = lab::options();
        let initiator = Initiator::connect(&rt, &device, address(), THEIRS, options).await;
        let initiator = initiator.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(initiator.credits(), [(128, 0)]);
        rt.sleep(Duration::from_secs(1)).await;
        initiator.log_out().await;
        target.await.expect("the target's end");
    };
    lab.world.block_on(LIMIT, program).expect("ends in time");
}
