//! Both halves end to end over RDMA in virtual time (RFC 7145): every wire, every way that data moves, what goes wrong.

mod lab;
mod rdma_lab;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use everywire_iscsi::initiator::discover_rdma;
use everywire_iscsi::keys::Key;
use everywire_iscsi::pdu::{
    FINAL, Header, LogoutReason, LogoutRequest, Pdu, ScsiCommand, ScsiResponse, TaskFunction, TaskRequest,
    TaskResponse,
};
use everywire_iscsi::rdma::{
    self as iser, ControlHeader, HEADER_LEN, Hello, HelloReply, RdmaOptions, Tagged,
};
use everywire_iscsi::session::target::SessionOptions;
use everywire_iscsi::target::TargetOptions;
use everywire_verbs::DisconnectReason;
use lab::{LIMIT, STUCK, TARGET, name, pattern};
use rdma_lab::raw::{LINUX, Raw};
use rdma_lab::{RdmaLab, WIRES, address, options};

/// A login, a read, a write, and the read again, on every wire; then nothing is left of it on either side.
#[test]
fn every_wire() {
    for (wire, host) in WIRES {
        let lab = RdmaLab::on(1, host);
        lab.disk.bytes.borrow_mut()[..4096].copy_from_slice(&pattern(7, 4096));
        lab.run(|host| async move {
            let found = discover_rdma(&host.rt, host.binding(), address(), options()).await.expect("a list");
            let found: Vec<_> = found.into_iter().map(|one| (one.name, one.addresses)).collect();
            assert_eq!(found, [(name(TARGET), vec![format!("{},1", address())])]);
            let session = host.connect(options()).await.expect("logs in");
            let disk = session.disk(0).await.expect("a disk");
            assert_eq!(disk.read(0, 4096).await.expect("reads"), pattern(7, 4096), "{wire}");
            // IS-20: what goes with the command, what is fetched, and both.
            for (i, len) in [512, 4096, 8192, 8704, 65536, 1 << 20, (8 << 20) + 512].into_iter().enumerate() {
                let bytes = pattern(i, len);
                disk.write(i as u64 * 512, bytes.clone().into()).await.expect("writes");
                assert_eq!(disk.read(i as u64 * 512, len).await.expect("reads"), bytes, "{wire}: {len}");
            }
            disk.flush().await.expect("flushes");
            session.logout().await;
        });
        lab.world.run_for(Duration::from_secs(30));
        assert_eq!((lab.target.sessions(), lab.disk.nexuses.get(), lab.memory_in_use()), (0, 0, 0), "{wire}");
        let usage = lab.world.device(lab.host).usage();
        assert_eq!((usage.qps, usage.cqs, usage.mrs), (0, 0, 0), "{wire}: {usage:?}");
        let usage = lab.world.device(lab.target_host).usage();
        assert_eq!((usage.qps, usage.cqs, usage.mrs), (0, 0, 1), "{wire}: the listener's memory: {usage:?}");
    }
}

fn read_10(lba: u8, blocks: u8) -> [u8; 10] {
    [0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0]
}

fn write_10(lba: u8, blocks: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, blocks, 0]
}

/// What Linux's initiator sends is answered as the standard asks: keys, a READ by RDMA WRITE, a WRITE of which 512 bytes come
/// with the command and the rest by RDMA READ from an STag that covers no more than that (RFC 7145 §6, §7.3).
#[test]
fn as_linux_does_it() {
    let lab = RdmaLab::new(2);
    lab.disk.bytes.borrow_mut()[..2048].copy_from_slice(&pattern(3, 2048));
    let disk = lab.disk.clone();
    lab.run(|host| async move {
        let raw = Raw::connect(&host, 0xc0).await;
        let (status, keys) = raw.login(LINUX).await;
        assert_eq!(status, (0, 0), "{keys:?}");
        let key = |name: &str| keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        for (name, value) in [
            ("RDMAExtensions", "Yes"),
            ("InitialR2T", "Yes"),
            ("ImmediateData", "Yes"),
            ("TargetRecvDataSegmentLength", "8192"),
            ("InitiatorRecvDataSegmentLength", "262144"),
        ] {
            assert_eq!(key(name), Some(value), "{name}");
        }
        assert_eq!((key("MaxRecvDataSegmentLength"), key("HeaderDigest")), (None, None), "§6.1, §6.2");
        let header = ControlHeader { write: None, read: Some(raw.tag(100)) };
        raw.say(header, &raw.command(7, ScsiCommand::READ, 2048, &read_10(0, 4)));
        let (bytes, invalidated) = raw.message().await.expect("a response");
        assert_eq!(invalidated, None, "the initiator does not take SEND with Invalidate");
        let pdu = Pdu::from_bytes(&bytes.slice(HEADER_LEN..), 8192).expect("a PDU");
        let Header::ScsiResponse(response) = pdu.header else { panic!("{pdu:?}") };
        assert_eq!((response.itt, response.status, response.exp_data_sn), (7, 0, 0));
        assert_eq!(raw.data.read_vec(100, 2048).expect("inside"), pattern(3, 2048));
        raw.data.write_at(4096, &pattern(4, 1536)).expect("inside");
        let header = ControlHeader { write: Some(raw.tag(4096)), read: None };
        let mut write = raw.command(8, ScsiCommand::WRITE, 2048, &write_10(16, 4));
        write.data = pattern(5, 512).into();
        raw.say(header, &write);
        let pdu = raw.hear().await.expect("a response");
        assert!(
            matches!(pdu.header, Header::ScsiResponse(ScsiResponse { itt: 8, status: 0, .. })),
            "{pdu:?}"
        );
        let written = disk.bytes.borrow()[16 * 512..20 * 512].to_vec();
        assert_eq!(written, [pattern(5, 512), pattern(4, 1536)].concat());
    });
}

/// An initiator that says its write STags cover all of a command's data is read from where the rest lies (RFC 7145 §6.8).
#[test]
fn tagged_buffers_that_cover_everything() {
    let lab = RdmaLab::new(3);
    let disk = lab.disk.clone();
    lab.run(|host| async move {
        let raw = Raw::connect(&host, 0xc0).await;
        let keys = [LINUX, &[("TaggedBufferForSolicitedDataOnly", "No")]].concat();
        assert_eq!(raw.login(&keys).await.0, (0, 0));
        raw.data.write_at(0, &pattern(4, 2048)).expect("inside");
        let mut write = raw.command(8, ScsiCommand::WRITE, 2048, &write_10(0, 4));
        write.data = pattern(4, 512).into();
        raw.say(ControlHeader { write: Some(raw.tag(0)), read: None }, &write);
        raw.hear().await.expect("a response");
        assert_eq!(disk.bytes.borrow()[..2048], pattern(4, 2048));
    });
}

/// What breaks the rules ends its own connection, or its own command, and nothing else (RFC 7145 §9.3, §10.1).
#[test]
fn wrong_tags_and_messages_end_their_connection() {
    let lab = RdmaLab::new(4);
    lab.run(|host| async move {
        let session = host.connect(options()).await.expect("logs in");
        let disk = session.disk(0).await.expect("a disk");
        for case in 0..8 {
            let raw = Raw::connect(&host, 0xc0).await;
            assert_eq!(raw.login(LINUX).await.0, (0, 0));
            let bad = Tagged { stag: raw.tag(0).stag ^ 0x100, ..raw.tag(0) };
            let outside = Tagged { base: raw.tag(0).base + (1 << 20), ..raw.tag(0) };
            let read = raw.command(1, ScsiCommand::READ, 2048, &read_10(0, 4));
            let hello = Hello { max_version: 10, min_version: 10, ird: 1 };
            match case {
                0 => raw.say(ControlHeader { write: None, read: Some(bad) }, &read),
                1 => raw.say(ControlHeader { write: None, read: Some(outside) }, &read),
                2 => raw.say(ControlHeader::default(), &read),
                3 => {
                    raw.cmd_sn.set(1);
                    let write = raw.command(1, ScsiCommand::WRITE, 2048, &write_10(0, 4));
                    raw.say(ControlHeader { write: Some(bad), read: None }, &write);
                }
                4 => raw.bytes(&[0x10; 20]),
                5 => raw.bytes(&[0xf0; 76]),
                6 => raw.bytes(&iser::Header::Hello(hello).emit()),
                _ => raw
                    .bytes(&[&iser::Header::Control(ControlHeader::default()).emit()[..], &[1; 60]].concat()),
            }
            assert!(raw.hear().await.is_none(), "case {case}");
            assert_eq!(disk.read(0, 512).await.expect("reads"), vec![0; 512], "case {case}");
        }
        assert_eq!(session.reconnects(), 0);
        session.logout().await;
    });
    lab.world.run_for(Duration::from_secs(30));
    assert_eq!((lab.target.sessions(), lab.disk.nexuses.get(), lab.memory_in_use()), (0, 0, 0));
}

/// A write whose data has no STag ends with the sense data of RFC 7143 §11.4.7.2; the session goes on.
#[test]
fn a_write_without_its_tag_ends_alone() {
    let lab = RdmaLab::new(5);
    lab.run(|host| async move {
        let raw = Raw::connect(&host, 0xc0).await;
        assert_eq!(raw.login(LINUX).await.0, (0, 0));
        raw.say(ControlHeader::default(), &raw.command(1, ScsiCommand::WRITE, 1024, &write_10(0, 2)));
        let pdu = raw.hear().await.expect("a response");
        assert!(
            matches!(pdu.header, Header::ScsiResponse(ScsiResponse { itt: 1, status: 2, .. })),
            "{pdu:?}"
        );
        assert_eq!((pdu.data[4] & 15, pdu.data[14]), (0x0b, 0x0c), "ABORTED COMMAND, write error");
        raw.say(ControlHeader::default(), &raw.command(2, 0, 0, &[0; 6]));
        let pdu = raw.hear().await.expect("a response");
        assert!(
            matches!(pdu.header, Header::ScsiResponse(ScsiResponse { itt: 2, status: 0, .. })),
            "{pdu:?}"
        );
    });
}

/// ABORT TASK of a command that never ends: its answer, no status, and no memory held (RFC 7143 §11.6).
#[test]
fn aborts() {
    let lab = RdmaLab::new(6);
    lab.run(|host| async move {
        let raw = Raw::connect(&host, 0xc0).await;
        assert_eq!(raw.login(LINUX).await.0, (0, 0));
        raw.say(ControlHeader::default(), &raw.command(9, 0, 0, &[STUCK]));
        let cmd_sn = raw.cmd_sn.get();
        let abort = TaskRequest {
            flags: FINAL | TaskFunction::AbortTask.code(),
            itt: 10,
            ref_tag: 9,
            cmd_sn,
            ref_cmd_sn: cmd_sn - 1,
            ..TaskRequest::default()
        };
        raw.say(ControlHeader::default(), &Pdu::new(abort).immediate());
        let pdu = raw.hear().await.expect("an answer");
        assert!(
            matches!(pdu.header, Header::TaskResponse(TaskResponse { itt: 10, response: 0, .. })),
            "{pdu:?}"
        );
        // The next thing that is heard is the next command's status.
        raw.say(ControlHeader::default(), &raw.command(11, 0, 0, &[0; 6]));
        let pdu = raw.hear().await.expect("a response");
        assert!(matches!(pdu.header, Header::ScsiResponse(ScsiResponse { itt: 11, .. })), "{pdu:?}");
    });
    lab.world.run_for(Duration::from_secs(30));
    assert_eq!((lab.target.sessions(), lab.disk.nexuses.get(), lab.memory_in_use()), (0, 0, 0));
}

/// A session that would go on as a stream is refused (RFC 7145 §5.1), and takes nobody's place.
#[test]
fn without_rdma_extensions() {
    let lab = RdmaLab::new(7);
    lab.run(|host| async move {
        let raw = Raw::connect(&host, 0x80).await;
        let keys: Vec<_> = LINUX.iter().copied().filter(|(key, _)| *key != "RDMAExtensions").collect();
        let keys: Vec<_> = keys.into_iter().filter(|(key, _)| !key.contains("RecvData")).collect();
        assert_eq!(raw.login(&keys).await.0, (2, 0));
        assert!(raw.hear().await.is_none());
    });
    lab.world.run_for(Duration::from_secs(5));
    assert_eq!(lab.target.sessions(), 0);
}

/// RFC 7145 §5.1.3: Hello and its answer, where the initiator asks for them; ours, and one of an unknown version.
#[test]
fn hello() {
    let lab = RdmaLab::on(8, everywire_sim::HostConfig::iwarp);
    lab.run(|host| async move {
        let mut options = options();
        options.offers.set(Key::iSERHelloRequired, "Yes");
        let session = host.connect(options).await.expect("logs in");
        assert_eq!(session.disk(0).await.expect("a disk").read(0, 512).await.expect("reads"), vec![0; 512]);
        session.logout().await;
        let raw = Raw::connect(&host, 0xc0).await;
        let keys = [LINUX, &[("iSERHelloRequired", "Yes")]].concat();
        assert_eq!(raw.login(&keys).await.0, (0, 0));
        let hello = Hello { max_version: 3, min_version: 1, ird: 4 };
        raw.bytes(&iser::Header::Hello(hello).emit());
        let (bytes, _) = raw.message().await.expect("an answer");
        let reply = HelloReply { reject: true, max_version: 10, version: 10, ord: 4 };
        assert_eq!(iser::Header::parse(&bytes), Ok(iser::Header::HelloReply(reply)));
        assert!(raw.hear().await.is_none());
    });
}

/// The target's host dies under writes and comes back: nobody is told, and every byte is there.
#[test]
fn the_target_dies_and_comes_back() {
    for (wire, host) in WIRES {
        let lab = RdmaLab::on(9, host);
        let session = lab.run(|host| async move { host.connect(options()).await.expect("logs in") });
        let (rt, writing) = (lab.host().rt, session.clone());
        let done = Rc::new(Cell::new(0));
        let count = done.clone();
        let work = rt.spawn(async move {
            let disk = writing.disk(0).await.expect("a disk");
            for i in 0..400 {
                disk.write(i * 65536, pattern(i as usize, 65536).into()).await.expect("writes");
                count.set(i);
            }
        });
        assert!(lab.world.run_until(LIMIT, || done.get() >= 20));
        lab.world.kill(lab.target_host);
        lab.world.run_for(Duration::from_secs(1));
        lab.world.restart(lab.target_host);
        assert!(lab.world.ib_up(LIMIT));
        let served =
            rdma_lab::serve(&lab.world, lab.target_host, &lab.disk, Default::default(), Default::default());
        lab.world.block_on(LIMIT, work).expect("in time").expect("writes");
        assert_eq!(session.reconnects(), 1, "{wire}");
        for i in 0..400 {
            assert_eq!(lab.disk.bytes.borrow()[i * 65536..(i + 1) * 65536], pattern(i, 65536), "{wire}: {i}");
        }
        drop(served);
    }
}

/// More commands than there is memory for, and than the target takes at once: each is answered once, in the end.
#[test]
fn memory_runs_out() {
    let options = TargetOptions {
        session: SessionOptions { queue_depth: 8, ..SessionOptions::default() },
        ..TargetOptions::default()
    };
    let lab = RdmaLab::with(
        10,
        everywire_sim::HostConfig::new,
        options,
        RdmaOptions { memory: 1, ..Default::default() },
    );
    lab.run(|host| async move {
        let session = host.connect(rdma_lab::options()).await.expect("logs in");
        let disk = session.disk(0).await.expect("a disk");
        let tasks: Vec<_> = (0..300)
            .map(|i| {
                let disk = disk.clone();
                host.rt.spawn(async move {
                    let (at, len) = (i as u64 * 4096, if i % 50 == 0 { 1 << 20 } else { 4096 });
                    if i % 2 == 0 {
                        disk.write(at, pattern(1, len).into()).await.expect("writes");
                    } else {
                        assert_eq!(disk.read(at, len).await.expect("reads").len(), len);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("ends");
        }
        session.logout().await;
    });
    assert_eq!(lab.memory_in_use(), 0);
}

/// After a Logout Response it is the initiator's turn to disconnect: Linux's siw, closed at once, takes its own Logout Request for one
/// that failed. Its session is over all the same, and who stays is not waited for for ever.
#[test]
fn after_a_logout_the_initiator_disconnects() {
    for leaves in [true, false] {
        let lab = RdmaLab::new(12);
        let target = lab.target.clone();
        let reason = lab.run(move |host| async move {
            let raw = Raw::connect(&host, 0xc0).await;
            assert_eq!(raw.login(LINUX).await.0, (0, 0));
            let flags = FINAL | LogoutReason::CloseSession.code();
            let logout = LogoutRequest { flags, itt: 4, cmd_sn: 1, ..LogoutRequest::default() };
            raw.say(ControlHeader::default(), &Pdu::new(logout).immediate());
            let answer = raw.hear().await.expect("an answer");
            assert!(matches!(answer.header, Header::LogoutResponse(_)), "{answer:?}");
            host.rt.sleep(Duration::from_millis(500)).await;
            assert_eq!((raw.cm.closed_reason(), target.sessions()), (None, 0));
            if leaves { raw.cm.disconnect().await } else { raw.cm.closed().await }
        });
        assert_eq!(reason, if leaves { DisconnectReason::Local } else { DisconnectReason::Peer });
    }
}
