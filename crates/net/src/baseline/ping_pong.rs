//! Round trips of one small datagram between two spinning threads, with plain `recvfrom` and `sendto`.
//!
//! No ICRC, no batches, no control messages: the fastest that two sockets of the product's kind can be. The sockets are
//! duplicates of the ports' own, so options are the same.

use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{
    BTH, BaselineOptions, BaselineResult, End, GIVE_UP_AFTER, ICRC, PING, STOP, Samples, header, no_answer,
    opcode, sequence,
};

/// The receiving socket, as std knows it.
fn plain(end: &End) -> io::Result<UdpSocket> {
    let fd = end.port.fds().next().ok_or(io::ErrorKind::NotFound)?;
    Ok(UdpSocket::from(fd.try_clone_to_owned()?))
}

pub(super) fn measure(end: &mut End, options: &BaselineOptions) -> io::Result<BaselineResult> {
    let socket = plain(end)?;
    let mut ping = vec![0u8; options.size.clamp(BTH + ICRC, options.mtu)];
    let mut pong = vec![0u8; 65_536];
    let mut samples = Samples::default();
    let mut resends = 0;
    let begin = Instant::now();
    let mut number = 0u32;
    let mut now = begin;
    while now - begin < options.duration {
        number = number.wrapping_add(1);
        header(&mut ping, PING, number);
        let start = now;
        let mut sent = now;
        socket.send_to(&ping, end.peer)?;
        loop {
            let answer = socket.recv_from(&mut pong);
            now = Instant::now();
            match answer {
                Ok((len, _)) if len == ping.len() && sequence(&pong) == number => break,
                _ if now - start > GIVE_UP_AFTER => return Err(no_answer(end.peer)),
                _ if now - sent > super::RESEND_AFTER => {
                    socket.send_to(&ping, end.peer)?;
                    resends += 1;
                    sent = now;
                }
                _ => end.spin.turn(false),
            }
        }
        end.spin.turn(true);
        samples.add(now - start);
    }
    Ok(samples.result(ping.len(), now - begin, resends))
}

pub(super) fn serve(end: &mut End, stop: &AtomicBool) {
    let Ok(socket) = plain(end) else { return };
    let mut datagram = vec![0u8; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let answer = socket.recv_from(&mut datagram);
        end.spin.turn(answer.is_ok());
        let Ok((len, _)) = answer else { continue };
        if len < BTH {
            continue;
        }
        match opcode(&datagram) {
            STOP => return,
            PING => {
                let _ = socket.send_to(&datagram[..len], end.peer);
            }
            _ => {}
        }
    }
}
