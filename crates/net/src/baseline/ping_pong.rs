//! Round trips of one small datagram between two spinning threads.
//!
//! The product's own sockets and options, one datagram of a SEND's size each way, ICRC written and checked; no
//! acknowledgements, no queue pairs, nothing else between the system calls. The fastest that RC can hope to be.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{
    BTH, BaselineOptions, BaselineResult, End, GIVE_UP_AFTER, ICRC, PING, RESEND_AFTER, STOP, Samples,
    header, no_answer, opcode, sequence,
};

pub(super) fn measure(end: &mut End, options: &BaselineOptions) -> io::Result<BaselineResult> {
    let size = options.size.clamp(1, options.mtu);
    let mut ping = vec![0u8; BTH + size.next_multiple_of(4) + ICRC];
    let mut samples = Samples::default();
    let mut resends = 0;
    let begin = Instant::now();
    let mut number = 0u32;
    let mut now = begin;
    while now - begin < options.duration {
        number = number.wrapping_add(1);
        header(&mut ping, PING, number);
        end.out.seal(0, &mut ping);
        let start = now;
        let mut sent = now;
        end.send(&ping);
        let mut back = false;
        while !back {
            end.receive(|pong| back |= opcode(pong) == PING && sequence(pong) == number);
            now = Instant::now();
            if now - start > GIVE_UP_AFTER {
                return Err(no_answer(end.peer));
            }
            if !back && now - sent > RESEND_AFTER {
                end.send(&ping);
                resends += 1;
                sent = now;
            }
        }
        samples.add(now - start);
    }
    Ok(samples.result(size, now - begin, resends))
}

pub(super) fn serve(end: &mut End, stop: &AtomicBool) {
    let mut done = false;
    let mut pong = Vec::new();
    while !done && !stop.load(Ordering::Relaxed) {
        pong.clear();
        end.receive(|ping| match opcode(ping) {
            STOP => done = true,
            PING => {
                pong.clear();
                pong.extend_from_slice(ping);
            }
            _ => {}
        });
        if !pong.is_empty() {
            end.out.seal(0, &mut pong);
            end.send(&pong);
        }
    }
}
