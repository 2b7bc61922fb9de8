//! Targets for everything that `everywire-iscsi` takes from a peer: PDUs and streams of them, texts, names, logins of both halves,
//! and whole sessions, where any PDUs keep the numbers in step and every action within its bounds.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use everywire_block::{IoBuf, IoFuture, SharedBuffer};
use everywire_fuzz::target;
use everywire_iscsi::keys::{Key, Negotiation, Offers, Params, Phase, Side, text};
use everywire_iscsi::login::chap::{ChapPolicy, Credentials, Nonce};
use everywire_iscsi::login::target::{Admission, Gate, Login, Refusal, Step};
use everywire_iscsi::login::{Identity, LoginStatus, SessionKind, initiator};
use everywire_iscsi::name::{IscsiName, Isid};
use everywire_iscsi::pdu::{
    Ahs, DataOut, Digests, FINAL, FrameError, Framer, LoginRequest, LoginResponse, NO_TAG, NopOut, Pdu,
    ScsiCommand, TaskFunction, TaskRequest, TaskResult, TextRequest,
};
use everywire_iscsi::rdma::{Header as IserHeader, PrivateData};
use everywire_iscsi::session::scsi::{Command, Function, Nexus, Outcome, Submitted, Task};
use everywire_iscsi::session::target::{Action, Directory, Listed, Session, SessionOptions};
use everywire_iscsi::session::{Numbers, before, initiator as host};
use everywire_iscsi::target::Subnet;

const HOST: &str = "iqn.2001-04.com.example:host";
const TARGET: &str = "iqn.2001-04.com.example:disk";
const MAX_DATA: usize = 8192;

fn login_text() -> Vec<u8> {
    text::emit([
        ("InitiatorName", HOST),
        ("TargetName", TARGET),
        ("HeaderDigest", "CRC32C,None"),
        ("InitialR2T", "No"),
        ("MaxBurstLength", "262144"),
        ("MaxRecvDataSegmentLength", "65536"),
        ("RDMAExtensions", "Yes"),
    ])
}

fn login_request(flags: u8, data: Vec<u8>) -> Pdu {
    Pdu::with_data(LoginRequest { flags, isid: [0x80; 6], cmd_sn: 1, ..LoginRequest::default() }, data)
        .immediate()
}

fn pdus() -> Vec<Pdu> {
    let command = |flags, edtl, cmd_sn| ScsiCommand {
        flags,
        itt: cmd_sn,
        edtl,
        cmd_sn,
        cdb: [0x2a; 16],
        ..ScsiCommand::default()
    };
    vec![
        login_request(0x87, login_text()),
        Pdu::with_data(command(FINAL | ScsiCommand::WRITE, 1024, 1), vec![7; 512]),
        Pdu::new(command(FINAL | ScsiCommand::READ, 4096, 2)),
        Pdu::new(command(ScsiCommand::WRITE, 1024, 3)),
        Pdu::with_data(DataOut { flags: FINAL, itt: 3, ttt: NO_TAG, ..DataOut::default() }, vec![1; 1024]),
        Pdu::new(TaskRequest { flags: FINAL | 1, itt: 9, ref_tag: 2, cmd_sn: 4, ..TaskRequest::default() }),
        Pdu::new(NopOut { flags: FINAL, itt: 10, ttt: NO_TAG, cmd_sn: 4, ..NopOut::default() }).immediate(),
        Pdu::with_data(
            TextRequest { flags: FINAL, itt: 11, ttt: NO_TAG, cmd_sn: 5, ..TextRequest::default() },
            text::emit([("SendTargets", "")]),
        ),
    ]
}

fn one_by_one() -> Vec<Vec<u8>> {
    pdus().iter().map(|pdu| pdu.to_bytes(Digests::default()).to_vec()).collect()
}

fn stream() -> Vec<Vec<u8>> {
    vec![one_by_one()[1..].concat()]
}

/// Whole PDUs of a stream without digests.
fn read(bytes: &[u8], mut each: impl FnMut(Pdu)) {
    let mut framer = Framer::new(MAX_DATA);
    framer.space().extend_from_slice(bytes);
    loop {
        match framer.next_pdu() {
            Ok(Some(pdu)) => each(pdu),
            Err(FrameError::Opcode(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

// What parses re-emits; reserved bytes come back as zeroes, so the second round is exact.
target!(iscsi_pdu, one_by_one(), |bytes| {
    if let Ok(pdu) = Pdu::from_bytes(&bytes.to_vec().into(), MAX_DATA) {
        for digests in [Digests::default(), Digests { header: true, data: true }] {
            let emitted = pdu.to_bytes(digests);
            assert_eq!(emitted.len(), pdu.wire_len(digests));
            let mut framer = Framer::new(MAX_DATA);
            framer.set(digests, MAX_DATA);
            framer.space().extend_from_slice(&emitted);
            assert_eq!(framer.next_pdu(), Ok(Some(pdu.clone())));
            assert_eq!(framer.pending(), 0);
        }
        if let Ok(ahs) = Ahs::parse(&pdu.ahs) {
            assert_eq!(Ahs::parse(&ahs.emit()), Ok(ahs));
        }
    }
});

// A stream cut anywhere gives what it gives at once.
target!(iscsi_stream, stream(), |bytes| {
    let (mut whole, mut cut) = (Vec::new(), Vec::new());
    read(bytes, |pdu| whole.push(pdu));
    let mut framer = Framer::new(MAX_DATA);
    'all: for chunk in bytes.chunks(1 + bytes.len() % 61) {
        framer.space().extend_from_slice(chunk);
        loop {
            match framer.next_pdu() {
                Ok(Some(pdu)) => cut.push(pdu),
                Err(FrameError::Opcode(_)) => {}
                Ok(None) => break,
                Err(_) => break 'all,
            }
        }
        assert!(framer.pending() <= 48 + 1020 + MAX_DATA + chunk.len());
    }
    assert_eq!(whole, cut);
});

target!(iser_header, [vec![0x1c; 28], vec![0x20; 28], vec![0x31; 28]], |bytes| {
    if let Ok(header) = IserHeader::parse(bytes) {
        assert_eq!(IserHeader::parse(&header.emit()), Ok(header));
    }
    let data = PrivateData::parse(bytes);
    assert_eq!(PrivateData::parse(&data.emit()), data);
});

target!(iscsi_text, [login_text()], |bytes| {
    if let Ok(pairs) = text::parse(bytes) {
        let again = text::emit(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        assert_eq!(text::parse(&again), Ok(pairs.clone()));
        for side in [Side::Initiator, Side::Target] {
            let offers =
                Offers::default().with(Key::HeaderDigest, "CRC32C,None").with(Key::RDMAExtensions, "Yes");
            let mut negotiation = Negotiation::new(side, offers);
            negotiation.rdma_capable = true;
            for (key, value) in &pairs {
                let _ = negotiation.receive(Phase::Operational, key, value);
            }
            let params = Params::of(&negotiation, side);
            assert!((512..1 << 24).contains(&params.max_burst) && params.first_burst <= params.max_burst);
            assert!((512..1 << 24).contains(&params.max_send) && (512..1 << 24).contains(&params.max_recv));
            assert!(params.max_r2t >= 1 && params.time2wait <= 3600 && params.time2retain <= 3600);
        }
        for (key, value) in pairs {
            if let Ok(bytes) = text::binary(&key, &value) {
                assert_eq!(text::binary(&key, &text::hex(&bytes)), Ok(bytes));
            }
        }
    }
});

target!(iscsi_name, [HOST.into(), b"naa.52004567BA64678D".to_vec(), b"192.0.2.0/24".to_vec()], |bytes| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(name) = text.parse::<IscsiName>() {
            assert_eq!(name.as_str().parse(), Ok(name.clone()));
        }
        if let Ok(net) = text.parse::<Subnet>() {
            assert_eq!(net.to_string().parse(), Ok(net));
            let _ = net.contains(IpAddr::from([192, 0, 2, 1]));
        }
    }
});

struct Door(ChapPolicy);

impl Gate for Door {
    fn admit(&self, _: &Identity, _: SocketAddr, _: SocketAddr) -> Result<Admission, Refusal> {
        Ok(Admission { chap: self.0.clone(), offers: Offers::default(), portal_group: 1, alias: None })
    }

    fn open(&self, _: &Identity, _: u16) -> Result<u16, Refusal> {
        Ok(1)
    }

    fn join(&self, _: u16) -> Refusal {
        Refusal::new(LoginStatus::NoSession, "")
    }
}

fn chap_logins() -> Vec<Vec<u8>> {
    let names =
        text::emit([("InitiatorName", HOST), ("SessionType", "Discovery"), ("AuthMethod", "CHAP,None")]);
    let algorithm = text::emit([("CHAP_A", "8,7,6,5")]);
    let response =
        text::emit([("CHAP_N", "host"), ("CHAP_R", "0x00112233445566778899aabbccddeeff"), ("CHAP_I", "1")]);
    let all = [login_request(0x81, names), login_request(0x01, algorithm), login_request(0x81, response)];
    vec![all.iter().flat_map(|pdu| pdu.to_bytes(Digests::default())).collect(), one_by_one()[0].clone()]
}

// Without the secret nobody comes in, whatever is said.
target!(iscsi_login, chap_logins(), |bytes| {
    let secret = Credentials::new("host", b"a secret that nobody guesses").expect("credentials");
    let closed = Door(ChapPolicy { initiators: vec![secret], target: None });
    for door in [&closed, &Door(ChapPolicy::default())] {
        let address = SocketAddr::from(([192, 0, 2, 1], 3260));
        let mut login = Some(Login::new(address, address, true, Nonce::new(|| 7)));
        read(bytes, |pdu| {
            let Some(machine) = &mut login else { return };
            match machine.receive(door, &pdu) {
                Step::Reply(reply) => assert!(reply.data.len() <= MAX_DATA),
                Step::Refused(..) => login = None,
                Step::Done(..) => {
                    assert!(!door.0.required(), "nobody proved anything");
                    login = None;
                }
            }
        });
    }
});

fn login_responses() -> Vec<Vec<u8>> {
    let response = |flags, stat_sn, pairs: &[(&str, &str)]| {
        let header = LoginResponse {
            flags,
            isid: [0x80, 0, 0, 0, 0, 1],
            tsih: 1,
            stat_sn,
            ..LoginResponse::default()
        };
        Pdu::with_data(header, text::emit(pairs.iter().copied())).to_bytes(Digests::default())
    };
    vec![
        [response(0x81, 0, &[("AuthMethod", "None")]), response(0x87, 1, &[("HeaderDigest", "None")])]
            .concat(),
        [
            response(0, 0, &[("AuthMethod", "CHAP")]),
            response(0, 1, &[("CHAP_A", "5"), ("CHAP_I", "1"), ("CHAP_C", "0x00")]),
        ]
        .concat(),
    ]
}

target!(iscsi_login_initiator, login_responses(), |bytes| {
    let credentials = |name: &str, secret: &[u8]| Credentials::new(name, secret).expect("credentials");
    let options = initiator::LoginOptions {
        initiator: HOST.parse().expect("a name"),
        isid: Isid([0x80, 0, 0, 0, 0, 1]),
        kind: SessionKind::Normal(TARGET.parse().expect("a name")),
        chap: (!bytes.len().is_multiple_of(2)).then(|| credentials("host", b"one")),
        chap_target: None,
        offers: Offers::default().with(Key::HeaderDigest, "None"),
        cmd_sn: 1,
    };
    let started = initiator::Login::start(options, false, Nonce::new(|| 7));
    let mut login = started.ok().map(|(login, _)| login);
    read(bytes, |pdu| {
        let Some(machine) = &mut login else { return };
        match machine.receive(&pdu) {
            Ok(initiator::Progress::Send(next)) => assert!(next.data.len() <= MAX_DATA),
            Ok(initiator::Progress::Done(done)) => {
                assert_ne!(done.tsih, 0);
                login = None;
            }
            Err(_) => login = None,
        }
    });
});

struct Anything;
struct Moves(u32, u32);

impl Task for Moves {
    fn data_out(&self) -> u32 {
        self.0
    }

    fn data_in(&self) -> u32 {
        self.1
    }

    fn execute(self: Box<Self>, memory: IoBuf) -> IoFuture<Option<Outcome>> {
        assert!(memory.len() >= self.0.max(self.1) as usize);
        IoFuture::ready(Some(Outcome { data_in: self.1, ..Outcome::default() }))
    }
}

impl Nexus for Anything {
    fn submit(&self, command: &Command) -> Submitted {
        Submitted::Task(Box::new(Moves(command.data_out.min(4096), command.data_in.min(4096))))
    }

    fn manage(&self, _: u64, _: Function) -> IoFuture<TaskResult> {
        IoFuture::ready(TaskResult::Complete)
    }
}

impl Directory for Anything {
    fn targets(&self, _: &IscsiName, _: Option<&IscsiName>) -> Vec<Listed> {
        Vec::new()
    }
}

fn session(rdma: bool) -> Session {
    let address = SocketAddr::from(([192, 0, 2, 1], 3260));
    let mut login = Login::new(address, address, rdma, Nonce::new(|| 7));
    let Step::Done(_, established) =
        login.receive(&Door(ChapPolicy::default()), &login_request(0x87, login_text()))
    else {
        panic!("the login is good");
    };
    Session::new(
        Instant::now(),
        *established,
        SessionOptions::default(),
        Some(Box::new(Anything)),
        Rc::new(Anything),
    )
}

// Every command gets at most one status, numbers only go forward, memory is asked for within what a command says.
target!(iscsi_session, stream(), |bytes| {
    let mut drive = Drive::new(session(false));
    read(bytes, |pdu| drive.control(pdu));
});

/// iSER messages one after the other, each with its length before it.
fn messages() -> Vec<Vec<u8>> {
    let header = |flags: u8| [vec![flags], vec![0; 3], vec![9; 24]].concat();
    let all = one_by_one().into_iter().skip(1).zip([0x14, 0x18, 0x1c, 0x10, 0x10, 0x10, 0x10]);
    let framed = all.flat_map(|(pdu, flags)| {
        let message = [header(flags), pdu].concat();
        [(message.len() as u16).to_be_bytes().to_vec(), message].concat()
    });
    vec![framed.collect()]
}

// RFC 7145 §9: the same over RDMA, where a message is a header with STags and a PDU, and data come by READ.
target!(iser_session, messages(), |bytes| {
    let mut drive = Drive::new(session(true));
    let mut rest = bytes;
    while let Some((len, after)) = rest.split_first_chunk::<2>() {
        let (message, next) = after.split_at(usize::from(u16::from_be_bytes(*len)).min(after.len()));
        rest = next;
        let Ok(header @ IserHeader::Control(_)) = IserHeader::parse(message) else { continue };
        let emitted = header.emit();
        assert_eq!(IserHeader::parse(&emitted), Ok(header));
        let pdu = message.get(emitted.len()..).unwrap_or_default().to_vec();
        if let Ok(pdu) = Pdu::from_bytes(&pdu.into(), MAX_DATA) {
            drive.control(pdu);
        }
    }
});

/// A session, and what must never go back.
struct Drive {
    session: Session,
    numbers: Numbers,
    closed: bool,
}

impl Drive {
    fn new(session: Session) -> Drive {
        Drive { numbers: session.numbers(), session, closed: false }
    }

    fn control(&mut self, pdu: Pdu) {
        let Drive { session, numbers, closed } = self;
        session.control(Instant::now(), pdu);
        while let Some(action) = session.poll() {
            assert!(!*closed, "nothing follows the close");
            match action {
                Action::Allocate { task, len } => {
                    assert!(len <= 4096);
                    session.memory(task, SharedBuffer::new(vec![0; len]).io());
                }
                Action::GetData { task, from, to, .. } => {
                    assert!(from < to && to <= 4096);
                    session.fetched(task);
                }
                Action::Respond(response) => {
                    session.scsi_response(&response, 0);
                }
                Action::Close(_) => *closed = true,
                Action::Run(..) | Action::Manage(..) => panic!("everything ends at once here"),
                Action::Send(_)
                | Action::Release(_)
                | Action::Drain(_)
                | Action::MaxSend(_)
                | Action::ColdReset => {}
            }
        }
        let now = session.numbers();
        assert!(!before(now.stat_sn, numbers.stat_sn) && !before(now.exp_cmd_sn, numbers.exp_cmd_sn));
        assert!(!before(now.max_cmd_sn, numbers.max_cmd_sn));
        assert!(
            now.max_cmd_sn.wrapping_sub(now.exp_cmd_sn) as i32 >= -1,
            "the window is never less than closed"
        );
        assert!(session.outstanding() <= 256);
        *numbers = now;
    }
}

target!(iscsi_session_initiator, stream(), |bytes| {
    let login = initiator::LoggedIn {
        tsih: 1,
        params: Params::of(&Negotiation::new(Side::Initiator, Offers::default()), Side::Initiator),
        portal_group: None,
        alias: None,
        cmd_sn: 1,
        max_cmd_sn: 2,
        exp_stat_sn: 0,
    };
    let mut session = host::Session::new(Instant::now(), &login, host::SessionOptions::default());
    let commands = 5;
    for _ in 0..commands {
        session.command(host::Command { cdb: [0x28; 16], data_in: 512, ..host::Command::default() });
    }
    session.manage(TaskFunction::LunReset, 0);
    let mut done = 0;
    read(bytes, |pdu| {
        session.receive(Instant::now(), &pdu);
        while session.start(Instant::now()).is_some() {}
        while let Some(action) = session.poll() {
            done += u32::from(matches!(action, host::Action::Done(..)));
        }
    });
    assert!(done <= commands, "one end a command");
});
