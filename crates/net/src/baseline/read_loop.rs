//! Emulated READs: a request of a READ request's size, a response of a READ response's, `depth` at a time.
//!
//! The server copies the payload out of a random place of its region while it makes the ICRC, the client checks the ICRC and copies the
//! payload to its destination. Whatever arrived in one batch is answered in trains.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{
    AETH, BTH, BaselineOptions, BaselineResult, End, GIVE_UP_AFTER, ICRC, READ_REQUEST, READ_RESPONSE,
    RESEND_AFTER, RETH, STOP, Samples, header, index, no_answer, opcode, sequence, set_index,
};
use crate::udp::{MAX_TRAIN_BYTES, MAX_TRAIN_SEGMENTS, Outgoing};

/// Datagrams, sent as trains of equal ones; a shorter one ends its train.
struct Trains {
    bytes: Vec<u8>,
    /// First byte and datagrams of each train.
    trains: Vec<(usize, usize)>,
    segment: usize,
    most: usize,
    closed: bool,
}

impl Trains {
    fn new(segment: usize) -> Trains {
        let most = MAX_TRAIN_SEGMENTS.min(MAX_TRAIN_BYTES / segment);
        Trains { bytes: Vec::new(), trains: Vec::new(), segment, most, closed: false }
    }

    /// Appends a datagram, to be filled; its index in its train is its IPv4 Identification.
    fn push(&mut self, len: usize) -> (&mut [u8], u16) {
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        match self.trains.last_mut() {
            Some((_, count)) if *count < self.most && !self.closed => *count += 1,
            _ => self.trains.push((at, 1)),
        }
        self.closed = len < self.segment;
        let index = self.trains.last().map_or(0, |(_, count)| count - 1);
        (&mut self.bytes[at..], index as u16)
    }

    fn send(&mut self, end: &mut End) {
        if self.trains.is_empty() {
            return;
        }
        let ends = self.trains.iter().skip(1).map(|(at, _)| *at).chain([self.bytes.len()]);
        let outgoing: Vec<Outgoing<'_>> = self
            .trains
            .iter()
            .zip(ends)
            .map(|(&(at, count), end_at)| {
                end.outgoing(&self.bytes[at..end_at], (count > 1).then_some(self.segment))
            })
            .collect();
        end.send_all(&outgoing);
        self.bytes.clear();
        self.trains.clear();
        self.closed = false;
    }
}

/// A READ under way.
#[derive(Clone, Copy)]
struct Waiting {
    sequence: u32,
    start: Instant,
    /// Packets of the response that have come; they come in order.
    came: usize,
}

pub(super) fn measure(end: &mut End, options: &BaselineOptions) -> io::Result<BaselineResult> {
    let size = options.size.max(1);
    let packets = size.div_ceil(options.mtu);
    let depth = options.depth.max(1) as usize;
    let mut destination = vec![0u8; depth * packets * options.mtu];
    let mut requests = Trains::new(BTH + RETH + ICRC);
    // `sequence % depth` is the slot.
    let mut in_flight: Vec<Option<Waiting>> = vec![None; depth];
    let mut next: Vec<u32> = (0..depth as u32).collect();
    let mut samples = Samples::default();
    let mut resends = 0;
    let mut begin = Instant::now();
    let mut now = begin;
    let (mut last_progress, mut last_sent) = (begin, begin);
    let mut answered = false;
    while !answered || now - begin < options.duration {
        for (slot, waiting) in in_flight.iter_mut().enumerate() {
            if waiting.is_none() {
                *waiting = Some(Waiting { sequence: next[slot], start: now, came: 0 });
                request(&mut requests, end, next[slot]);
                next[slot] = next[slot].wrapping_add(depth as u32);
            }
        }
        requests.send(end);
        let mut progress = false;
        end.receive(|datagram| {
            if opcode(datagram) != READ_RESPONSE || datagram.len() < BTH + AETH + ICRC {
                return;
            }
            let slot = sequence(datagram) as usize % depth;
            let Some(waiting) = &mut in_flight[slot] else { return };
            if waiting.sequence != sequence(datagram) || waiting.came != index(datagram) {
                return;
            }
            let payload = &datagram[BTH + AETH..datagram.len() - ICRC];
            let payload = &payload[..payload.len().min(options.mtu)];
            destination[(slot * packets + waiting.came) * options.mtu..][..payload.len()]
                .copy_from_slice(payload);
            waiting.came += 1;
            progress = true;
            if waiting.came == packets {
                samples.add(waiting.start.elapsed());
                in_flight[slot] = None;
            }
        });
        now = Instant::now();
        if progress {
            (last_progress, last_sent) = (now, now);
            if !answered {
                // The peer has filled its region: the clock starts, without the READs that waited for that.
                (answered, begin, samples) = (true, now, Samples::default());
            }
        } else if now - last_progress > GIVE_UP_AFTER {
            return Err(no_answer(end.peer));
        } else if now - last_sent > RESEND_AFTER {
            for waiting in in_flight.iter_mut().flatten() {
                waiting.came = 0;
                request(&mut requests, end, waiting.sequence);
            }
            resends += 1;
            last_sent = now;
        }
    }
    std::hint::black_box(&destination);
    Ok(samples.result(size, now - begin, resends))
}

fn request(requests: &mut Trains, end: &End, sequence: u32) {
    let (datagram, index) = requests.push(BTH + RETH + ICRC);
    header(datagram, READ_REQUEST, sequence);
    end.out.seal(index, datagram);
}

pub(super) fn serve(end: &mut End, size: usize, mtu: usize, region: usize, stop: &AtomicBool) {
    let size = size.next_multiple_of(4);
    let region = vec![0xa5u8; region.max(size)];
    let places = region.len() / size;
    let (full, last) = ((size - 1) / mtu, (size - 1) % mtu + 1);
    // As in a RC response, the last packet may be shorter and then ends its train; so do others here.
    let mut responses = Trains::new(BTH + AETH + mtu.min(size) + ICRC);
    let mut wanted = Vec::new();
    let mut done = false;
    while !done && !stop.load(Ordering::Relaxed) {
        end.receive(|datagram| match opcode(datagram) {
            STOP => done = true,
            READ_REQUEST => wanted.push(sequence(datagram)),
            _ => {}
        });
        for sequence in wanted.drain(..) {
            // Knuth's multiplicative hash spreads consecutive numbers over the region.
            let at = sequence.wrapping_mul(2_654_435_761) as usize % places * size;
            for packet in 0..=full {
                let len = if packet == full { last } else { mtu };
                let (datagram, index) = responses.push(BTH + AETH + len + ICRC);
                header(datagram, READ_RESPONSE, sequence);
                set_index(datagram, packet);
                datagram[BTH + AETH..][..len].copy_from_slice(&region[at + packet * mtu..][..len]);
                end.out.seal(index, datagram);
            }
        }
        responses.send(end);
    }
}
