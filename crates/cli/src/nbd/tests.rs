//! The server's side against bytes written down from the specification (doc/proto.md of the NBD project).

use everywire_block::Geometry;

use super::handshake::{Handshake, HandshakeError, MAX_OPTION, Step};
use super::wire::{self, Request};
use super::{Door, Export};

/// A disk of 1 MiB called "d".
pub fn export() -> Export {
    let geometry = Geometry {
        block_size: 512,
        blocks: 2048,
        optimal_io: 4096,
        read_only: false,
        volatile_cache: true,
        discard: true,
    };
    Export { name: "d".into(), description: "a disk".into(), geometry }
}

/// An option as a client sends it.
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// What the server answers to these bytes, after its greeting, and where it ends.
fn answer(export: &Export, bytes: &[u8]) -> (Vec<u8>, Result<Step, HandshakeError>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(export, &mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\x00\x03");
    out.clear();
    let (mut at, mut step) = (0, Ok(Step::More));
    while let (Ok(Step::More), Some(next)) = (step, bytes.get(at..at + handshake.wants())) {
        at += next.len();
        step = handshake.take(next, &mut out);
    }
    (out, step)
}

fn reply(option: u8, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    [&magic[..], &[0, 0, 0, option], &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

const NEW: [u8; 4] = [0, 0, 0, 3];

#[test]
fn go_tells_size_flags_and_block_sizes() {
    let go = option(7, &[0, 0, 0, 1, b'd', 0, 1, 0, 3]);
    let (out, step) = answer(&export(), &[&NEW[..], &option(8, &[]), &go].concat());
    // Has flags, flush, FUA, trim, write zeroes, don't fragment, multi-conn.
    let told = [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0x01, 0xed];
    let sizes = [0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0];
    let expected = [reply(8, 1, &[]), reply(7, 3, &told), reply(7, 3, &sizes), reply(7, 1, &[])].concat();
    assert_eq!((out, step), (expected, Ok(Step::Transmission { structured: true })));
}

#[test]
fn export_name_is_answered_the_old_way() {
    let geometry = Geometry { read_only: true, discard: false, ..export().geometry };
    let export = Export { geometry, ..export() };
    let old = [0, 0, 0, 0, 0, 0x10, 0, 0, 0x01, 0x4f];
    for (flags, zeroes) in [(NEW, 0), ([0, 0, 0, 1], 124)] {
        let (out, step) = answer(&export, &[&flags[..], &option(1, b"")].concat());
        assert_eq!(out, [&old[..], &vec![0; zeroes]].concat());
        assert_eq!(step, Ok(Step::Transmission { structured: false }));
    }
    let (out, step) = answer(&export, &[&NEW[..], &option(1, b"other")].concat());
    assert_eq!((out.len(), step), (0, Err(HandshakeError::Export)));
}

#[test]
fn what_is_unknown_is_refused_and_negotiation_goes_on() {
    let unknown = [option(5, &[]), option(99, b"xyz"), option(7, &[0, 0, 0, 1, b'e', 0, 0])];
    let broken = [option(3, b"x"), option(7, &[0, 0, 0, 9, b'd', 0, 0]), option(6, &[0, 0, 0, 0, 0, 1])];
    let long = option(7, &vec![0; MAX_OPTION as usize * 2 + 1]);
    let list = option(3, &[]);
    let all = [&NEW[..], &unknown.concat(), &broken.concat(), &long, &list, &option(2, &[])].concat();
    let (out, step) = answer(&export(), &all);
    let error = |option, number| reply(option, (1u32 << 31) | number, &[]);
    let refused =
        [error(5, 1), error(99, 1), error(7, 6), error(3, 3), error(7, 3), error(6, 3), error(7, 9)];
    let listed = [reply(3, 2, &[0, 0, 0, 1, b'd']), reply(3, 1, &[]), reply(2, 1, &[])].concat();
    assert_eq!((out, step), ([refused.concat(), listed].concat(), Ok(Step::Leave)));
}

/// A length that nobody means is refused before its bytes come.
#[test]
fn an_absurd_length_is_refused_at_once() {
    for length in [u32::MAX, (1 << 20) + 1] {
        let head = |option: u8| [b"IHAVEOPT", &[0, 0, 0, option][..], &length.to_be_bytes()].concat();
        let (out, step) = answer(&export(), &[&NEW[..], &head(7)].concat());
        assert_eq!((out, step), (reply(7, (1 << 31) | 9, &[]), Ok(Step::Leave)));
        let (out, step) = answer(&export(), &[&NEW[..], &head(1)].concat());
        assert_eq!((out.len(), step), (0, Err(HandshakeError::Export)));
    }
}

#[test]
fn what_is_no_client_ends() {
    let (_, step) = answer(&export(), &[0, 0, 0, 4]);
    assert_eq!(step, Err(HandshakeError::Flags(4)));
    let (_, step) = answer(&export(), &[&NEW[..], b"GET / HTTP/1.1\r\n\r\n"].concat());
    assert!(matches!(step, Err(HandshakeError::Magic(_))));
    let (_, step) = answer(&export(), &[&NEW[..], &option(8, &[]).repeat(100)].concat());
    assert_eq!(step, Err(HandshakeError::Options));
}

#[test]
fn requests_and_replies() {
    let head: [u8; 28] = [
        0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0x10, 0,
    ];
    let write =
        Request { flags: 1, command: 1, cookie: 0x0102_0304_0506_0708, offset: 0x2000, length: 0x1000 };
    assert_eq!(Request::parse(&head), Some(write));
    assert_eq!((write.payload(), write.data()), (0x1000, 0x1000));
    assert_eq!(Request::parse(&[0; 28]), None);
    let simple = wire::reply(&write, false, Err(28));
    assert_eq!(simple, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]);
    let read = Request { command: 0, ..write };
    assert_eq!((read.payload(), read.data()), (0, 0x1000));
    let cookie = [1, 2, 3, 4, 5, 6, 7, 8];
    let data = [0, 1, 0, 1].iter().chain(&cookie).chain(&[0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 0x20, 0]);
    let magic = [0x66, 0x8e, 0x33, 0xef];
    assert_eq!(wire::reply(&read, true, Ok(())), magic.iter().chain(data).copied().collect::<Vec<u8>>());
    let error = [0, 1, 0x80, 1].iter().chain(&cookie).chain(&[0, 0, 0, 6, 0, 0, 0, 5, 0, 0]);
    assert_eq!(wire::reply(&read, true, Err(5)), magic.iter().chain(error).copied().collect::<Vec<u8>>());
}

#[test]
fn doors_by_name() {
    let shown = |text: &str| text.parse::<Door>().unwrap().to_string();
    assert_eq!(shown("./disk.sock"), "nbd+unix:///?socket=./disk.sock");
    assert_eq!(shown("unix:disk"), "nbd+unix:///?socket=disk");
    assert_eq!(shown("192.0.2.1"), "nbd://192.0.2.1:10809");
    assert_eq!(shown("[2001:db8::1]:9"), "nbd://[2001:db8::1]:9");
    assert!("disk".parse::<Door>().unwrap_err().contains("a UNIX socket's path has a slash: ./disk"));
}
