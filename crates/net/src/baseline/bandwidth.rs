//! One-way bandwidth: messages as RC cuts them: of a WRITE, FIRST alone (it is 16 bytes longer), the rest as trains.
//!
//! The sender copies each payload from its place in the message into a packet, whose ICRC it writes. The receiver takes
//! packets in order only, copies each payload to its place in the message and acknowledges every
//! [`ACK_EVERY`] packets and the last of a message; the sender keeps at most a window of packets unacknowledged and goes
//! back to the first of them if nothing comes.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{
    ACK, ACK_EVERY, BTH, BaselineOptions, BaselineResult, DATA, End, GIVE_UP_AFTER, ICRC, RESEND_AFTER, RETH,
    STOP, Samples, header, no_answer, opcode, sequence,
};
use crate::udp::{MAX_TRAIN_BYTES, MAX_TRAIN_SEGMENTS, Outgoing};

/// How the packets of a message lie in its staging buffer.
struct Layout {
    /// Offset, length and index in its train of every packet.
    packets: Vec<(usize, usize, u16)>,
    /// First packet and number of packets of every train.
    trains: Vec<(usize, usize)>,
    total: usize,
    /// Bytes of RETH in the first packet.
    reth: usize,
}

impl Layout {
    fn new(size: usize, mtu: usize, writes: bool) -> Layout {
        let reth = if writes { RETH } else { 0 };
        let count = size.div_ceil(mtu).max(1);
        let most = MAX_TRAIN_SEGMENTS.min(MAX_TRAIN_BYTES / (BTH + mtu + ICRC));
        let mut layout = Layout { packets: Vec::new(), trains: Vec::new(), total: 0, reth };
        for i in 0..count {
            let payload = mtu.min(size - (i * mtu).min(size));
            let len = BTH + if i == 0 { reth } else { 0 } + payload.next_multiple_of(4) + ICRC;
            match layout.trains.last_mut() {
                Some((_, in_train)) if (i > 1 || reth == 0) && *in_train < most => *in_train += 1,
                _ => layout.trains.push((i, 1)),
            }
            let index = layout.trains.last().map_or(0, |&(first, _)| i - first) as u16;
            layout.packets.push((layout.total, len, index));
            layout.total += len;
        }
        layout
    }
}

pub(super) fn measure(end: &mut End, options: &BaselineOptions) -> io::Result<BaselineResult> {
    let layout = Layout::new(options.size, options.mtu, options.writes);
    let per_message = layout.packets.len() as u32;
    let mut staging = vec![0; layout.total];
    let source = vec![0x5a; per_message as usize * options.mtu];
    let window = options.window.max(per_message);
    let (mut next, mut acked, mut resends) = (0u32, 0u32, 0u64);
    let mut started: VecDeque<Instant> = VecDeque::new();
    let mut samples = Samples::default();
    let begin = Instant::now();
    let mut last_progress = begin;
    let mut elapsed = begin.elapsed();
    while elapsed < options.duration {
        while next.wrapping_sub(acked) + per_message <= window {
            if started.len() * per_message as usize
                == next.wrapping_sub(acked / per_message * per_message) as usize
            {
                started.push_back(Instant::now());
            }
            send_message(end, &layout, &source, options.mtu, &mut staging, next);
            next = next.wrapping_add(per_message);
        }
        let mut upto = acked;
        end.receive(|datagram| {
            if opcode(datagram) == ACK && sequence(datagram).wrapping_sub(upto) <= window {
                upto = sequence(datagram);
            }
        });
        let now = Instant::now();
        elapsed = now - begin;
        if upto != acked {
            for _ in acked / per_message..upto / per_message {
                if let Some(start) = started.pop_front() {
                    samples.add(now - start);
                }
            }
            (acked, last_progress) = (upto, now);
        } else if now - last_progress > GIVE_UP_AFTER {
            return Err(no_answer(end.peer));
        } else if now - last_progress > RESEND_AFTER {
            resends += 1;
            next = acked / per_message * per_message;
            last_progress = now;
        }
    }
    Ok(samples.result(options.size, elapsed, resends))
}

fn send_message(end: &mut End, layout: &Layout, source: &[u8], mtu: usize, staging: &mut [u8], first: u32) {
    for (i, &(offset, len, index)) in layout.packets.iter().enumerate() {
        let datagram = &mut staging[offset..offset + len];
        let payload = &mut datagram[BTH + if i == 0 { layout.reth } else { 0 }..len - ICRC];
        payload.copy_from_slice(&source[i * mtu..][..payload.len()]);
        header(datagram, DATA, first.wrapping_add(i as u32));
        end.out.seal(index, datagram);
    }
    let trains: Vec<Outgoing<'_>> = layout
        .trains
        .iter()
        .map(|&(first, count)| {
            let (offset, segment, _) = layout.packets[first];
            let (last, last_len, _) = layout.packets[first + count - 1];
            end.outgoing(&staging[offset..last + last_len], (count > 1).then_some(segment))
        })
        .collect();
    end.send_all(&trains);
}

pub(super) fn serve(end: &mut End, size: usize, mtu: usize, writes: bool, stop: &AtomicBool) {
    let reth = if writes { RETH } else { 0 };
    let per_message = size.div_ceil(mtu).max(1) as u32;
    let mut destination = vec![0u8; per_message as usize * mtu];
    let mut expected = 0u32;
    let mut acknowledged = 0u32;
    let mut done = false;
    while !done && !stop.load(Ordering::Relaxed) {
        let mut out_of_order = false;
        end.receive(|datagram| match opcode(datagram) {
            STOP => done = true,
            DATA if sequence(datagram) == expected => {
                let in_message = expected % per_message;
                let payload = &datagram[BTH + if in_message == 0 { reth } else { 0 }..datagram.len() - ICRC];
                let payload = &payload[..payload.len().min(mtu)];
                destination[in_message as usize * mtu..][..payload.len()].copy_from_slice(payload);
                expected = expected.wrapping_add(1);
            }
            DATA => out_of_order = true,
            _ => {}
        });
        let behind = expected.wrapping_sub(acknowledged);
        if behind >= ACK_EVERY || (behind > 0 && expected.is_multiple_of(per_message)) || out_of_order {
            end.control(ACK, expected, &[]);
            acknowledged = expected;
        }
    }
    std::hint::black_box(&destination);
}
