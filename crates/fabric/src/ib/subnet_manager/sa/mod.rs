//! Subnet administration: ports ask the master about the subnet, join groups, offer services, subscribe to reports.
//!
//! Read IBTA §15.4 first. [`Sm::administer`] sorts a MAD by method and attribute; [`tables`] answers queries by component
//! mask, [`path`] computes paths, [`multicast`] with [`groups`], [`service`] and [`inform`] keep what ports have registered, [`rmpp`] sends
//! answers of any length. Only a master answers; errors are status codes, never silence.

mod groups;
mod inform;
mod multicast;
mod path;
mod rmpp;
mod service;
mod tables;

use std::time::Instant;

use everywire_wire::mad::{method as mad_method, rmpp as rmpp_type, status as mad_status};
use everywire_wire::sa::{
    CLASS_VERSION, ClassPortInfo, Record, SaMad, ServiceRecord, attribute, attribute_offset, capability,
    capability2, method, status,
};
use everywire_wire::{Gid, Lid, Mad, QKey, Qpn};

use super::config::{MAX_ANSWER_RECORDS, SmConfig};
use super::election::SmState;
use super::inventory::Owner;
use super::routing::MulticastTree;
use super::{Address, GsiAddress, Sm, SmMad};

use groups::Groups;
use inform::Reports;
use rmpp::Transfers;
use service::Services;

/// What ports have registered, and answers on their way.
#[derive(Debug)]
pub(super) struct Administrator {
    groups: Groups,
    services: Services,
    reports: Reports,
    transfers: Transfers,
}

impl Administrator {
    pub fn new(config: &SmConfig) -> Administrator {
        Administrator {
            groups: Groups::new(config),
            services: Services::default(),
            reports: Reports::new(config),
            transfers: Transfers::new(config),
        }
    }

    /// The spanning tree of every group.
    pub fn trees(&self) -> impl Iterator<Item = (Lid, &MulticastTree)> {
        self.groups.trees()
    }

    pub fn poll_transmit(&mut self, now: Instant) -> Option<SmMad> {
        self.transfers.poll_transmit(now).or_else(|| self.reports.poll_transmit(now))
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let timeouts =
            [self.transfers.poll_timeout(), self.reports.poll_timeout(), self.services.poll_timeout()];
        timeouts.into_iter().flatten().min()
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.transfers.handle_timeout(now);
        self.reports.handle_timeout(now);
        self.services.expire(now);
    }
}

/// Records of one kind, each padded to 8 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Records {
    offset: u16,
    bytes: Vec<u8>,
    count: usize,
}

impl Records {
    fn of<R: Record>() -> Records {
        Records { offset: attribute_offset(R::LEN), bytes: Vec::new(), count: 0 }
    }

    fn one<R: Record>(record: &R) -> Records {
        let mut records = Records::of::<R>();
        records.push(record);
        records
    }

    fn push<R: Record>(&mut self, record: &R) {
        let at = self.bytes.len();
        self.bytes.resize(at + usize::from(self.offset) * 8, 0);
        record.emit(&mut self.bytes[at..]);
        self.count += 1;
    }

    /// Those of `all` that match the request's record in the components of its mask.
    ///
    /// # Errors
    /// More than fit into an answer.
    fn matching<R: Record>(request: &SaMad, all: impl Iterator<Item = R>) -> Result<Records, u16> {
        let components = R::components(request.component_mask);
        let mut records = Records::of::<R>();
        let mut bytes = vec![0; R::LEN];
        for record in all {
            record.emit(&mut bytes);
            if !components.match_bytes(&bytes, &request.data) {
                continue;
            }
            if records.count == MAX_ANSWER_RECORDS {
                return Err(status::NO_RESOURCES);
            }
            records.push(&record);
        }
        Ok(records)
    }
}

/// What a request comes to: records, or a status code.
pub(super) type Answer = Result<Records, u16>;

impl Sm {
    /// A MAD of the subnet administration class on QP1.
    pub(super) fn administer(&mut self, now: Instant, from: GsiAddress, mad: &Mad) {
        let Ok(request) = SaMad::from_mad(mad) else { return };
        let kind = request.header.method;
        if kind & mad_method::RESPONSE_BIT != 0 {
            return self.handle_response(now, from, &request);
        }
        // The RMPP of the other end about an answer of ours may carry the request's method.
        if request.rmpp.active && request.rmpp.rmpp_type != rmpp_type::DATA {
            return self.sa.transfers.handle(now, from, &request);
        }
        if self.state != SmState::Master {
            return;
        }
        let by_rmpp = kind == method::GET_TABLE;
        if by_rmpp && self.sa.transfers.is_answering(from, &request) {
            return;
        }
        let answer = if request.header.class_version != CLASS_VERSION {
            Err(mad_status::BAD_VERSION)
        } else if by_rmpp && !self.sa.transfers.has_room(from.lid) {
            // Before the work of finding what there is no room to send.
            Err(status::NO_RESOURCES)
        } else {
            self.serve(now, from, &request)
        };
        let Some(response) = response_method(kind) else { return };
        self.respond(now, from, &request, response, answer);
    }

    fn handle_response(&mut self, now: Instant, from: GsiAddress, response: &SaMad) {
        if response.header.method == mad_method::REPORT_RESP {
            self.sa.reports.answered(response.header.transaction_id);
        } else if response.rmpp.active {
            self.sa.transfers.handle(now, from, response);
        }
    }

    fn serve(&mut self, now: Instant, from: GsiAddress, request: &SaMad) -> Answer {
        use mad_method::{GET, SET};
        use method::{DELETE, GET_TABLE};
        match (request.header.method, request.header.attribute_id) {
            (GET, attribute::CLASS_PORT_INFO) => Ok(Records::one(&self.class_port_info())),
            (SET, attribute::INFORM_INFO) => self.subscribe(from, request),
            (SET, attribute::MC_MEMBER) => self.join(now, from, request),
            (DELETE, attribute::MC_MEMBER) => self.leave(now, from, request),
            (SET, attribute::SERVICE) => {
                self.owns_service(from, request)?;
                self.sa.services.set(now, request)
            }
            (DELETE, attribute::SERVICE) => {
                self.owns_service(from, request)?;
                self.sa.services.delete(request)
            }
            (GET | GET_TABLE, attribute::PATH) => self.paths(request),
            (GET | GET_TABLE, _) => self.query(request),
            (SET | DELETE, _) => Err(mad_status::UNSUPPORTED_METHOD_ATTRIBUTE),
            _ => Err(mad_status::UNSUPPORTED_METHOD),
        }
    }

    fn respond(&mut self, now: Instant, to: GsiAddress, request: &SaMad, response: u8, answer: Answer) {
        let mut mad = SaMad {
            rmpp: Default::default(),
            sm_key: 0,
            attribute_offset: 0,
            data: [0; everywire_wire::sa::DATA_LEN],
            ..*request
        };
        mad.header.method = response;
        mad.header.status = 0;
        let table = request.header.method == method::GET_TABLE;
        let answer = answer.and_then(|records| match records.count {
            _ if table => Ok(records),
            0 => Err(status::NO_RECORDS),
            1 => Ok(records),
            _ => Err(status::TOO_MANY_RECORDS),
        });
        match answer {
            Err(code) => mad.header.status = code,
            Ok(records) if table => {
                mad.attribute_offset = records.offset;
                if self.sa.transfers.start(now, to, mad, records.bytes) {
                    return;
                }
                mad.header.status = status::NO_RESOURCES;
            }
            Ok(records) => {
                mad.attribute_offset = records.offset;
                mad.data[..records.bytes.len()].copy_from_slice(&records.bytes);
            }
        }
        self.answer(Address::Gsi(to), mad.to_mad());
    }

    /// Whether the asker shows the SM_Key: it may see keys and act for others. There is none to show where that is 0.
    fn trusts(&self, request: &SaMad) -> bool {
        self.config.sm_key != 0 && request.sm_key == self.config.sm_key
    }

    /// Nobody registers or withdraws a service of another port, unless trusted.
    fn owns_service(&self, from: GsiAddress, request: &SaMad) -> Result<(), u16> {
        let record = ServiceRecord::parse(&request.data).map_err(|_| status::REQ_INVALID)?;
        let owner = self.port_of_gid(record.service_gid);
        let own = owner.is_some() && self.map.owner(from.lid) == owner;
        if own || self.trusts(request) { Ok(()) } else { Err(status::REQ_DENIED) }
    }

    fn class_port_info(&self) -> ClassPortInfo {
        ClassPortInfo {
            base_version: 1,
            class_version: CLASS_VERSION,
            capability_mask: capability::GENERATES_TRAPS
                | capability::UD_MULTICAST
                | capability::PORT_INFO_CAPABILITY_MATCH,
            capability_mask2: capability2::SEND_ONLY_FULL_MEMBER,
            resp_time_value: self.config.subnet_timeout,
            redirect_qpn: Qpn::new(0),
            trap_gid: self.gid(self.config.guid),
            trap_lid: self.lids.get(&self.config.guid).copied().unwrap_or_default(),
            trap_qpn: Qpn::GSI,
            trap_qkey: QKey::GSI,
            ..ClassPortInfo::default()
        }
    }

    /// A sweep has ended: groups, services and subscriptions of ports that are gone go too; the rest get new trees.
    pub(super) fn subnet_changed(&mut self, now: Instant) {
        use everywire_wire::notice::trap::{GID_IN_SERVICE, GID_OUT_OF_SERVICE};
        let (gone, come) = std::mem::take(&mut self.ports_changed);
        for (guids, trap) in [(&gone, GID_OUT_OF_SERVICE), (&come, GID_IN_SERVICE)] {
            for guid in guids {
                self.report_gid(now, trap, self.gid(*guid));
            }
        }
        let gone: Vec<Gid> = gone.into_iter().map(|guid| self.gid(guid)).collect();
        for mgid in self.sa.groups.remove_ports(&gone) {
            self.report_gid(now, everywire_wire::notice::trap::MULTICAST_GROUP_DELETED, mgid);
        }
        self.sa.services.remove_ports(&gone);
        self.sa.reports.remove_ports(&gone);
        let mlids: Vec<Lid> = self.sa.groups.trees().map(|(mlid, _)| mlid).collect();
        mlids.into_iter().for_each(|mlid| self.grow_tree(mlid));
    }

    /// The end port that a GID names: by our prefix or the link-local one.
    fn port_of_gid(&self, gid: Gid) -> Option<Owner> {
        let prefix = gid.subnet_prefix();
        if prefix != self.config.gid_prefix && !gid.is_link_local() {
            return None;
        }
        let guid = gid.interface_id();
        let adapter = self.map.endports.get(&guid).map(|(_, owner)| *owner);
        adapter.or_else(|| {
            let node = self.known.nodes.get(&guid).filter(|node| node.is_switch());
            node.map(|_| Owner { node: guid, port: 0 })
        })
    }
}

/// The method of the response to a request; `None` for what is no request.
fn response_method(request: u8) -> Option<u8> {
    match request {
        mad_method::GET | mad_method::SET => Some(mad_method::GET_RESP),
        method::GET_TABLE | method::GET_TRACE_TABLE => Some(method::GET_TABLE_RESP),
        method::GET_MULTI => Some(method::GET_MULTI_RESP),
        method::DELETE => Some(method::DELETE_RESP),
        _ => None,
    }
}
