//! What an InfiniBand port's program side takes from the subnet administrator: transfers of many segments put together, and the
//! client's whole input. A transfer never holds more than it may, and every question is answered exactly once.
//!
//! Inputs are scripts: a byte that says what comes, and as many as it needs; missing ones are zero. The sender of such transfers is
//! the manager's, in `subnet_manager.rs`.

use std::time::{Duration, Instant};

use everywire_fuzz::target;
use everywire_transport::mad::rmpp::{Receiver, Step};
use everywire_transport::mad::sa_client::{Ask, SaClient};
use everywire_wire::mad::{MAD_LEN, Mad, RmppHeader, rmpp};
use everywire_wire::{Gid, PKey, QKey};

/// Where subnet administration's data begin, and what of that is the class's (IBTA §15.2.1.1).
const HEADER: usize = 56;
const CLASS_HEADER: usize = 20;
const LIMIT: usize = 2000;
/// Timers of a client that hears nothing: more would mean that it never gives up.
const MAX_TIMERS: usize = 1000;

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    /// A segment whose number, flags and length are the script's, on top of `mad`.
    fn segment(&mut self, mut mad: Mad, number: u32) -> Mad {
        let (kind, flags, skew, len) = (self.byte(), self.byte(), self.byte(), self.byte());
        let header = RmppHeader {
            version: 1 + flags / 128,
            rmpp_type: if kind < 200 { rmpp::DATA } else { kind % 6 },
            active: flags & 1 == 0,
            first: flags & 2 != 0,
            last: flags & 4 != 0,
            data1: if skew < 200 { number } else { number.wrapping_add_signed(i32::from(skew as i8)) },
            data2: if flags & 8 != 0 { u32::from(len) << 24 } else { u32::from(len) },
            ..RmppHeader::default()
        };
        header.emit(&mut mad[24..]);
        for _ in 0..self.byte() % 4 {
            let at = usize::from(self.byte());
            mad[at] ^= self.byte();
        }
        mad
    }
}

fn transfers() -> Vec<Vec<u8>> {
    let whole: Vec<u8> = (0..9).flat_map(|_| [0, 0, 0, 0, 0]).chain([0, 4, 0, 120, 0]).collect();
    let mut all = vec![whole.clone()];
    for at in 0..whole.len() {
        for value in [1, 4, 201, 255] {
            let mut other = whole.clone();
            other[at] = value;
            all.push(other);
        }
    }
    all
}

target!(rmpp_receiver, transfers(), |bytes| {
    let mut script = Script(bytes);
    let mut receiver = Receiver::new(HEADER, CLASS_HEADER, LIMIT);
    let mut next = 1;
    while !script.0.is_empty() {
        let mad = script.segment([next as u8; MAD_LEN], next);
        let acked = |answer: &Mad| RmppHeader::parse(&answer[24..]).unwrap();
        match receiver.handle(&mad) {
            Step::Wait => next += 1,
            Step::Answer(answer) => {
                let header = acked(&answer);
                assert_eq!(header.rmpp_type, rmpp::ACK);
                assert!(header.data2 > header.data1, "a window that closes");
                next = header.data1 + 1;
            }
            Step::Done(_, data) => {
                assert!(data.len() <= LIMIT, "{} bytes", data.len());
                return;
            }
            Step::Failed(_) => return,
        }
    }
});

/// Questions of every kind; the answers are varied requests.
fn conversations() -> Vec<Vec<u8>> {
    (0..32u8).map(|at| [0, at % 5, 2, 1, at, 0x81, 0, 4, 0, at * 8, 0, 1, 0, 3, at, 2, 9].repeat(3)).collect()
}

target!(sa_client, conversations(), |bytes| {
    let mut script = Script(bytes);
    let mut now = Instant::now();
    let (mut client, mut asked, mut answered) = (SaClient::new(7), 0, Vec::new());
    let mut last = [0; MAD_LEN];
    let (a, b, pkey) = (Gid([1; 16]), Gid([2; 16]), PKey::DEFAULT);
    while !script.0.is_empty() {
        match script.byte() % 4 {
            0 => {
                let ask = match script.byte() % 5 {
                    0 | 1 => Ask::Path { sgid: a, dgid: Gid([script.byte(); 16]), pkey },
                    2 => Ask::Paths { sgid: a, dgid: b, pkey, most: 4 },
                    3 => Ask::Join { mgid: b, port_gid: a, pkey, qkey: QKey(1), join: 1 },
                    _ => Ask::Leave { mgid: b, port_gid: a, join: 1 },
                };
                client.ask(Some(now), asked, ask);
                asked += 1;
            }
            1 => {
                // The request comes back as a response, with a transfer's header.
                let mut answer = last;
                answer[3] = script.byte();
                let number = u32::from(script.byte() % 4);
                let answer = script.segment(answer, number);
                client.handle_mad(now, &answer);
            }
            2 => {
                now += Duration::from_millis(u64::from(script.byte()) * 4);
                client.handle_timeout(now);
            }
            _ => client.circumstances_changed(),
        }
        while let Some(mad) = client.poll_transmit(now) {
            last = *mad;
        }
        answered.extend(std::iter::from_fn(|| client.poll_answer()).map(|(token, _)| token));
    }
    for _ in 0..MAX_TIMERS {
        let Some(due) = client.poll_timeout() else { break };
        now = now.max(due);
        client.handle_timeout(now);
        while client.poll_transmit(now).is_some() {}
        answered.extend(std::iter::from_fn(|| client.poll_answer()).map(|(token, _)| token));
    }
    answered.sort_unstable();
    assert!(answered.iter().copied().eq(0..asked), "{answered:?} of {asked}");
    assert_eq!(client.footprint(), 0);
});
