//! A caller's own memory as place of a command's data, over TCP and iSER, with and without loss: the right bytes, and none beside
//! them. RFC 7145 §9.3 (STags), RFC 7143 §11.7 (Data-Out, Data-In).

mod lab;
mod rdma_lab;

use everywire_iscsi::initiator::{Buffer, IscsiError, Transfer};
use lab::pattern;
use rdma_lab::stage::Stage;

/// Of every buffer.
const LEN: usize = 3 << 20;
/// Blocks of the disk.
const BLOCKS: u64 = 16384;
/// Where in a buffer data lies, and how much: within a first burst and beyond it, and more than one command moves.
const SPANS: [(usize, usize); 5] =
    [(0, 512), (7, 4096), (513, 300_032), (1000, 1 << 20), (3, (2 << 20) + 512)];
/// What is around it.
const AROUND: u8 = 0xe7;

fn filled(buffer: &Buffer) {
    buffer.write_at(0, &vec![AROUND; buffer.len()]);
}

fn all(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read_at(0, &mut bytes);
    bytes
}

#[test]
fn data_lies_in_the_callers_memory() {
    Stage::all(|wire, seed, stage| {
        let stage = stage(BLOCKS);
        let connecting = (stage.connect)();
        let what = format!("{wire}, seed {seed}");
        let name = what.clone();
        stage.run(async move {
            let session = connecting.await.expect("logs in");
            let disk = session.disk(0).await.expect("a disk");
            let (from, into) = (disk.buffer(LEN).expect("memory"), disk.buffer(LEN).expect("memory"));
            for (i, (at, len)) in SPANS.into_iter().enumerate() {
                let (bytes, offset) = (pattern(i, len), i as u64 * 512);
                filled(&from);
                from.write_at(at, &bytes);
                disk.write_from(offset, &from, at, len, i % 2 == 0).await.expect("writes");
                assert!(disk.read(offset, len).await.expect("reads") == bytes, "{name}: {len} bytes written");
                filled(&into);
                disk.read_into(offset, &into, at, len).await.expect("reads");
                let mut wanted = vec![AROUND; LEN];
                wanted[at..at + len].copy_from_slice(&bytes);
                assert!(all(&into) == wanted, "{name}: {len} bytes at {at}");
            }
            let beyond = disk.read_into(BLOCKS * 512, &into, 0, 512).await;
            assert!(matches!(beyond, Err(IscsiError::Argument(_))), "{name}: {beyond:?}");
            session.logout().await;
        });
        stage.check_empty(&what);
    });
}

/// Memory of another session's binding is copied through, wherever it is registered.
#[test]
fn memory_of_another_binding() {
    Stage::all(|wire, seed, stage| {
        let stage = stage(BLOCKS);
        let (connecting, other) = ((stage.connect)(), (stage.connect)());
        let name = format!("{wire}, seed {seed}");
        stage.run(async move {
            let (one, other) = (connecting.await.expect("logs in"), other.await.expect("logs in"));
            let (disk, bytes) = (one.disk(0).await.expect("a disk"), pattern(3, 70_144));
            let buffer = other.buffer(bytes.len()).expect("memory");
            buffer.write_at(0, &bytes);
            disk.write_from(0, &buffer, 0, bytes.len(), false).await.expect("writes");
            filled(&buffer);
            disk.read_into(0, &buffer, 0, bytes.len()).await.expect("reads");
            assert!(all(&buffer) == bytes, "{name}");
            let none = one.execute(0, &[0; 6], Transfer::None).await.expect("a status");
            assert_eq!(none.status, 0, "{name}");
            one.logout().await;
            other.logout().await;
        });
    });
}
