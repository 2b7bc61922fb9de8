//! Two engines on a wire that a test can cut, in virtual time.
//!
//! What a test expects is written in the test: MADs by the standard's abbreviation, in the order they were sent.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use everywire_wire::cm::{CmMad, CmMessage};
use everywire_wire::{Guid, Mtu, PKey, Psn, Qpn};

use crate::cm::ib::*;
use crate::mad::{MAD_LEN, MadPath};

pub const SERVICE: u64 = 0x0106_1144;
pub const A: &str = "192.0.2.1";
pub const B: &str = "192.0.2.2";

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn path(local: &str, remote: &str) -> MadPath {
    MadPath { link: crate::ib::PathLink::Udp, local: ip(local), remote: ip(remote), scope_id: 0 }
}

pub fn connect_params(path: MadPath, qpn: u32) -> ConnectParams {
    ConnectParams {
        gids: None,
        path,
        service_id: SERVICE,
        transport: Transport::Rc,
        qpn: Qpn::new(qpn),
        pkey: PKey::DEFAULT,
        path_mtu: Mtu::M1024,
        responder_resources: 4,
        initiator_depth: 8,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ack_timeout: None,
        flow_label: 0x12345,
        traffic_class: 0,
        hop_limit: 64,
        private_data: b"hello".to_vec(),
    }
}

pub fn accept_params(qpn: u32) -> AcceptParams {
    AcceptParams {
        qpn: Qpn::new(qpn),
        responder_resources: 16,
        initiator_depth: 16,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        private_data: b"welcome".to_vec(),
    }
}

/// One end.
pub struct Side {
    pub cm: Cm,
    pub events: Vec<CmEvent>,
}

/// Two ends and the wire between them. `a` is at [`A`], `b` at [`B`].
pub struct Net {
    pub a: Side,
    pub b: Side,
    pub now: Instant,
    /// Names of all MADs sent, in order, `>` from a and `<` from b; lost ones in brackets.
    pub log: Vec<String>,
    /// Numbers (from 0, over both directions) of MADs that the wire loses.
    pub lose: Vec<usize>,
    /// Loses everything sent by a, by b.
    pub cut: (bool, bool),
    pub sent: usize,
    pub flight: Duration,
}

fn config(guid: u64) -> CmConfig {
    CmConfig { node_guid: Guid(guid), ..CmConfig::default() }
}

impl Net {
    pub fn new() -> Net {
        Net::with(config(0xa), config(0xb))
    }

    pub fn with(a: CmConfig, b: CmConfig) -> Net {
        let side = |config, seed| Side { cm: Cm::new(config, seed), events: Vec::new() };
        Net {
            a: side(a, 1),
            b: side(b, 2),
            now: Instant::now(),
            log: Vec::new(),
            lose: Vec::new(),
            cut: (false, false),
            sent: 0,
            flight: Duration::from_micros(10),
        }
    }

    pub fn listen(&mut self, backlog: usize) -> ListenerId {
        self.b.cm.listen(&ListenParams { service_id: SERVICE, local: None, backlog }).unwrap()
    }

    /// Carries MADs until none is under way; fetches the events.
    pub fn settle(&mut self) {
        loop {
            let from_a = self.a.cm.poll_transmit();
            let from_b = self.b.cm.poll_transmit();
            if from_a.is_none() && from_b.is_none() {
                break;
            }
            if let Some((to, mad)) = from_a {
                assert_eq!(to.remote, ip(B));
                self.carry(true, &mad);
            }
            if let Some((to, mad)) = from_b {
                assert_eq!(to.remote, ip(A));
                self.carry(false, &mad);
            }
        }
        self.a.events.extend(std::iter::from_fn(|| self.a.cm.poll_event()));
        self.b.events.extend(std::iter::from_fn(|| self.b.cm.poll_event()));
    }

    fn carry(&mut self, from_a: bool, mad: &[u8; MAD_LEN]) {
        let name = name(mad);
        let lost = self.lose.contains(&self.sent) || if from_a { self.cut.0 } else { self.cut.1 };
        self.sent += 1;
        let arrow = if from_a { '>' } else { '<' };
        self.log.push(if lost { format!("[{arrow}{name}]") } else { format!("{arrow}{name}") });
        if lost {
            return;
        }
        self.now += self.flight;
        if from_a {
            self.b.cm.handle_mad(self.now, path(B, A), mad);
        } else {
            self.a.cm.handle_mad(self.now, path(A, B), mad);
        }
    }

    /// Lets the earliest timer of either side run; `false` when none is armed.
    pub fn tick(&mut self) -> bool {
        let next = self.a.cm.poll_timeout().into_iter().chain(self.b.cm.poll_timeout()).min();
        let Some(at) = next else { return false };
        self.now = self.now.max(at);
        self.a.cm.handle_timeout(self.now);
        self.b.cm.handle_timeout(self.now);
        self.settle();
        true
    }

    /// Runs timers until none is armed; how long that took.
    pub fn run_out(&mut self) -> Duration {
        let start = self.now;
        self.settle();
        while self.tick() {}
        self.now - start
    }

    pub fn connect(&mut self, qpn: u32) -> CommId {
        self.a.cm.connect(self.now, &connect_params(path(A, B), qpn)).unwrap()
    }

    /// The whole handshake; both ids.
    pub fn connected(&mut self, qpn_a: u32, qpn_b: u32) -> (CommId, CommId) {
        let a = self.connect(qpn_a);
        self.settle();
        let b = self.b.take_request().id;
        self.b.cm.accept(self.now, b, &accept_params(qpn_b)).unwrap();
        self.settle();
        self.a.take_reply();
        self.a.cm.establish(self.now, a, &[]).unwrap();
        self.settle();
        let established = self.b.events.pop();
        assert!(matches!(established, Some(CmEvent::Established { by: EstablishedBy::Rtu, .. })));
        assert_eq!(self.a.cm.state(a), Some(State::Established));
        (a, b)
    }
}

impl Side {
    pub fn take_request(&mut self) -> Request {
        match self.take(|event| matches!(event, CmEvent::Request(_))) {
            CmEvent::Request(request) => *request,
            other => panic!("no request but {other:?}"),
        }
    }

    pub fn take_reply(&mut self) -> Reply {
        match self.take(|event| matches!(event, CmEvent::Reply(_))) {
            CmEvent::Reply(reply) => *reply,
            other => panic!("no reply but {other:?}"),
        }
    }

    fn take(&mut self, wanted: fn(&CmEvent) -> bool) -> CmEvent {
        let at = self.events.iter().position(wanted);
        self.events.remove(at.unwrap_or_else(|| panic!("not among {:?}", self.events)))
    }

    /// Answers every request and reply waiting; other events are left.
    pub fn serve(&mut self, now: Instant, qpn: u32) -> bool {
        let mut did = false;
        let events = std::mem::take(&mut self.events);
        for event in events {
            match event {
                CmEvent::Request(r) => did |= self.cm.accept(now, r.id, &accept_params(qpn)).is_ok(),
                CmEvent::Reply(r) => did |= self.cm.establish(now, r.id, &[]).is_ok(),
                other => self.events.push(other),
            }
        }
        did
    }
}

/// The abbreviation of a MAD, with the reason of a REJ and the kind of an MRA.
pub fn name(mad: &[u8; MAD_LEN]) -> String {
    match CmMad::parse(mad).unwrap().message {
        CmMessage::Rej(rej) => format!("REJ {}", rej.reason.code()),
        message => message.name().to_owned(),
    }
}

pub fn parsed(mad: &[u8; MAD_LEN]) -> CmMessage {
    CmMad::parse(mad).unwrap().message
}

/// A message from nowhere, as the other end would see it.
pub fn forged(tid: u64, message: impl Into<CmMessage>) -> [u8; MAD_LEN] {
    CmMad::new(tid, message).emit()
}

pub fn psn(value: u32) -> Psn {
    Psn::new(value)
}
