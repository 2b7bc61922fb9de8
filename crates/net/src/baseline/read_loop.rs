//! Emulated READs: a request of a READ request's size, a response of a READ response's, `depth` at a time.
//!
//! The server copies the payload out of a random place of its region while it makes the ICRC, the client checks the ICRC and copies the
//! payload to its destination. Whatever arrived in one batch is answered in trains.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{
    AETH, BTH, BaselineOptions, BaselineResult, End, GIVE_UP_AFTER, ICRC, READ_REQUEST, READ_RESPONSE,
    RESEND_AFTER, RETH, STOP, Samples, header, no_answer, opcode, sequence,
};
use crate::udp::{MAX_TRAIN_BYTES, MAX_TRAIN_SEGMENTS, Outgoing};

/// Equal datagrams, sent as trains.
struct Trains {
    bytes: Vec<u8>,
    segment: usize,
    most: usize,
}

impl Trains {
    fn new(segment: usize) -> Trains {
        let most = MAX_TRAIN_SEGMENTS.min(MAX_TRAIN_BYTES / segment);
        Trains { bytes: Vec::new(), segment, most }
    }

    /// Appends a datagram, to be filled; its index in its train is its IPv4 Identification.
    fn push(&mut self) -> (&mut [u8], u16) {
        let at = self.bytes.len();
        self.bytes.resize(at + self.segment, 0);
        let index = (at / self.segment) % self.most;
        (&mut self.bytes[at..], index as u16)
    }

    fn send(&mut self, end: &mut End) {
        if !self.bytes.is_empty() {
            let trains: Vec<Outgoing<'_>> = self
                .bytes
                .chunks(self.segment * self.most)
                .map(|train| end.outgoing(train, (train.len() > self.segment).then_some(self.segment)))
                .collect();
            end.send_all(&trains);
            self.bytes.clear();
        }
    }
}

pub(super) fn measure(end: &mut End, options: &BaselineOptions) -> io::Result<BaselineResult> {
    let size = options.size.min(options.mtu);
    let depth = options.depth.max(1) as usize;
    let mut destination = vec![0u8; depth * size];
    let mut requests = Trains::new(BTH + RETH + ICRC);
    // Sequence number and time of the READ in each slot; `sequence % depth` is the slot.
    let mut in_flight = vec![None; depth];
    let mut next: Vec<u32> = (0..depth as u32).collect();
    let mut samples = Samples::default();
    let mut resends = 0;
    let begin = Instant::now();
    let mut now = begin;
    let mut last_progress = begin;
    while now - begin < options.duration {
        for (slot, waiting) in in_flight.iter_mut().enumerate() {
            if waiting.is_none() {
                *waiting = Some((next[slot], now));
                request(&mut requests, end, next[slot]);
                next[slot] = next[slot].wrapping_add(depth as u32);
            }
        }
        requests.send(end);
        let mut progress = false;
        end.receive(|datagram| {
            if opcode(datagram) != READ_RESPONSE || datagram.len() < BTH + AETH + size + ICRC {
                return;
            }
            let slot = sequence(datagram) as usize % depth;
            if let Some((waiting, start)) = in_flight[slot]
                && waiting == sequence(datagram)
            {
                destination[slot * size..][..size].copy_from_slice(&datagram[BTH + AETH..][..size]);
                samples.add(start.elapsed());
                in_flight[slot] = None;
                progress = true;
            }
        });
        now = Instant::now();
        if progress {
            last_progress = now;
        } else if now - last_progress > GIVE_UP_AFTER {
            return Err(no_answer(end.peer));
        } else if now - last_progress > RESEND_AFTER {
            for (waiting, _) in in_flight.iter().flatten() {
                request(&mut requests, end, *waiting);
            }
            resends += 1;
            last_progress = now;
        }
    }
    std::hint::black_box(&destination);
    Ok(samples.result(size, now - begin, resends))
}

fn request(requests: &mut Trains, end: &End, sequence: u32) {
    let (datagram, index) = requests.push();
    header(datagram, READ_REQUEST, sequence);
    end.out.seal(index, datagram);
}

pub(super) fn serve(end: &mut End, size: usize, region: usize, stop: &AtomicBool) {
    let size = size.min(4096).next_multiple_of(4);
    let region = vec![0xa5u8; region.max(size)];
    let places = region.len() / size;
    let mut responses = Trains::new(BTH + AETH + size + ICRC);
    let mut wanted = Vec::new();
    let mut done = false;
    while !done && !stop.load(Ordering::Relaxed) {
        end.receive(|datagram| match opcode(datagram) {
            STOP => done = true,
            READ_REQUEST => wanted.push(sequence(datagram)),
            _ => {}
        });
        for sequence in wanted.drain(..) {
            let (datagram, index) = responses.push();
            header(datagram, READ_RESPONSE, sequence);
            // Knuth's multiplicative hash spreads consecutive numbers over the region.
            let at = sequence.wrapping_mul(2_654_435_761) as usize % places * size;
            datagram[BTH + AETH..][..size].copy_from_slice(&region[at..][..size]);
            end.out.seal(index, datagram);
        }
        responses.send(end);
    }
}
