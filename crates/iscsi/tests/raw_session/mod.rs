//! A target's session without a connection: PDUs in, what it wants done out.
#![allow(dead_code)]

use std::rc::Rc;
use std::time::Instant;

use everywire_iscsi::keys::text;
use everywire_iscsi::login::chap::Nonce;
use everywire_iscsi::login::target::{Login, Step};
use everywire_iscsi::name::IscsiName;
use everywire_iscsi::pdu::*;
use everywire_iscsi::session::target::{Action, Directory, Listed, Session, SessionOptions};
use everywire_iscsi::target::{Device, InitiatorPort};

use crate::lab::{HOST, Lab, MiniDisk, TARGET, address, name};

/// Many targets, for an answer of many PDUs.
struct Many;

impl Directory for Many {
    fn targets(&self, _: &IscsiName, only: Option<&IscsiName>) -> Vec<Listed> {
        let all = (0..400).map(|i| name(&format!("iqn.2001-04.com.example:disk{i}")));
        let listed = |name| Listed { name, addresses: vec!["192.0.2.1:3260,1".to_owned()] };
        all.filter(|name| only.is_none_or(|only| only == name)).map(listed).collect()
    }
}

pub struct Raw {
    pub session: Session,
    pub disk: MiniDisk,
    pub now: Instant,
}

pub const FIRST: u32 = 0xffff_fffe;

impl Raw {
    pub fn new(pairs: &[(&str, &str)]) -> Raw {
        let lab = Lab::new(1);
        let mut login = Login::new(address(1), address(3260), false, Nonce::new(|| 1));
        let request =
            LoginRequest { flags: 0x87, isid: [0x80; 6], cid: 5, cmd_sn: FIRST, ..LoginRequest::default() };
        let mut all = vec![("InitiatorName", HOST)];
        all.extend_from_slice(pairs);
        let Step::Done(_, established) =
            login.receive(&lab.target, &Pdu::with_data(request, text::emit(all)))
        else {
            panic!("a good login");
        };
        let disk = MiniDisk::default();
        let port = InitiatorPort {
            name: name(HOST),
            isid: established.identity.isid,
            portal_group: established.portal_group,
        };
        let now = lab.rt().now();
        let options = SessionOptions { queue_depth: 4, ..SessionOptions::default() };
        let nexus = (!established.negotiation.discovery).then(|| disk.nexus(&port));
        let session = Session::new(now, *established, options, nexus, Rc::new(Many));
        Raw { session, disk, now }
    }

    pub fn normal() -> Raw {
        Raw::new(&[("TargetName", TARGET), ("InitialR2T", "No"), ("FirstBurstLength", "1024")])
    }

    pub fn say(&mut self, pdu: Pdu) -> Vec<Action> {
        self.session.control(self.now, pdu);
        std::iter::from_fn(|| self.session.poll()).collect()
    }

    /// What is sent in answer.
    pub fn sent(&mut self, pdu: Pdu) -> Vec<Pdu> {
        let actions = self.say(pdu);
        let pdus = actions.into_iter().filter_map(|action| match action {
            Action::Send(pdu) => Some(pdu),
            Action::Respond(response) => Some(self.session.scsi_response(&response, 0)),
            _ => None,
        });
        pdus.collect()
    }

    pub fn reject(&mut self, pdu: Pdu) -> RejectReason {
        let bhs = pdu.bhs();
        match &self.sent(pdu)[..] {
            [Pdu { header: Header::Reject(reject), data, .. }] => {
                assert_eq!((reject.itt, &data[..]), (NO_TAG, &bhs[..]), "the header comes back (§11.17)");
                RejectReason::from_code(reject.reason).expect("a reason")
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn command(cmd_sn: u32, opcode: u8) -> ScsiCommand {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    ScsiCommand { flags: FINAL, itt: cmd_sn.wrapping_add(100), cmd_sn, cdb, ..ScsiCommand::default() }
}

pub fn write(cmd_sn: u32, flags: u8, edtl: u32, blocks: u8) -> ScsiCommand {
    let mut header = command(cmd_sn, 0x8a);
    header.cdb[13] = blocks;
    ScsiCommand { flags: flags | ScsiCommand::WRITE, edtl, ..header }
}
