//! The steps of a record, done again by our own initiators: over iSER and over SRP.

use std::collections::HashMap;
use std::net::SocketAddr;

use bytes::Bytes;
use everywire_iscsi::initiator::{Initiator, Options, Transfer};
use everywire_iscsi::pdu::TaskFunction;
use everywire_iscsi::rdma::RdmaBinding;
use everywire_iscsi::session::scsi::Residual as IscsiResidual;
use everywire_net::{Host, OpenOptions, TokioRt};
use everywire_scsi::target::Residual as ScsiResidual;
use everywire_srp::PortId;
use everywire_srp::iu::Function;
use everywire_srp::rdma::initiator::{Initiator as SrpInitiator, InitiatorOptions, IoData};
use everywire_verbs::rt::Rt;

use crate::record::{Act, Answer, Command, Residual, Step};

/// LOGICAL UNIT RESET, TARGET WARM RESET and TARGET COLD RESET as RFC 7143 §11.5.1 numbers them.
const RESETS: std::ops::RangeInclusive<u8> = 5..=7;

/// A kind of initiator.
pub enum Kind {
    Iser { target: String },
    Srp { target: PortId },
}

/// A session of one.
enum Session {
    Iser(Initiator),
    Srp(SrpInitiator),
}

/// Does `steps` at a target, and gives what each command with an answer was answered.
pub fn play(steps: &[Step], kind: &Kind, device: &str, to: SocketAddr) -> Vec<(Command, Answer)> {
    let runtime = TokioRt::new().expect("a runtime");
    let host = Host::open(device, &OpenOptions::default()).expect("a free address");
    host.run(&runtime).expect("a driver");
    let rt = runtime.handle();
    runtime.block_on(async {
        let (mut sessions, mut answers) = (HashMap::new(), Vec::new());
        for step in steps {
            match &step.act {
                Act::Login { name } => {
                    let number = step.session as u64;
                    sessions.insert(step.session, kind.login(&rt, &host, to, name, number).await);
                }
                Act::Command(command) if command.answer.is_some() => {
                    let session = sessions.get(&step.session).expect("commands follow a login");
                    answers.push((command.clone(), session.execute(command).await));
                }
                // One that was never answered was aborted, or lost with its session.
                Act::Command(_) => {}
                Act::Manage { function, lun } => {
                    let session = sessions.get(&step.session).expect("functions follow a login");
                    session.manage(*function, *lun).await;
                }
                Act::End => {
                    if let Some(session) = sessions.remove(&step.session) {
                        session.end().await;
                    }
                }
            }
        }
        answers
    })
}

impl Kind {
    async fn login(&self, rt: &Rt, host: &Host, to: SocketAddr, name: &str, number: u64) -> Session {
        match self {
            Kind::Iser { target } => {
                let binding = RdmaBinding::new(host.device(), None).expect("memory");
                let options = Options::new(name.parse().expect("a name"));
                let target = target.parse().expect("a name");
                let session = Initiator::connect_rdma(rt, binding, to, &target, options).await;
                Session::Iser(session.expect("a login"))
            }
            Kind::Srp { target } => {
                // As over TCP, where each session has an ISID of its own: a port that logs in again would end its other session.
                let options = InitiatorOptions { initiator: PortId::new(number, 1), ..Default::default() };
                let session = SrpInitiator::connect(rt, host.device(), to, *target, options).await;
                Session::Srp(session.expect("a login"))
            }
        }
    }
}

impl Session {
    async fn execute(&self, command: &Command) -> Answer {
        match self {
            Session::Iser(session) => {
                let transfer = match &command.out {
                    Some(out) => Transfer::Out(Bytes::from(out.clone())),
                    None if command.want == 0 => Transfer::None,
                    None => Transfer::In(command.want as usize),
                };
                let done = session.execute(command.lun, &command.cdb, transfer).await.expect("an answer");
                let residual = match done.residual {
                    IscsiResidual::None => Residual::None,
                    IscsiResidual::Under(bytes) => Residual::Under(bytes),
                    IscsiResidual::Over(bytes) => Residual::Over(bytes),
                };
                Answer { status: done.status, sense: done.sense, residual, data: done.data }
            }
            Session::Srp(session) => {
                let region = session.buffer(command.want.max(1) as usize).expect("memory");
                let (at, len) = (0, command.want);
                let data = match &command.out {
                    _ if len == 0 => IoData::None,
                    Some(out) => {
                        region.write_at(0, out).expect("inside");
                        IoData::Out { region: &region, at, len }
                    }
                    None => IoData::In { region: &region, at, len },
                };
                let done = session.execute(command.lun, &command.cdb, data).await.expect("an answer");
                let (residual, missing) = match done.residual {
                    ScsiResidual::None => (Residual::None, 0),
                    ScsiResidual::Under(bytes) => (Residual::Under(bytes), bytes),
                    ScsiResidual::Over(bytes) => (Residual::Over(bytes), 0),
                };
                let came = if command.out.is_some() { 0 } else { (len - missing) as usize };
                let data = region.read_vec(0, came).expect("inside");
                Answer { status: done.status.0, sense: done.sense, residual, data }
            }
        }
    }

    /// A reset; of the only logical unit, where it was of the target, which SRP cannot say.
    async fn manage(&self, function: u8, lun: u64) {
        assert!(RESETS.contains(&function), "function {function} is in the record");
        match self {
            Session::Iser(session) => {
                let done = session.manage(TaskFunction::LunReset, lun).await;
                done.expect("an answer");
            }
            Session::Srp(session) => session.manage(lun, Function::LunReset).await.expect("an answer"),
        }
    }

    async fn end(self) {
        match self {
            Session::Iser(session) => session.logout().await,
            Session::Srp(session) => session.log_out().await,
        }
    }
}
