//! The Connect command: every way it can fail, and the association it makes. NVMe-oF 1.1 §3.3, figure 22.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use everywire_block::IoBuf;

use super::controller::Controller;
use super::features::Features;
use super::queue::Phase;
use super::subsystem::NoController;
use super::{ControllerKey, Failure, Outcome, QueueId, QueueInfo, Target, TargetEvent};
use crate::Nqn;
use crate::pdu::Status;
use crate::pdu::discovery::text;
use crate::pdu::fabrics::{
    CATTR_DISABLE_SQFLOW, CNTLID_DYNAMIC, Connect, ConnectData, InvalidParameter, connect_at,
};
use everywire_verbs::peer_log::About;

/// Refusals logged for one connection.
const LOGGED_REFUSALS: u8 = 4;
/// Controller identifier of every discovery controller's first association; they only need to be told apart.
const FIRST_DISCOVERY_CNTLID: u64 = 1;

fn invalid(parameter: InvalidParameter) -> Failure {
    Failure { status: Status::CONNECT_INVALID_PARAMETERS.dnr(), result: parameter.dword0().into() }
}

fn in_command(offset: u16) -> Failure {
    invalid(InvalidParameter::command(offset))
}

fn in_data(offset: u16) -> Failure {
    invalid(InvalidParameter::data(offset))
}

impl Target {
    pub(super) fn connect(&mut self, now: Instant, id: QueueId, connect: &Connect, buf: &IoBuf) -> Outcome {
        let mut bytes = [0; ConnectData::LEN];
        buf.load(0, &mut bytes);
        let data = ConnectData::parse(&bytes).map_err(|_| Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        let outcome = self.connect_with(now, id, connect, &data);
        outcome.inspect_err(|failure| self.log_refusal(id, "Connect", failure, Some(&data)))
    }

    fn connect_with(&mut self, now: Instant, id: QueueId, connect: &Connect, data: &ConnectData) -> Outcome {
        // Two Connects in flight on one queue: the second finds it connected.
        match self.queues.get(&id) {
            Some(queue) if queue.phase == Phase::AwaitingConnect => {}
            _ => return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into()),
        }
        self.check_command(id, connect)?;
        let subsystem = Nqn::from_field(&data.subnqn).map_err(|_| in_data(connect_at::DATA_SUBNQN))?;
        let host = Nqn::from_field(&data.hostnqn).map_err(|_| in_data(connect_at::DATA_HOSTNQN))?;
        if data.hostid == [0; 16] {
            return Err(in_data(connect_at::DATA_HOSTID));
        }
        let cntlid = if connect.qid == 0 {
            self.connect_admin(now, id, connect, data, subsystem, host)?
        } else {
            self.connect_io(id, connect, data, &subsystem, &host)?
        };
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.entries = connect.sqsize.saturating_add(1);
            queue.no_flow_control = connect.cattr & CATTR_DISABLE_SQFLOW != 0;
        }
        // Dword 0: CNTLID, and no authentication required.
        Ok(cntlid.into())
    }

    /// What can be judged from the command alone.
    fn check_command(&self, id: QueueId, connect: &Connect) -> Result<(), Failure> {
        if connect.recfmt != 0 {
            let result = InvalidParameter::command(connect_at::RECFMT).dword0().into();
            return Err(Failure { status: Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(), result });
        }
        let Some(queue) = self.queues.get(&id) else { return Err(Status::ABORTED_SQ_DELETION.into()) };
        // The transport's request named the queue and its size already. NVMe RDMA Transport §2.2.
        if connect.qid != queue.cm_qid {
            return Err(in_command(connect_at::QID));
        }
        if connect.sqsize == 0
            || connect.sqsize >= self.limits.max_queue_entries
            || connect.sqsize > queue.cm_hsqsize
        {
            return Err(in_command(connect_at::SQSIZE));
        }
        Ok(())
    }

    fn connect_admin(
        &mut self,
        now: Instant,
        id: QueueId,
        connect: &Connect,
        data: &ConnectData,
        nqn: Nqn,
        host: Nqn,
    ) -> Result<u16, Failure> {
        let port_id = self.queues.get(&id).map(|queue| queue.port_id);
        if self.controllers.len() >= self.limits.max_controllers {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        let cntlid = if nqn.is_discovery() {
            if data.cntlid != CNTLID_DYNAMIC {
                return Err(in_data(connect_at::DATA_CNTLID));
            }
            (FIRST_DISCOVERY_CNTLID + (self.next_controller - 1) % 0xffef) as u16
        } else {
            let subsystem = self.subsystems.get_mut(&nqn).ok_or(in_data(connect_at::DATA_SUBNQN))?;
            if !port_id.is_some_and(|port| subsystem.listens_on(port)) {
                return Err(in_data(connect_at::DATA_SUBNQN));
            }
            if !subsystem.allows(&host) {
                return Err(Status::CONNECT_INVALID_HOST.dnr().into());
            }
            subsystem.allocate(data.cntlid).map_err(|why| match why {
                NoController::Invalid => in_data(connect_at::DATA_CNTLID),
                NoController::Busy => Status::CONNECT_CONTROLLER_BUSY.into(),
            })?
        };
        let log = port_id.map(|port| self.peer_log(port)).unwrap_or_default();
        let key = ControllerKey::new(self.next_controller);
        self.next_controller += 1;
        let namespaces =
            self.subsystems.get(&nqn).map(|subsystem| subsystem.namespaces.clone()).unwrap_or_default();
        let controller = Controller {
            namespaces,
            subsystem: nqn,
            host,
            hostid: data.hostid,
            cntlid,
            admin_queue: id,
            queues: BTreeMap::new(),
            cc: 0,
            csts: 0,
            kato_ms: connect.kato,
            last_seen: now,
            features: Features::default(),
            async_config: 0,
            held_events: Vec::new(),
            pending_notices: Vec::new(),
            masked_notices: Vec::new(),
            changed_namespaces: BTreeSet::new(),
            errors: VecDeque::new(),
            error_count: 0,
            log,
        };
        self.controllers.insert(key, controller);
        self.joined(id, key, 0);
        if let Some(queue) = self.queues.get(&id)
            && queue.log.may(About::Event)
        {
            tracing::info!("{}: association made", queue.info);
        }
        // The keep alive timer runs instead of the one for Connect.
        self.events.push_back(TargetEvent::Deadline { queue: id });
        Ok(cntlid)
    }

    fn connect_io(
        &mut self,
        id: QueueId,
        connect: &Connect,
        data: &ConnectData,
        nqn: &Nqn,
        host: &Nqn,
    ) -> Result<u16, Failure> {
        if nqn.is_discovery() {
            // A discovery controller has no I/O queues. NVMe-oF 1.1 §1.5.6.
            return Err(in_command(connect_at::QID));
        }
        if !self.subsystems.contains_key(nqn) {
            return Err(in_data(connect_at::DATA_SUBNQN));
        }
        let named = |(_, controller): &(&ControllerKey, &mut Controller)| {
            controller.cntlid == data.cntlid && controller.subsystem == *nqn
        };
        let found = self.controllers.iter_mut().find(named);
        let (&key, controller) = found.ok_or(in_data(connect_at::DATA_CNTLID))?;
        if controller.host != *host {
            return Err(in_data(connect_at::DATA_HOSTNQN));
        }
        if controller.hostid != data.hostid {
            return Err(in_data(connect_at::DATA_HOSTID));
        }
        if !controller.takes_io() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        if connect.qid > controller.features.io_queues(self.limits.max_io_queues) {
            return Err(in_command(connect_at::QID));
        }
        if controller.queues.contains_key(&connect.qid) {
            // The old queue's connection may just be on its way down: worth trying again.
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        controller.queues.insert(connect.qid, id);
        let cntlid = controller.cntlid;
        self.joined(id, key, connect.qid);
        Ok(cntlid)
    }

    /// The queue is part of an association, and from now on known by it.
    fn joined(&mut self, id: QueueId, key: ControllerKey, qid: u16) {
        let (Some(queue), Some(controller)) = (self.queues.get_mut(&id), self.controllers.get(&key)) else {
            return;
        };
        queue.phase = Phase::Connected { controller: key, qid };
        queue.info = Rc::new(QueueInfo {
            qid,
            host: Some(controller.host.clone()),
            subsystem: Some(controller.subsystem.clone()),
            cntlid: Some(controller.cntlid),
            ..(*queue.info).clone()
        });
    }

    /// Says who was refused, what for and why. A host that goes on trying on one connection is not logged for ever.
    pub(super) fn log_refusal(
        &mut self,
        id: QueueId,
        what: &str,
        failure: &Failure,
        data: Option<&ConnectData>,
    ) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.refusals >= LOGGED_REFUSALS {
            return;
        }
        queue.refusals += 1;
        if !queue.log.may(About::Trouble) {
            return;
        }
        let (info, status) = (&queue.info, failure.status);
        let names = data.map_or_else(String::new, |data| names_in(info, data));
        let parameter = match status.code() {
            Status::CONNECT_INVALID_PARAMETERS | Status::CONNECT_INCOMPATIBLE_FORMAT => {
                format!(": {}", InvalidParameter::from_dword0(failure.result as u32))
            }
            _ => String::new(),
        };
        tracing::warn!("{info}{names}: {what} refused: {status}{parameter}");
    }
}

/// The names that a refused Connect has sent, unless the queue is connected: `info` says then whose it is.
fn names_in(info: &QueueInfo, data: &ConnectData) -> String {
    if info.host.is_some() {
        return String::new();
    }
    // As sent: it may be anything, and must not write lines of its own into the log.
    let [host, subsystem] = [&data.hostnqn, &data.subnqn].map(|field| text(field).escape_debug());
    format!(", host {host}, subsystem {subsystem}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::discovery;

    /// Of one line, which the queue's own names begin once it is connected.
    #[test]
    fn a_refusal_names_the_host_once() {
        let host = "nqn.2026-01.lab:h";
        let [hostnqn, subnqn] = [host, "nqn.2026-01.lab:s"].map(discovery::field);
        let data = ConnectData { hostid: [1; 16], cntlid: 0xffff, subnqn, hostnqn };
        let (peer, local) = (([10, 0, 0, 1], 9).into(), ([10, 0, 0, 2], 4420).into());
        let nobody =
            QueueInfo { peer, local, interface: None, qid: 0, host: None, subsystem: None, cntlid: None };
        let (subsystem, connected) = ("nqn.2026-01.lab:s".parse().ok(), host.parse().ok());
        let known = QueueInfo { host: connected, subsystem, cntlid: Some(1), ..nobody.clone() };
        for info in [nobody, known] {
            let line = format!("{info}{}", names_in(&info, &data));
            assert_eq!(line.matches(host).count(), 1, "{line}");
        }
    }
}
