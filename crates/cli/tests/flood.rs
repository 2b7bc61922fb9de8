//! What initiators provoke does not become as many lines of log, and none of it is lost silently: logins that are refused.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Server, ip};

const TARGET: &str = "iqn.2026-11.net.everywire:there";
const REFUSED: usize = 60;
/// Lines a second that are written of refusals.
const A_SECOND: usize = 10;
/// Status class and detail of a target that is not there (RFC 7143 §11.13.5).
const NOT_FOUND: [u8; 2] = [2, 3];

/// A Login Request from operational negotiation to the full feature phase (RFC 7143 §11.12), to a target that is not there.
fn login() -> Vec<u8> {
    let mut text =
        b"InitiatorName=iqn.2026-11.example:flood\0TargetName=iqn.2026-11.example:nobody\0".to_vec();
    let mut pdu = vec![0; 48];
    (pdu[0], pdu[1], pdu[7]) = (0x43, 0x87, text.len() as u8);
    pdu[8] = 0x80;
    text.resize(text.len().next_multiple_of(4), 0);
    pdu.append(&mut text);
    pdu
}

#[test]
fn refused_logins_leave_few_lines_that_add_up() {
    let portal = format!("{}:3260", ip(1));
    let server = Server::start(&["serve", "--iscsi", &format!("{TARGET}=ram:1MiB"), "--tcp", &portal]);
    let start = Instant::now();
    for _ in 0..REFUSED {
        let mut stream = TcpStream::connect(&portal).expect("the portal listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        stream.write_all(&login()).expect("sends");
        let mut answer = [0; 48];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!((answer[0], [answer[36], answer[37]]), (0x23, NOT_FOUND));
    }
    let seconds = start.elapsed().as_secs_f64();
    // Until the last second has ended.
    std::thread::sleep(Duration::from_millis(2500));
    let told = server.lines_with("login refused").len();
    assert!(told <= A_SECOND * (seconds.ceil() as usize + 1), "{told} lines in {seconds} s");
    let left_out = server.lines_with("more like this left out");
    let left_out = left_out.iter().filter_map(|line| {
        let count = line.split("iSCSI target: ").nth(1)?;
        count.split(' ').next()?.parse::<usize>().ok()
    });
    assert_eq!(told + left_out.sum::<usize>(), REFUSED, "told and left out");
}
