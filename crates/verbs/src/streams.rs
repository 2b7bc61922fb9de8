//! A device's TCP connections: which phase each is in, and who gets its bytes.
//!
//! Read RFC 5044 §7 (MPA start-up) and RFC 5040 §6 (ends of streams) first; [`crate::stream`] has the contract with the
//! driver. A connection belongs to the connection manager until MPA's frames are exchanged (`cm_id::mpa`), then to its queue
//! pair, then to nobody until the peer has ended it too:
//!
//! `Dialling` (driver connects) → `Starting` (MPA frames) → `Running` (a queue pair's) → `Closing` (our end is said) → gone.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everywire_transport::iwarp::{Close, ConnId, StreamBurst, StreamEvent};

use crate::cm_id::{Dial, Key, Starting};
use crate::command::Command;
use crate::half_open::HalfOpen;
use crate::state::State;
use crate::stream::{ConnEvent, StreamError, StreamListenerId};

/// How long the peer may take to end a connection that we have ended, or to take what it was sent before.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whose a connection is.
pub(crate) enum Phase {
    /// The driver connects.
    Dialling(Dial),
    /// MPA start-up.
    Starting(Box<Starting>),
    /// Of the queue pair in this slot.
    Running(u32),
    /// We have said our end; what still comes is dropped.
    Closing,
}

/// A connection.
pub(crate) struct Stream {
    pub(crate) phase: Phase,
    /// The attempt or connection that it carries.
    pub(crate) key: Option<Key>,
    /// The largest segment, bytes.
    pub(crate) mss: usize,
    /// Bytes of MPA frames that the driver has and has not reported as written.
    unwritten: usize,
    /// The peer has said its end.
    eof: bool,
    /// When to look at it though nothing arrives; mirrored in [`Streams::timers`].
    due: Option<Instant>,
}

/// All connections of a device.
#[derive(Default)]
pub(crate) struct Streams {
    last: u64,
    all: HashMap<ConnId, Stream>,
    /// MPA frames to send.
    frames: VecDeque<(ConnId, Vec<u8>)>,
    timers: BTreeSet<(Instant, ConnId)>,
    /// Connections of listeners without a request yet.
    pub(crate) half_open: HalfOpen<ConnId>,
    /// Queue pairs that want their connections ended.
    closes: Vec<(u32, Close)>,
}

impl Streams {
    pub(crate) fn add(&mut self, phase: Phase, key: Option<Key>, mss: usize) -> ConnId {
        self.last += 1;
        let conn = ConnId(self.last);
        self.all.insert(conn, Stream { phase, key, mss, unwritten: 0, eof: false, due: None });
        conn
    }

    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Stream> {
        self.all.get_mut(&conn)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len() + self.frames.len() + self.timers.len()
    }

    /// Queues an MPA frame.
    pub(crate) fn send_frame(&mut self, conn: ConnId, frame: Vec<u8>) {
        if let Some(stream) = self.all.get_mut(&conn) {
            stream.unwritten += frame.len();
            self.frames.push_back((conn, frame));
        }
    }

    /// Sets when a connection is looked at; `None` for not.
    pub(crate) fn set_due(&mut self, conn: ConnId, due: Option<Instant>) {
        let Some(stream) = self.all.get_mut(&conn) else { return };
        if let Some(old) = std::mem::replace(&mut stream.due, due) {
            self.timers.remove(&(old, conn));
        }
        if let Some(at) = due {
            self.timers.insert((at, conn));
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// The next that is to be looked at; its timer is off.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<ConnId> {
        let &(at, conn) = self.timers.first()?;
        if at > now {
            return None;
        }
        self.set_due(conn, None);
        Some(conn)
    }

    fn remove(&mut self, conn: ConnId) -> Option<Stream> {
        self.set_due(conn, None);
        let stream = self.all.remove(&conn)?;
        self.half_open.remove(conn);
        if stream.unwritten > 0 {
            self.frames.retain(|(of, _)| *of != conn);
        }
        Some(stream)
    }

    /// A queue pair wants its connection ended.
    #[cold]
    pub(crate) fn note_close(&mut self, slot: u32, close: Close) {
        self.closes.push((slot, close));
    }
}

impl State {
    /// A listening socket took a connection.
    pub(crate) fn stream_accepted(
        &mut self,
        now: Instant,
        listener: StreamListenerId,
        local: SocketAddr,
        peer: SocketAddr,
        mss: usize,
    ) -> Option<ConnId> {
        let starting = self.mpa_answering(now, listener, local, peer)?;
        let due = starting.poll_timeout();
        let conn = self.streams.add(Phase::Starting(Box::new(starting)), None, mss);
        self.streams.set_due(conn, due);
        if let Some(oldest) = self.streams.half_open.add(conn, peer.ip()) {
            self.stream_reset(oldest);
        }
        Some(conn)
    }

    /// Something happened to a connection.
    pub(crate) fn stream_happened(&mut self, now: Instant, conn: ConnId, event: ConnEvent) {
        match event {
            ConnEvent::Connected { local, mss } => self.mpa_connected(now, conn, local, mss),
            ConnEvent::Failed(error) => self.stream_lost(now, conn, error),
            ConnEvent::Written(bytes) => self.stream_written(now, conn, bytes),
            ConnEvent::Eof => self.stream_eof(now, conn),
            ConnEvent::Reset(error) => self.stream_lost(now, conn, error),
        }
    }

    #[inline]
    fn stream_written(&mut self, now: Instant, conn: ConnId, bytes: usize) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let of_mpa = bytes.min(stream.unwritten);
        stream.unwritten -= of_mpa;
        let rest = bytes - of_mpa;
        if rest > 0
            && let Phase::Running(slot) = stream.phase
        {
            self.with_slot(slot, |qp, core| {
                if let Some(qp) = qp.iwarp() {
                    qp.stream_event(core, now, StreamEvent::Written(rest));
                }
            });
        }
    }

    /// The peer has said its end.
    fn stream_eof(&mut self, now: Instant, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        stream.eof = true;
        match stream.phase {
            Phase::Closing => {
                if let Some(stream) = self.streams.remove(conn) {
                    self.mpa_ended(stream.key, None);
                }
            }
            Phase::Running(slot) => {
                self.stream_ended(now, conn, slot, StreamEvent::Eof);
                self.stream_close(now, conn);
            }
            Phase::Dialling(_) | Phase::Starting(_) => {
                self.mpa_cut_short(now, conn, None);
                match self.streams.get_mut(conn).map(|stream| &stream.phase) {
                    // Start-up was done but for the pause: the connection was up for no time.
                    Some(Phase::Running(_)) => self.stream_eof(now, conn),
                    _ => self.stream_reset(conn),
                }
            }
        }
    }

    /// The queue pair in `slot` hears of the end of its stream, and what is wrong with it goes to the program.
    fn stream_ended(&mut self, now: Instant, conn: ConnId, slot: u32, event: StreamEvent) {
        let fault = self.with_slot(slot, |qp, core| {
            let qp = qp.iwarp()?;
            qp.stream_event(core, now, event);
            qp.fault()
        });
        if let Some(fault) = fault.flatten()
            && let Some(stream) = self.streams.get_mut(conn)
        {
            let key = stream.key;
            self.mpa_broken(key, Some(fault));
        }
    }

    /// It is gone.
    fn stream_lost(&mut self, now: Instant, conn: ConnId, error: StreamError) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        if matches!(stream.phase, Phase::Dialling(_) | Phase::Starting(_)) {
            self.mpa_cut_short(now, conn, Some(error));
        }
        if let Some(stream) = self.streams.get_mut(conn)
            && let Phase::Running(slot) = stream.phase
        {
            self.stream_ended(now, conn, slot, StreamEvent::Reset);
        }
        if let Some(stream) = self.streams.remove(conn) {
            self.mpa_ended(stream.key, Some(error));
        }
    }

    /// Bytes of a connection arrived.
    #[inline]
    pub(crate) fn stream_bytes(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        match stream.phase {
            Phase::Running(slot) => self.stream_to_qp(now, slot, bytes),
            Phase::Starting(_) => {
                let taken = self.mpa_bytes(now, conn, bytes);
                // Whatever follows MPA's last frame is the queue pair's already.
                if taken < bytes.len()
                    && let Some(stream) = self.streams.get_mut(conn)
                    && let Phase::Running(slot) = stream.phase
                {
                    self.stream_to_qp(now, slot, &bytes[taken..]);
                }
            }
            Phase::Dialling(_) | Phase::Closing => {}
        }
    }

    #[inline]
    fn stream_to_qp(&mut self, now: Instant, slot: u32, bytes: &[u8]) {
        self.with_slot(slot, |qp, core| {
            if let Some(qp) = qp.iwarp() {
                qp.handle_stream(core, now, bytes);
            }
        });
    }

    /// Fills `out` with bytes of the next connection that has some.
    pub(crate) fn next_stream(&mut self, now: Instant, out: &mut StreamBurst) -> bool {
        self.mpa_run(now);
        if let Some((conn, frame)) = self.streams.frames.pop_front() {
            out.set(conn, &frame);
            return true;
        }
        while let Some(slot) = self.next_ready() {
            let Some(qp) = self.qps.at(slot).and_then(|entry| entry.qp.iwarp()) else { continue };
            let filled = qp.poll_transmit(&mut self.core, now, out);
            self.settle(slot, filled);
            if filled {
                return true;
            }
        }
        // What queue pairs had to say of their end is on its way: now the connections can end.
        self.stream_closes(now);
        false
    }

    fn stream_closes(&mut self, now: Instant) {
        while let Some((slot, close)) = self.streams.closes.pop() {
            let Some(qp) = self.qps.at(slot).and_then(|entry| entry.qp.iwarp()) else { continue };
            let (Some(conn), fault) = (qp.conn(), qp.fault()) else { continue };
            let Some(stream) = self.streams.get_mut(conn) else { continue };
            let key = stream.key;
            let leaving = key.is_some_and(|key| self.cm_is_leaving(key));
            self.mpa_broken(key, fault);
            match close {
                // What was completed must arrive, also where the program has ended its queue pair.
                Close::Abort if !leaving => self.stream_reset(conn),
                Close::Graceful | Close::Abort => self.stream_close(now, conn),
            }
        }
    }

    /// The queue pair in `slot` has nothing to do with its TCP connection any more, which ends once the driver has sent what
    /// it has.
    pub(crate) fn drop_stream(&mut self, slot: u32) {
        let conn = self.qps.at(slot).and_then(|entry| entry.qp.iwarp()?.conn());
        if let (Some(now), Some(conn)) = (self.now, conn) {
            self.stream_close(now, conn);
        }
    }

    /// Says our end: what was given to the driver is sent first. The peer has [`CLOSE_TIMEOUT`] for its own.
    pub(crate) fn stream_close(&mut self, now: Instant, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        if matches!(stream.phase, Phase::Closing) {
            return;
        }
        stream.phase = Phase::Closing;
        let eof = stream.eof;
        self.streams.half_open.remove(conn);
        self.command(Command::StreamClose { conn });
        if eof {
            // Frames that are still to be sent keep the entry until they are.
            self.streams.set_due(conn, None);
            if let Some(stream) = self.streams.all.remove(&conn) {
                self.mpa_ended(stream.key, None);
            }
        } else {
            self.streams.set_due(conn, Some(now + CLOSE_TIMEOUT));
        }
    }

    /// Ends a connection at once.
    pub(crate) fn stream_reset(&mut self, conn: ConnId) {
        if self.streams.remove(conn).is_some() {
            self.command(Command::StreamReset { conn });
        }
    }

    /// Time has passed.
    pub(crate) fn stream_timeouts(&mut self, now: Instant) {
        while let Some(conn) = self.streams.pop_due(now) {
            let Some(stream) = self.streams.get_mut(conn) else { continue };
            match stream.phase {
                Phase::Closing => {
                    let key = stream.key;
                    self.stream_reset(conn);
                    self.mpa_ended(key, Some(StreamError::TimedOut));
                }
                Phase::Starting(_) => self.mpa_timeout(now, conn),
                Phase::Dialling(_) | Phase::Running(_) => {}
            }
        }
    }
}
