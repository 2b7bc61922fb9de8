//! Several managers: who is master, and how the place is handed over.
//!
//! Read IBTA §14.4.1 (states and transitions) first. The highest priority wins, then the lowest port GUID. The states:
//! `Discovering` (first sweep) becomes `Standby` where a master or somebody better was found, else `Master`. `Standby`
//! polls the master and discovers again when it stays silent. `Master` hands over to somebody better and becomes
//! `Standby` when that one acknowledges. `NotActive` takes part in nothing until told so.

use std::cmp::Reverse;
use std::time::Instant;

use everywire_wire::mad::{method, status};
use everywire_wire::smp::codes::{sm_control, sm_state};
use everywire_wire::smp::{DIRECTION, SmInfo, Smp, attribute};
use everywire_wire::{Guid, Lid};

use super::requests::{Path, Purpose, Request};
use super::sweep::Phase;
use super::{Address, Sm, SmEvent};

/// Polls in a row that a master may miss.
const MISSED_POLLS: u8 = 3;

/// State of a subnet manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SmState {
    /// Takes part in nothing.
    NotActive,
    /// Sweeps for the first time.
    Discovering,
    /// Watches the master.
    Standby,
    /// In charge.
    Master,
}

impl SmState {
    /// The number in SMInfo.
    pub const fn code(self) -> u8 {
        match self {
            SmState::NotActive => sm_state::NOT_ACTIVE,
            SmState::Discovering => sm_state::DISCOVERING,
            SmState::Standby => sm_state::STANDBY,
            SmState::Master => sm_state::MASTER,
        }
    }
}

/// Another manager.
#[derive(Debug, Clone)]
pub(super) struct OtherSm {
    pub info: SmInfo,
    pub path: Path,
}

impl OtherSm {
    /// Higher is better.
    fn rank(&self) -> (u8, Reverse<Guid>) {
        (self.info.priority, Reverse(self.info.guid))
    }
}

impl Sm {
    /// What it says about itself.
    pub(super) fn sm_info(&self) -> SmInfo {
        SmInfo {
            guid: self.config.guid,
            sm_key: 0,
            act_count: self.act_count,
            priority: self.config.priority & 15,
            state: self.state.code(),
        }
    }

    pub(super) fn enter_state(&mut self, state: SmState) {
        if self.state != state {
            self.state = state;
            self.tell(SmEvent::State(state));
        }
    }

    /// After a sweep: who is master. Goes on to configure where we are.
    pub(super) fn elect(&mut self, now: Instant) {
        let own = (self.config.priority & 15, Reverse(self.config.guid));
        let able = self.others.values().filter(|other| other.info.state != sm_state::NOT_ACTIVE);
        let best = able.max_by_key(|other| other.rank());
        let masters = self.others.values().filter(|other| other.info.state == sm_state::MASTER);
        let master = masters.max_by_key(|other| other.rank());
        let better = best.filter(|other| other.rank() > own);
        match (self.state, better, master) {
            (SmState::Master, Some(better), _) => {
                let (guid, path) = (better.info.guid, better.path.clone());
                self.control(guid, &path, sm_control::HANDOVER);
                self.stand_by(now, guid);
                // Not yet standby: the other has to acknowledge.
                self.phase = Phase::Idle;
            }
            (SmState::Master, None, _) | (_, None, None) => {
                self.reregister |= self.state != SmState::Master;
                self.enter_state(SmState::Master);
                self.configure(now);
            }
            (_, better, master) => {
                let watched = master.or(better).map(|other| other.info.guid);
                self.enter_state(SmState::Standby);
                self.stand_by(now, watched.unwrap_or_default());
            }
        }
    }

    fn stand_by(&mut self, now: Instant, watched: Guid) {
        self.phase = Phase::Idle;
        self.watched = watched;
        self.polls_missed = 0;
        self.take_over_inventory();
        self.schedule(now, self.config.polling_interval);
    }

    /// A standby looks whether the master lives.
    pub(super) fn poll_master(&mut self, now: Instant) {
        match self.others.get(&self.watched) {
            Some(other) => {
                let (path, purpose) = (other.path.clone(), Purpose::Poll(self.watched));
                self.requests.push(Request::get(&path, attribute::SM_INFO, 0, purpose));
                self.schedule(now, self.config.polling_interval);
            }
            None => self.discover_again(now),
        }
    }

    pub(super) fn poll_missed(&mut self, now: Instant) {
        self.polls_missed += 1;
        if self.polls_missed >= MISSED_POLLS && self.state == SmState::Standby {
            self.warn(format!("the master {} has missed {MISSED_POLLS} polls", self.watched));
            self.discover_again(now);
        }
    }

    fn discover_again(&mut self, now: Instant) {
        self.others.remove(&self.watched);
        self.enter_state(SmState::Discovering);
        self.begin_sweep(now);
    }

    fn control(&mut self, guid: Guid, path: &Path, control: u32) {
        let mut data = [0; 64];
        SmInfo { sm_key: self.config.sm_key, ..self.sm_info() }.emit(&mut data);
        let purpose = Purpose::Control(guid, control);
        self.requests.push(Request::set(path, attribute::SM_INFO, control, data, purpose));
    }

    /// Another manager has answered.
    pub(super) fn manager_answered(&mut self, now: Instant, request: Request, smp: &Smp) {
        let (Ok(info), status) = (SmInfo::parse(&smp.data), smp.status()) else { return };
        match request.purpose {
            Purpose::Manager(guid) if status == 0 && info.guid == guid => {
                self.others.insert(guid, OtherSm { info, path: request.path });
            }
            Purpose::Manager(guid) => _ = self.others.remove(&guid),
            Purpose::Poll(guid) => {
                let lives = matches!(info.state, sm_state::MASTER | sm_state::DISCOVERING);
                if status != 0 || !lives || info.guid != guid {
                    self.poll_missed(now);
                } else {
                    self.polls_missed = 0;
                }
            }
            _ => {}
        }
    }

    /// A question or an order of another manager.
    pub(super) fn handle_sm_info(&mut self, now: Instant, from: Lid, smp: Smp) {
        let mut reply = smp;
        reply.header.method = method::GET_RESP;
        let is_set = smp.header.method == method::SET;
        let taken = !is_set || self.obey(now, &smp);
        let code = if taken { 0 } else { status::INVALID_FIELD };
        reply.header.status = if smp.is_directed() { DIRECTION | code } else { code };
        reply.data = [0; 64];
        self.sm_info().emit(&mut reply.data);
        self.answer(Address::Smi(from), reply.to_mad());
    }

    /// Carries an order out; `false` where the state does not allow it (IBTA §14.4.1, table of transitions).
    fn obey(&mut self, now: Instant, smp: &Smp) -> bool {
        let Ok(info) = SmInfo::parse(&smp.data) else { return false };
        match (self.state, smp.header.attribute_modifier) {
            (SmState::Standby | SmState::Master, sm_control::HANDOVER) => self.take_over(now, info),
            (SmState::Master, sm_control::ACKNOWLEDGE) => {
                self.enter_state(SmState::Standby);
                self.stand_by(now, info.guid);
            }
            (SmState::Standby, sm_control::DISABLE) => {
                self.enter_state(SmState::NotActive);
                self.next_sweep = None;
            }
            (SmState::NotActive, sm_control::STANDBY) => {
                self.enter_state(SmState::Standby);
                self.stand_by(now, info.guid);
            }
            (SmState::Standby, sm_control::DISCOVER) => {
                self.enter_state(SmState::Discovering);
                self.begin_sweep(now);
            }
            _ => return false,
        }
        true
    }

    /// The master offers its place: acknowledged, then swept.
    fn take_over(&mut self, now: Instant, from: SmInfo) {
        let known = self.others.get(&from.guid).map(|other| other.path.clone());
        let path = known.or_else(|| {
            let mut ports = self.known.end_ports();
            ports.find(|(.., port)| port.guid == from.guid).map(|(.., port)| port.path.clone())
        });
        let was_master = self.state == SmState::Master;
        self.reregister = true;
        self.enter_state(SmState::Master);
        if was_master {
            self.sweep(now);
        } else {
            self.begin_sweep(now);
        }
        if let Some(path) = path {
            self.control(from.guid, &path, sm_control::ACKNOWLEDGE);
        }
    }
}
