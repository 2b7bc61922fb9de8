//! Data in one and in several keyed blocks, as a host by hand asks for it, and the READs it allows. NVMe-oF 1.1 §2.3.1,
//! NVMe RDMA Transport 1.0 §§2.2, 2.3. NV-05.

mod lab;

use everywire_nvmeof::pdu::sgl::emit_segment;
use everywire_nvmeof::pdu::{IoOpcode, Keyed, Sgl, Sqe};
use everywire_nvmeof::target::Limits;
use everywire_verbs::CmErrorKind;
use lab::raw::Raw;
use lab::{Lab, pattern};

/// Bytes of host memory for one command: descriptors are 512 bytes, every other one is left out.
const SPACE: usize = 1 << 17;
const BLOCK: usize = 512;

/// The blocks of a command in its part of the host's memory; `odd` takes the blocks that the other direction leaves out.
fn blocks(queue: &Raw, command: usize, count: usize, odd: bool) -> Vec<Keyed> {
    let at = |i: usize| command * SPACE + (2 * i + usize::from(odd)) * BLOCK;
    // Backwards, so that order matters.
    (0..count).rev().map(|i| queue.keyed(at(i), BLOCK as u32)).collect()
}

/// A command over `count` blocks of the disk, with its descriptors in the capsule.
fn capsule(opcode: IoOpcode, slba: u64, blocks: &[Keyed]) -> (Sqe, Vec<u8>) {
    let mut extra = vec![0; blocks.len() * 16];
    emit_segment(blocks, &mut extra).expect("room");
    let sgl = Sgl::last_segment(0, extra.len() as u32);
    (Sqe { sgl, ..Sqe::rw(opcode, 1, slba, blocks.len() as u32) }, extra)
}

/// Sends one such command for each of `commands`, all outstanding together, and takes their statuses.
async fn all_at_once(queue: &mut Raw, opcode: IoOpcode, commands: usize, count: usize) {
    let odd = opcode == IoOpcode::READ;
    for command in 0..commands {
        let list = blocks(queue, command, count, odd);
        let (sqe, extra) = capsule(opcode, (command * 64) as u64, &list);
        queue.send(sqe, &extra);
    }
    let mut done = 0;
    while done < commands {
        let responses = queue.responses().await;
        assert!(!responses.is_empty(), "the connection broke");
        for cqe in responses {
            assert!(cqe.status().is_success(), "{:?}", cqe.status());
            done += 1;
        }
    }
}

fn writes_and_reads(limits: Limits, count: usize, ird: u8, entries: u16) {
    let lab = Lab::with(1, limits);
    let what = format!("{count} descriptors, IRD {ird}, {entries} entries");
    lab.run(move |host| async move {
        let (admin, cntlid) = Raw::admin(&host, 0).await;
        let commands = usize::from(entries) - 1;
        let mut queue = Raw::io(&host, cntlid, 1, entries, ird, SPACE * commands).await;
        let bytes = pattern(SPACE * commands, 5);
        queue.data.write_at(0, &bytes).expect("in range");
        all_at_once(&mut queue, IoOpcode::WRITE, commands, count).await;
        all_at_once(&mut queue, IoOpcode::READ, commands, count).await;
        // What was written from the even blocks has come back into the odd ones, and nothing else was touched.
        let mut expected = bytes;
        for command in 0..commands {
            for i in 0..count {
                let from = command * SPACE + 2 * i * BLOCK;
                expected.copy_within(from..from + BLOCK, from + BLOCK);
            }
        }
        assert!(queue.data.read_vec(0, expected.len()).expect("in range") == expected, "{what}");
        queue.close().await;
        admin.close().await;
    });
}

#[test]
fn descriptors_in_the_capsule() {
    for count in [1, 2, 16] {
        for ird in [1, 2, 16] {
            for entries in [2, 16] {
                writes_and_reads(Limits::default(), count, ird, entries);
            }
        }
    }
}

/// A READ of more blocks than a short queue would need for anything else must find room for all of them.
#[test]
fn long_lists_on_short_queues() {
    let limits = Limits { max_sgl_descriptors: 128, ..Limits::default() };
    for entries in [2, 16] {
        writes_and_reads(limits.clone(), 128, 16, entries);
    }
}

/// One more than MSDBD: status 0Eh, Invalid Number of SGL Descriptors (NVMe Base 2.0 figure 94), and the queue goes on.
#[test]
fn one_descriptor_too_many() {
    let lab = Lab::new(2);
    lab.run(|host| async move {
        let (_admin, cntlid) = Raw::admin(&host, 0).await;
        let mut queue = Raw::io(&host, cntlid, 1, 16, 16, SPACE).await;
        for opcode in [IoOpcode::WRITE, IoOpcode::READ] {
            let list = blocks(&queue, 0, 17, false);
            let (sqe, extra) = capsule(opcode, 0, &list);
            let status = queue.command(sqe, &extra).await.expect("an answer").status();
            assert_eq!((status.sct(), status.sc(), status.is_dnr()), (0, 0x0e, true));
            let (sqe, extra) = capsule(opcode, 0, &list[..16]);
            queue.ok(sqe, &extra).await;
        }
    });
}

/// A host that allows no READ could never write: refused with status 07h, Invalid IRD (NVMe-oF 1.1 figure 60).
#[test]
fn a_host_without_responder_resources_is_refused() {
    let lab = Lab::new(3);
    lab.run(|host| async move {
        let refused = Raw::open(&host, 0, 32, 0, 4096).await.err().expect("refused");
        let CmErrorKind::Rejected { private_data, .. } = refused.kind() else { panic!("{refused}") };
        assert_eq!(private_data[..4], [0, 0, 7, 0], "{refused}");
    });
    assert_eq!(lab.target().with(|target| target.queue_count()), 0);
}
