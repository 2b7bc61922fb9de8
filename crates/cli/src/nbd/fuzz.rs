//! Fuzz targets of the server's side: any bytes lead to a step or an error that names why, and nothing that they name is
//! allocated. What a client sends is in the seeds as the specification has it.

use everywire_fuzz::target;

use super::handshake::{Handshake, MAX_OPTION, Step};
use super::tests::{export, option};
use super::wire::{self, Request};

fn clients() -> Vec<Vec<u8>> {
    let flags = [0, 0, 0, 3];
    let go: &[u8] = &[0, 0, 0, 1, b'd', 0, 2, 0, 1, 0, 3];
    vec![
        [&flags[..], &option(wire::OPTION_STRUCTURED_REPLY, &[]), &option(wire::OPTION_GO, go)].concat(),
        [&flags[..], &option(wire::OPTION_LIST, &[]), &option(wire::OPTION_ABORT, &[])].concat(),
        [&flags[..], &option(wire::OPTION_EXPORT_NAME, b"d")].concat(),
        [&flags[..], &option(99, &[7; 20]), &option(wire::OPTION_INFO, &[0, 0, 0, 0, 0, 0])].concat(),
    ]
}

target!(nbd_handshake, clients(), |bytes| {
    let (export, mut out) = (export(), Vec::new());
    let mut handshake = Handshake::new(&export, &mut out);
    let (mut at, mut answers) = (0, out.len());
    while let Some(next) = bytes.get(at..at + handshake.wants()) {
        assert!(next.len() <= MAX_OPTION as usize && !next.is_empty());
        at += next.len();
        match handshake.take(next, &mut out) {
            Ok(Step::More) => {}
            Ok(_) | Err(_) => break,
        }
        // No option is answered with more than a few lines.
        assert!(out.len() - answers < 1024);
        answers = out.len();
    }
});

/// A write's first half; what lacks is zeroes.
fn heads() -> Vec<Vec<u8>> {
    vec![vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1]]
}

target!(nbd_request, heads(), |bytes| {
    let mut head = [0; wire::REQUEST_LEN];
    let len = bytes.len().min(head.len());
    head[..len].copy_from_slice(&bytes[..len]);
    if let Some(request) = Request::parse(&head) {
        for (structured, result) in [(false, Ok(())), (true, Ok(())), (true, Err(wire::EIO))] {
            assert!(
                request.data() > super::MAX_PAYLOAD || wire::reply(&request, structured, result).len() <= 28
            );
        }
    }
});
