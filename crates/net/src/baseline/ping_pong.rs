//! Round trips of one small message between two spinning threads.
//!
//! The product's own sockets, options, packets and checks: each way goes the datagram of a message, and behind it, while the
//! other side is at work, the acknowledgement of the message before; both have an ICRC, which is written and checked. No
//! queue pairs, no memory, nothing else between the system calls.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{
    ACK, AETH, BTH, BaselineOptions, BaselineResult, End, GIVE_UP_AFTER, ICRC, PING, RESEND_AFTER, STOP,
    Samples, header, no_answer, opcode, sequence,
};

/// An acknowledgement: BTH, AETH, ICRC.
const ACK_LEN: usize = BTH + AETH + ICRC;

/// Sends the acknowledgement of a message.
fn acknowledge(end: &mut End, number: u32) {
    let mut ack = [0; ACK_LEN];
    header(&mut ack, ACK, number);
    end.out.seal(0, &mut ack);
    end.send(&ack);
}

pub(super) fn measure(end: &mut End, options: &BaselineOptions) -> io::Result<BaselineResult> {
    let size = options.size.clamp(1, options.mtu);
    let mut ping = vec![0u8; BTH + size.next_multiple_of(4) + ICRC];
    let mut samples = Samples::default();
    let mut resends = 0;
    let begin = Instant::now();
    let mut now = begin;
    let mut number = 0u32;
    while now - begin < options.duration {
        number = number.wrapping_add(1);
        header(&mut ping, PING, number);
        end.out.seal(0, &mut ping);
        let start = now;
        let mut sent = now;
        end.send(&ping);
        if number > 1 {
            acknowledge(end, number - 1);
        }
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
            acknowledge(end, sequence(&pong));
        }
    }
}
