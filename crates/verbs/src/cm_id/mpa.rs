//! Connections over iWARP: the same records, queues and futures as over InfiniBand's connection manager, with MPA's start-up
//! frames on a TCP connection below.
//!
//! Read RFC 5044 §7 and RFC 6581 first. The frames are `everywire_transport::cm::iwarp`'s; here are listeners, queue pairs and
//! what the program hears. Connecting: route, TCP connection, request frame, reply frame, RTS. Listening: TCP connection,
//! request frame, the program's answer, reply frame, RTS. Disconnecting ends the TCP connection; there are no messages for it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everywire_transport::cm::iwarp::{
    AcceptParams, Agreed, Failure, Initiator, InitiatorConfig, MpaEvent, Request, Responder, ResponderConfig,
    RtrSet,
};
use everywire_transport::ib::QpType;
use everywire_transport::iwarp::{ConnId, LARGE_ULPDU, Rtr, StreamFault};
use everywire_wire::cm::RejReason;
use everywire_wire::mpa;
use everywire_wire::rdmap::LlpError;

use super::ListenerId;
use super::error::{CmErrorKind, CmStep, DisconnectReason};
use super::param::ConnParam;
use super::record::{End, Key, Record, socket_addr};
use super::starting::{Dial, Starting};
use crate::command::Command;
use crate::counters::DeviceCounter;
use crate::route::Way;
use crate::state::State;
use crate::stream::{StreamError, StreamListenerId};
use crate::streams::Phase;

/// How long to wait for the reply where the program sets no limit: it waits for the peer's program, not for its stack.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest DDP segment to send: one that fits a TCP segment (RFC 5044 §5), and no longer than what pays.
fn max_ulpdu(mss: usize, markers: bool) -> usize {
    mpa::mulpdu(mss, markers).min(LARGE_ULPDU)
}

fn rtr_set(rtr: Rtr) -> RtrSet {
    match rtr {
        Rtr::Send => RtrSet::SEND,
        Rtr::Write => RtrSet::WRITE,
        Rtr::Read => RtrSet::READ,
    }
}

impl State {
    /// Carries out what programs have asked for.
    pub(crate) fn mpa_run(&mut self, now: Instant) {
        if !self.cm.calls.is_empty() {
            self.cm_run(now);
        }
    }

    // Connecting.

    /// The route is known: the TCP connection can be made.
    pub(super) fn mpa_dial(&mut self, key: Key, traffic_class: u8, way: &Way) {
        let enhanced = self.config.iwarp.mpa_version >= 2;
        let Some(record) = self.cm.records.get_mut(key) else { return };
        record.step = CmStep::Connect;
        record.local = socket_addr(way.src, record.local.port(), way.scope_id);
        let dial = Dial { src: record.local, dst: record.remote, traffic_class, enhanced };
        self.mpa_dial_again(key, dial);
    }

    fn mpa_dial_again(&mut self, key: Key, dial: Dial) {
        let conn = self.streams.add(Phase::Dialling(dial), Some(key), 0);
        if let Some(record) = self.cm.records.get_mut(key) {
            record.conn = Some(conn);
        }
        let Dial { src, dst, traffic_class, .. } = dial;
        self.command(Command::StreamConnect { conn, src, dst, traffic_class });
    }

    /// The TCP connection is there: the request frame goes out.
    pub(crate) fn mpa_connected(&mut self, now: Instant, conn: ConnId, local: SocketAddr, mss: usize) {
        let options = self.config.iwarp;
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let (Phase::Dialling(dial), Some(key)) = (&stream.phase, stream.key) else { return };
        let dial = *dial;
        stream.mss = mss;
        let Some(record) = self.cm.records.get_mut(key) else { return self.stream_reset(conn) };
        record.local = local;
        let config = InitiatorConfig {
            enhanced: dial.enhanced,
            crc: options.crc,
            markers: options.markers,
            ird: record.ours.responder_resources.into(),
            ord: record.ours.initiator_depth.into(),
            peer_to_peer: options.peer_to_peer.filter(|_| dial.enhanced).map(rtr_set),
            private_data: record.ours.private_data.clone(),
            timeout: record.time_limit().unwrap_or(REPLY_TIMEOUT),
            pause: options.pause,
        };
        match Initiator::new(now, config) {
            Ok(mpa) => {
                if let Some(stream) = self.streams.get_mut(conn) {
                    stream.phase = Phase::Starting(Box::new(Starting::Asking { mpa, dial }));
                }
                self.mpa_settle(now, conn);
            }
            Err(error) => {
                self.stream_reset(conn);
                self.cm_end(key, End::Failed(CmErrorKind::MpaRefused(error)));
            }
        }
    }

    // Listening.

    /// A listening socket took a connection: whoever answers its request.
    pub(crate) fn mpa_answering(
        &mut self,
        now: Instant,
        listener: StreamListenerId,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<Starting> {
        let listener = ListenerId(listener.0);
        self.cm.listeners.get(&listener)?;
        let options = &self.config.iwarp;
        let config =
            ResponderConfig { crc: options.crc, markers: options.markers, ..ResponderConfig::default() };
        let mpa = Responder::new(now, config);
        Some(Starting::Answering { mpa, listener, local, peer })
    }

    /// A request has come: it waits for a program.
    fn mpa_request(&mut self, now: Instant, conn: ConnId, request: Request) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let Phase::Starting(starting) = &mut stream.phase else { return };
        let Starting::Answering { listener, local, peer, .. } = &mut **starting else { return };
        let (listener, local, peer) = (*listener, *local, *peer);
        self.streams.half_open.remove(conn);
        let full = match self.cm.listeners.get(&listener) {
            Some(queue) => queue.is_full(),
            None => true,
        };
        if full {
            return self.mpa_reject(now, conn, &[]);
        }
        let most = self.config.limits.max_qp_rd_atom;
        let depth = |asked: Option<u16>| asked.map_or(most, |asked| asked.min(most.into()) as u8);
        let mut record = Record::new(CmStep::Accept, QpType::Rc, local, peer);
        record.conn = Some(conn);
        record.queued_on = Some(listener);
        record.peers = ConnParam {
            private_data: request.private_data,
            responder_resources: depth(request.ird),
            initiator_depth: depth(request.ord),
            min_rnr_timer: 0,
            ..ConnParam::default()
        };
        let key = self.cm.records.insert(record);
        if let Some(stream) = self.streams.get_mut(conn) {
            stream.key = Some(key);
        }
        if let Some(queue) = self.cm.listeners.get_mut(&listener) {
            queue.add(key, &mut self.core.wakes);
        }
    }

    /// The program's yes.
    pub(super) fn mpa_accept(&mut self, now: Instant, key: Key) {
        let Some(record) = self.cm.records.get(key) else { return };
        let Some(conn) = record.conn else { return };
        let params = AcceptParams {
            ird: record.ours.responder_resources.into(),
            ord: record.ours.initiator_depth.into(),
            private_data: record.ours.private_data.clone(),
        };
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let Phase::Starting(starting) = &mut stream.phase else { return };
        let Starting::Answering { mpa, .. } = &mut **starting else { return };
        match mpa.accept(params) {
            Ok(()) => self.mpa_settle(now, conn),
            Err(error) => {
                self.cm_end(key, End::Failed(CmErrorKind::MpaRefused(error)));
                self.mpa_reject(now, conn, &[]);
            }
        }
    }

    /// The program's no.
    pub(super) fn mpa_reject(&mut self, now: Instant, conn: ConnId, private_data: &[u8]) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        stream.key = None;
        if let Phase::Starting(starting) = &mut stream.phase
            && let Starting::Answering { mpa, .. } = &mut **starting
        {
            // The length was checked at the call; a request that has ended needs no answer.
            let _ = mpa.reject(private_data);
        }
        self.mpa_settle(now, conn);
        self.stream_close(now, conn);
    }

    /// Nobody wants the connection any more, whatever it has come to.
    pub(super) fn mpa_abandon(&mut self, now: Instant, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        stream.key = None;
        match &stream.phase {
            Phase::Starting(starting) if matches!(**starting, Starting::Answering { .. }) => {
                self.mpa_reject(now, conn, &[]);
            }
            Phase::Dialling(_) | Phase::Starting(_) => self.stream_reset(conn),
            Phase::Running(_) => self.stream_close(now, conn),
            Phase::Closing => {}
        }
    }

    // Both.

    /// Bytes of the start-up; how many belong to it.
    pub(crate) fn mpa_bytes(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) -> usize {
        let Some(stream) = self.streams.get_mut(conn) else { return bytes.len() };
        let Phase::Starting(starting) = &mut stream.phase else { return bytes.len() };
        let taken = starting.handle_stream(now, bytes);
        self.mpa_settle(now, conn);
        taken
    }

    /// Its time may be over.
    pub(crate) fn mpa_timeout(&mut self, now: Instant, conn: ConnId) {
        if let Some(stream) = self.streams.get_mut(conn)
            && let Phase::Starting(starting) = &mut stream.phase
        {
            starting.handle_timeout(now);
            self.mpa_settle(now, conn);
        }
    }

    /// The connection ended before the queue pair had it.
    pub(crate) fn mpa_cut_short(&mut self, now: Instant, conn: ConnId, error: Option<StreamError>) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        match &mut stream.phase {
            Phase::Starting(starting) => {
                starting.closed(error);
                self.mpa_settle(now, conn);
            }
            Phase::Dialling(_) => {
                let error = error.unwrap_or(StreamError::Reset);
                if let Some(key) = stream.key {
                    self.cm_end(key, End::Failed(CmErrorKind::Stream(error)));
                }
            }
            Phase::Running(_) | Phase::Closing => {}
        }
    }

    /// Draws what a call on the start-up has led to.
    fn mpa_settle(&mut self, now: Instant, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let Phase::Starting(starting) = &mut stream.phase else { return };
        let (frame, event) = starting.poll();
        let due = starting.poll_timeout();
        let key = stream.key;
        let answered = frame.is_some();
        self.streams.set_due(conn, due);
        if let Some(frame) = frame {
            self.streams.send_frame(conn, frame);
            self.work = true;
        }
        match event {
            None => {}
            Some(MpaEvent::Request(request)) => self.mpa_request(now, conn, request),
            Some(MpaEvent::Accepted(agreed)) => self.mpa_agreed(now, conn, &agreed),
            Some(MpaEvent::Rejected { private_data }) => {
                if let Some(key) = key {
                    let reason = RejReason::ConsumerReject;
                    let kind =
                        CmErrorKind::Rejected { reason, info: Vec::new(), asked_mtu: None, private_data };
                    self.cm_end(key, End::Failed(kind));
                }
                self.stream_close(now, conn);
            }
            Some(MpaEvent::Failed(failure)) => self.mpa_failed(now, conn, failure, answered),
        }
    }

    /// Start-up is done: the queue pair has the stream.
    fn mpa_agreed(&mut self, now: Instant, conn: ConnId, agreed: &Agreed) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let params = agreed.stream(conn, max_ulpdu(stream.mss, agreed.markers_send));
        let key = stream.key;
        let record = key.and_then(|key| self.cm.records.get_mut(key));
        let (Some(key), Some(record)) = (key, record) else { return self.mpa_renege(now, conn, agreed) };
        if agreed.initiator {
            record.peers.private_data.clone_from(&agreed.private_data);
        }
        record.peers.responder_resources = agreed.ord.min(u8::MAX.into()) as u8;
        record.peers.initiator_depth = agreed.ird.min(u8::MAX.into()) as u8;
        record.ours.private_data = Vec::new();
        record.moved_qp = true;
        let slot = record.qpn.and_then(|qpn| self.qps.slot(qpn));
        let started = slot.and_then(|slot| {
            let started = self.with_slot(slot, |qp, core| Some(qp.iwarp()?.start(core, now, params)))??;
            Some(started.map(|()| slot).map_err(|error| CmErrorKind::Qp(error.to_string())))
        });
        match started.unwrap_or_else(|| Err(CmErrorKind::Qp(String::from("the queue pair is gone")))) {
            Ok(slot) => {
                self.streams.set_due(conn, None);
                if let Some(stream) = self.streams.get_mut(conn) {
                    stream.phase = Phase::Running(slot);
                }
                self.cm_up(key);
            }
            Err(kind) => {
                if let Some(stream) = self.streams.get_mut(conn) {
                    stream.key = None;
                }
                self.mpa_renege(now, conn, agreed);
                self.cm_end(key, End::Failed(kind));
            }
        }
    }

    /// What both ends agreed on can't be done here: an initiator says so (RFC 6581 §8, code 5), a responder may not yet.
    fn mpa_renege(&mut self, now: Instant, conn: ConnId, agreed: &Agreed) {
        let Some(last) = agreed.refusal(LlpError::Catastrophic) else { return self.stream_reset(conn) };
        self.streams.send_frame(conn, last);
        self.work = true;
        self.stream_close(now, conn);
    }

    /// The start-up failed; `answered`: there is a last word for the peer.
    fn mpa_failed(&mut self, now: Instant, conn: ConnId, failure: Failure, answered: bool) {
        let Some(stream) = self.streams.get_mut(conn) else { return };
        let (key, mut stranger) = (stream.key, None);
        let dial = match &stream.phase {
            Phase::Starting(starting) => match &**starting {
                Starting::Asking { dial, .. } => Some(*dial),
                Starting::Answering { local, peer, .. } => {
                    stranger = Some((*local, *peer));
                    None
                }
            },
            _ => None,
        };
        stream.key = None;
        if answered {
            self.stream_close(now, conn);
        } else {
            self.stream_reset(conn);
        }
        let Some(key) = key else {
            // No request has come: nobody else will hear of it.
            if let Some((local, peer)) = stranger {
                self.core.counters.add_device(DeviceCounter::MpaStrangers, 1);
                self.command(Command::StreamStranger { local, peer, why: failure.to_string() });
            }
            return;
        };
        // A peer that knows RFC 5044 only is asked again in its own words.
        if let Some(dial) = dial
            && dial.enhanced
            && failure.try_revision_1()
            && self.config.iwarp.peer_to_peer.is_none()
        {
            return self.mpa_dial_again(key, Dial { enhanced: false, ..dial });
        }
        if !self.cm_unqueue(key) {
            self.cm_end(key, End::Failed(CmErrorKind::Mpa(failure)));
        }
    }

    /// The TCP connection of an established connection is over, or its queue pair has done with it.
    pub(crate) fn mpa_ended(&mut self, key: Option<Key>, error: Option<StreamError>) {
        let Some(key) = key else { return };
        let Some(record) = self.cm.records.get(key) else { return };
        let reason = match (record.leaving, error) {
            (true, Some(StreamError::TimedOut)) => DisconnectReason::TimedOut,
            (true, _) => DisconnectReason::Local,
            (false, None) => DisconnectReason::Peer,
            (false, Some(error)) => DisconnectReason::Stream(error),
        };
        self.cm_end(key, End::Closed(reason));
    }

    /// A queue pair has ended its stream, for an error of its own or of its peer if it says so.
    pub(crate) fn mpa_broken(&mut self, key: Option<Key>, fault: Option<StreamFault>) {
        let Some(key) = key else { return };
        if self.cm.records.get(key).is_some_and(|record| !record.leaving) {
            let reason = fault.map_or(DisconnectReason::Local, DisconnectReason::Broken);
            self.cm_end(key, End::Closed(reason));
        }
    }

    /// What a program's limit of private data is over iWARP, or over InfiniBand's connection manager.
    pub(super) fn private_limit(&self, over_ib: usize) -> usize {
        match self.config.wire {
            crate::Wire::Iwarp => super::IWARP_PRIVATE_DATA,
            _ => over_ib,
        }
    }
}
