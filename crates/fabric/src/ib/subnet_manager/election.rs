//! Several managers: who is master, and how the place is handed over.
//!
//! Read IBTA §14.4.1 (states and transitions) first. The highest priority wins, then the lowest port GUID. The states:
//! `Discovering` (first sweep) becomes `Standby` where a master or somebody better was found, else `Master`. `Standby`
//! polls the master and discovers again when it stays silent. `Master` hands over to somebody better and becomes
//! `Standby` when that one acknowledges; who never does is left out, and the subnet is configured all the same. `NotActive`
//! takes part in nothing until told so. Orders need the SM_Key.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use everywire_wire::mad::{method, status};
use everywire_wire::smp::codes::{sm_control, sm_state};
use everywire_wire::smp::{DIRECTION, SmInfo, Smp, attribute};
use everywire_wire::{Guid, Lid};

use super::requests::{Path, Purpose, Request};
use super::sweep::Phase;
use super::{Address, Sm, SmEvent};

/// Polls in a row that a master may miss.
const MISSED_POLLS: u8 = 3;
/// HANDOVERs that somebody better may leave without an ACKNOWLEDGE.
const MAX_HANDOVERS: u8 = 3;
/// How long a master waits for an ACKNOWLEDGE until it looks around again, and configures nothing meanwhile.
const HANDOVER_WAIT: Duration = Duration::from_secs(2);
/// The SM_Key that everybody starts with, and so knows. It is shown to everybody; OpenSM takes no notice of who shows another.
const WELL_KNOWN_SM_KEY: u64 = 1;

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

/// HANDOVERs to others.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    /// The only one whose ACKNOWLEDGE counts.
    pending: Option<Guid>,
    /// How many each has left unanswered.
    unanswered: BTreeMap<Guid, u8>,
}

impl Handovers {
    /// Who left too many unanswered is no candidate.
    fn leaves_out(&self, guid: Guid) -> bool {
        self.unanswered.get(&guid).is_some_and(|count| *count >= MAX_HANDOVERS)
    }

    /// Managers that are gone may come again as others.
    pub fn retain(&mut self, present: impl Fn(Guid) -> bool) {
        self.unanswered.retain(|guid, _| present(*guid));
    }

    fn end(&mut self) {
        *self = Handovers::default();
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

    /// Higher is better.
    fn rank(&self) -> (u8, Reverse<Guid>) {
        (self.config.priority & 15, Reverse(self.config.guid))
    }

    pub(super) fn enter_state(&mut self, state: SmState) {
        if self.state != state {
            self.state = state;
            self.tell(SmEvent::State(state));
        }
    }

    /// After a sweep: who is master. Goes on to configure where we are.
    pub(super) fn elect(&mut self, now: Instant) {
        let own = self.rank();
        let able = self.others.values().filter(|other| other.info.state != sm_state::NOT_ACTIVE);
        let able = able.filter(|other| !self.handovers.leaves_out(other.info.guid));
        let best = able.max_by_key(|other| other.rank());
        let masters = self.others.values().filter(|other| other.info.state == sm_state::MASTER);
        let master = masters.max_by_key(|other| other.rank());
        let better = best.filter(|other| other.rank() > own);
        match (self.state, better, master) {
            (SmState::Master, Some(better), _) if self.has_taken_over(better) => {
                let (guid, path) = (better.info.guid, better.path.clone());
                // It may have seen another master meanwhile, us, and waits until that one gives up its part (IBTA C14-60.2.1).
                self.control(guid, &path, sm_control::HANDOVER);
                self.take_over_inventory();
                self.stand_by(now, guid);
            }
            (SmState::Master, Some(better), _) => {
                let (guid, path) = (better.info.guid, better.path.clone());
                self.hand_over(now, guid, &path);
            }
            (SmState::Master, None, _) | (_, None, None) => {
                self.handovers.pending = None;
                self.reregister |= self.state != SmState::Master;
                self.enter_state(SmState::Master);
                self.configure(now);
            }
            (_, better, master) => {
                let watched = master.or(better).map(|other| other.info.guid);
                self.take_over_inventory();
                self.stand_by(now, watched.unwrap_or_default());
            }
        }
    }

    /// Offers the place to somebody better. Not yet standby: the other has to acknowledge, and until then what is known
    /// stays as it is.
    fn hand_over(&mut self, now: Instant, guid: Guid, path: &Path) {
        let count = self.handovers.unanswered.entry(guid).or_insert(0);
        *count += 1;
        if *count == MAX_HANDOVERS {
            self.warn(format!(
                "{guid} is to be master and has left {} HANDOVERs without ACKNOWLEDGE; after this one it is left out",
                MAX_HANDOVERS - 1
            ));
        }
        self.handovers.pending = Some(guid);
        self.control(guid, path, sm_control::HANDOVER);
        self.phase = Phase::Idle;
        self.schedule(now, self.config.polling_interval.min(HANDOVER_WAIT));
    }

    /// Who was offered the place and is master says so better than by ACKNOWLEDGE, which OpenSM never sends.
    fn has_taken_over(&self, other: &OtherSm) -> bool {
        self.handovers.pending == Some(other.info.guid)
            && other.info.state == sm_state::MASTER
            && other.info.sm_key == self.config.sm_key
    }

    #[cfg(test)]
    pub(super) fn hand_over_to(&mut self, now: Instant, guid: Guid) {
        self.hand_over(now, guid, &Path::from([]));
        self.requests.clear();
    }

    /// Whether an ACKNOWLEDGE is due, and nothing is configured meanwhile.
    pub(super) fn is_handing_over(&self) -> bool {
        self.state == SmState::Master && self.handovers.pending.is_some()
    }

    fn stand_by(&mut self, now: Instant, watched: Guid) {
        self.enter_state(SmState::Standby);
        self.handovers.end();
        self.phase = Phase::Idle;
        self.sweep_again = false;
        self.trap_sweep = None;
        self.watched = watched;
        self.polls_missed = 0;
        self.schedule(now, self.config.polling_interval);
    }

    /// Becomes standby by somebody's order: what a sweep was at is dropped, what is known stays.
    fn step_back(&mut self, now: Instant, master: Guid) {
        self.requests.clear();
        self.stand_by(now, master);
    }

    /// Whether a manager has shown that it may give orders (IBTA §14.4.1, SM_Key). Who keeps the key that everybody starts
    /// with keeps nobody out; then 0 is as good, which is what OpenSM shows to those it has not authenticated.
    fn is_authentic(&self, sm_key: u64) -> bool {
        sm_key == self.config.sm_key || sm_key == 0 && self.config.sm_key == WELL_KNOWN_SM_KEY
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
        let mut info = SmInfo { sm_key: self.config.sm_key, ..self.sm_info() };
        if control == sm_control::ACKNOWLEDGE {
            // Standbys acknowledge, and are masters after it.
            info.state = sm_state::STANDBY;
        }
        info.emit(&mut data);
        let purpose = Purpose::Control(guid, control);
        self.requests.push(Request::set(path, attribute::SM_INFO, control, data, purpose));
    }

    /// Another manager has answered.
    pub(super) fn manager_answered(&mut self, now: Instant, request: Request, smp: &Smp) {
        let (Ok(info), status) = (SmInfo::parse(&smp.data), smp.status()) else { return };
        match request.purpose {
            Purpose::Manager(guid) if info.sm_key != 0 && !self.is_authentic(info.sm_key) => {
                self.others.remove(&guid);
                self.warn(format!("the manager {guid} shows another SM_Key than ours: it is left out"));
            }
            Purpose::Manager(guid) if status == 0 && info.guid == guid => {
                let other = OtherSm { info, path: request.path };
                let claims = info.state == sm_state::MASTER || other.rank() > self.rank();
                let able = info.state != sm_state::NOT_ACTIVE && !self.handovers.leaves_out(guid);
                self.others.insert(guid, other);
                if self.phase == Phase::Idle && self.state == SmState::Master && claims && able {
                    self.sweep(now);
                }
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
        let sm_key = if self.may_see_key(&smp) { self.config.sm_key } else { 0 };
        SmInfo { sm_key, ..self.sm_info() }.emit(&mut reply.data);
        self.answer(Address::Smi(from), reply.to_mad());
    }

    /// The SM_Key is shown to who is authenticated otherwise (IBTA §14.2.5.13), which is by the M_Key here.
    fn may_see_key(&self, smp: &Smp) -> bool {
        let by_m_key = self.config.m_key != 0 && smp.m_key == self.config.m_key;
        by_m_key || self.config.sm_key == WELL_KNOWN_SM_KEY
    }

    /// Carries an order out; `false` where the state does not allow it (IBTA §14.4.1, table of transitions), the SM_Key is
    /// wrong, or it is not its sender's to give: only who was offered the place acknowledges, and only the master disables
    /// its standbys or lets them look again.
    fn obey(&mut self, now: Instant, smp: &Smp) -> bool {
        let Ok(info) = SmInfo::parse(&smp.data) else { return false };
        if !self.is_authentic(info.sm_key) {
            self.warn(format!("an order of {} with a wrong SM_Key was refused", info.guid));
            return false;
        }
        let of_master = info.guid == self.watched;
        match (self.state, smp.header.attribute_modifier) {
            (SmState::Standby | SmState::Master, sm_control::HANDOVER) => self.take_over(now, info),
            (SmState::Master, sm_control::ACKNOWLEDGE) if self.handovers.pending == Some(info.guid) => {
                self.step_back(now, info.guid);
            }
            (SmState::Standby, sm_control::DISABLE) if of_master => {
                self.enter_state(SmState::NotActive);
                self.requests.clear();
                self.next_sweep = None;
            }
            (SmState::NotActive, sm_control::STANDBY) => self.step_back(now, info.guid),
            (SmState::Standby, sm_control::DISCOVER) if of_master => {
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
        self.handovers.end();
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
