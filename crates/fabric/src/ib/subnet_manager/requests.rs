//! The manager's own requests: a bounded number on their way, each sent again until it is answered or given up.
//!
//! Read IBTA §13.4.6.3 (timeouts) and §14.2.2 (directed routes) first. Lane 15 has no flow control: too many at once would be
//! dropped by the ports on the way, which is what the window is for. What an answer means is [`super::sweep`]'s and
//! [`super::setup`]'s affair.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_wire::smp::Smp;
use everywire_wire::{Guid, Lid};

use super::{Address, SmMad};

/// Ports to leave by, from the manager's own node on.
pub(super) type Path = Arc<[u8]>;

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Who is at the end of the path; where it was seen from, by node and port.
    Discover(Option<(Guid, u8)>),
    /// Name of a node.
    Description(Guid),
    /// New name of a node that is known.
    Renamed(Guid),
    /// What a switch can do, at a sweep.
    Switch(Guid),
    /// State of a node's port, at a sweep.
    Port(Guid, u8),
    /// Another manager, by the GUID of its port.
    Manager(Guid),
    /// Settles an attribute of a node's port (0 where the whole node is meant).
    Set(Guid, u8),
    /// Moves a port on to a state.
    State(Guid, u8, u8),
    /// Whether a switch has seen a change.
    Light(Guid),
    /// Whether the master lives.
    Poll(Guid),
    /// Control of another manager.
    Control(Guid, u32),
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub path: Path,
    pub method: u8,
    pub attribute: u16,
    pub modifier: u32,
    pub data: Option<Box<[u8; 64]>>,
    pub purpose: Purpose,
}

impl Request {
    /// A read.
    pub fn get(path: &Path, attribute: u16, modifier: u32, purpose: Purpose) -> Request {
        let method = everywire_wire::mad::method::GET;
        Request { path: path.clone(), method, attribute, modifier, data: None, purpose }
    }

    /// A write.
    pub fn set(path: &Path, attribute: u16, modifier: u32, data: [u8; 64], purpose: Purpose) -> Request {
        let method = everywire_wire::mad::method::SET;
        Request { path: path.clone(), method, attribute, modifier, data: Some(Box::new(data)), purpose }
    }
}

#[derive(Debug)]
struct Open {
    request: Request,
    sent: u8,
}

/// Requests that wait, and those on their way.
#[derive(Debug)]
pub(super) struct Requests {
    /// Last transaction ID; the high half stays zero, as proxies put numbers of their own there.
    next: u32,
    m_key: u64,
    window: usize,
    timeout: Duration,
    tries: u8,
    waiting: VecDeque<Request>,
    again: VecDeque<u64>,
    open: BTreeMap<u64, Open>,
    /// Tries of the request that was answered last.
    last_tries: u8,
    /// When a try is over; in order, for all take the same time. Stale entries name an older try.
    deadlines: VecDeque<(Instant, u64, u8)>,
}

impl Requests {
    pub fn new(config: &super::SmConfig, seed: u32) -> Requests {
        Requests {
            next: seed & 0x7fff_ffff,
            m_key: config.m_key,
            window: config.window.max(1),
            timeout: config.timeout,
            tries: config.retries.saturating_add(1),
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            open: BTreeMap::new(),
            last_tries: 0,
            deadlines: VecDeque::new(),
        }
    }

    pub fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Nothing waits and nothing is on its way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.open.is_empty()
    }

    /// Forgets all of them; late answers find nothing.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.again.clear();
        self.open.clear();
        self.deadlines.clear();
    }

    /// The request that a response answers: of its transaction, attribute and route. Another's leaves it open.
    pub fn answered_by(&mut self, response: &Smp) -> Option<Request> {
        let id = response.header.transaction_id;
        let request = &self.open.get(&id)?.request;
        let hops = usize::from(response.hop_count());
        let same_route =
            response.is_directed() && response.initial_path.get(1..=hops) == Some(&request.path[..]);
        let ours = same_route && response.header.attribute_id == request.attribute;
        if ours { self.answered(id) } else { None }
    }

    fn answered(&mut self, transaction_id: u64) -> Option<Request> {
        self.open.remove(&transaction_id).map(|open| {
            self.last_tries = open.sent;
            open.request
        })
    }

    /// A request was answered, but its answer does not count: as if there had been none.
    pub fn put_back(&mut self, transaction_id: u64, request: Request) {
        self.open.insert(transaction_id, Open { request, sent: self.last_tries });
    }

    /// The next packet to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<SmMad> {
        while let Some(id) = self.again.pop_front() {
            if self.open.contains_key(&id) {
                return Some(self.send(now, id));
            }
        }
        if self.open.len() >= self.window {
            return None;
        }
        let request = self.waiting.pop_front()?;
        self.next = self.next.wrapping_add(1);
        let id = u64::from(self.next);
        self.open.insert(id, Open { request, sent: 0 });
        Some(self.send(now, id))
    }

    fn send(&mut self, now: Instant, id: u64) -> SmMad {
        let open = self.open.get_mut(&id).expect("the caller has looked it up");
        open.sent += 1;
        self.deadlines.push_back((now + self.timeout, id, open.sent));
        let r = &open.request;
        let mut smp = Smp::directed(r.method, r.attribute, r.modifier, id, &r.path);
        smp.m_key = self.m_key;
        if let Some(data) = &r.data {
            smp.data = **data;
        }
        SmMad { address: Address::Smi(Lid::PERMISSIVE), mad: smp.to_mad() }
    }

    /// When [`Requests::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    /// Sends what got no answer again, and gives back what has been sent often enough.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<Request> {
        let mut failed = Vec::new();
        while let Some(&(at, id, sent)) = self.deadlines.front() {
            let open = self.open.get(&id).filter(|open| open.sent == sent);
            if open.is_some() && at > now {
                break;
            }
            self.deadlines.pop_front();
            if open.is_none() {
                continue;
            }
            if sent < self.tries {
                self.again.push_back(id);
            } else {
                failed.extend(self.answered(id));
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everywire_wire::mad::method;
    use everywire_wire::smp::attribute;

    #[test]
    fn only_the_response_of_attribute_and_route_answers() {
        let now = Instant::now();
        let config = super::super::SmConfig::new(Guid(1));
        let mut requests = Requests::new(&config, 40);
        let path = Path::from([3, 4]);
        requests.push(Request::get(&path, attribute::NODE_INFO, 0, Purpose::Discover(None)));
        let sent = Smp::from_mad(&requests.poll_transmit(now).unwrap().mad).unwrap();
        let response = |change: fn(&mut Smp)| {
            let mut smp = Smp { header: sent.header, ..sent };
            smp.header.method = method::GET_RESP;
            change(&mut smp);
            smp
        };
        let foreign = [
            response(|smp| smp.header.attribute_id = attribute::PORT_INFO),
            response(|smp| smp.initial_path[2] = 5),
            response(|smp| smp.header.class_specific = 1),
            response(|smp| smp.header.class_specific = 255),
            response(|smp| smp.header.mgmt_class = everywire_wire::mad::class::SUBN_LID_ROUTED),
            response(|smp| smp.header.transaction_id += 1),
        ];
        for smp in foreign {
            assert_eq!(requests.answered_by(&smp), None, "{:?}", smp.header);
            assert!(!requests.is_idle(), "the request stays open");
        }
        assert!(requests.answered_by(&response(|_| {})).is_some() && requests.is_idle());
    }
}
