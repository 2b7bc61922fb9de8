//! Targets for everything that `everywire-srp` takes from a peer: information units of both directions, logins of both forms,
//! fetched tables, and whole channels of both ends, whose credits any bytes must keep in order.

use everywire_fuzz::target;
use everywire_scsi::Status;
use everywire_scsi::target::{Outcome, Residual};
use everywire_srp::initiator::{Data, Request, Session};
use everywire_srp::iu::{
    Buffer, BufferFormats, Command, Descriptor, Function, Indirect, InitiatorIu, LoginReject, LoginRequest,
    LoginResponse, MAX_DESCRIPTORS, MultiChannel, MultiChannelResult, RejectReason, Response, ResponseCode,
    TargetIu, TaskManagement, parse_table,
};
use everywire_srp::target::channel::{Asked, check_data, check_lengths};
use everywire_srp::target::{Channel, Gate, Limits, Received, TargetPort};
use everywire_srp::{PortId, dm};

const TARGET: PortId = PortId::new(1, 2);

fn login() -> LoginRequest {
    LoginRequest {
        tag: 7,
        it_iu_len: 8260,
        formats: BufferFormats::OURS,
        multi_channel: MultiChannel::Multi,
        immediate_offset: Some(68),
        initiator: PortId::new(3, 4),
        target: TARGET,
    }
}

fn granted() -> LoginResponse {
    LoginResponse {
        tag: 7,
        request_limit_delta: 8,
        max_it_iu_len: 8260,
        max_ti_iu_len: 8260,
        formats: BufferFormats::OURS,
        multi_channel: MultiChannelResult::None,
        immediate: true,
    }
}

fn command(out: Buffer, into: Buffer) -> Vec<u8> {
    let command = Command { tag: 5, solicited: 6, lun: 0, attribute: 0, cdb: vec![0x2a; 20], out, into };
    command.emit()
}

fn from_initiators() -> Vec<Vec<u8>> {
    let one = Descriptor { addr: 0x1000, key: 9, len: 512 };
    let indirect =
        Indirect { table: Descriptor { addr: 1, key: 2, len: 48 }, len: 1536, inline: vec![one; 2] };
    let mut immediate = command(Buffer::Immediate { len: 512 }, Buffer::None);
    immediate.resize(68 + 512, 0xaa);
    let manage = |function| TaskManagement { tag: 6, solicited: 2, lun: 0, function, task_tag: 5 };
    vec![
        login().emit(),
        command(Buffer::None, Buffer::None),
        command(Buffer::Direct(one), Buffer::None),
        command(Buffer::None, Buffer::Indirect(indirect)),
        immediate,
        InitiatorIu::Manage(manage(Function::AbortTask)).emit(),
        InitiatorIu::Manage(manage(Function::Unknown(3))).emit(),
        InitiatorIu::Logout { tag: 1 }.emit(),
        InitiatorIu::CreditResponse { tag: 1 << 63 }.emit(),
        InitiatorIu::EventResponse { tag: 1 << 62 }.emit(),
    ]
}

fn from_targets() -> Vec<Vec<u8>> {
    let response = Response {
        request_limit_delta: 1,
        tag: 0,
        status: 2,
        in_residual: Residual::Under(3),
        sense: vec![0x70; 18],
        code: Some(ResponseCode::COMPLETE),
        ..Response::default()
    };
    let reject = LoginReject { tag: 7, reason: RejectReason::CHANNEL_LIMIT, formats: BufferFormats::OURS };
    let mut event = vec![0; 40];
    (event[0], event[31]) = (0x82, 4);
    vec![
        granted().emit(),
        reject.emit(),
        response.emit(),
        Channel::logout(everywire_srp::iu::LogoutReason::INACTIVE),
        event,
    ]
}

target!(srp_initiator_iu, from_initiators(), |bytes| {
    let Ok(iu) = InitiatorIu::parse(bytes) else { return };
    // What is understood comes out as something that is understood the same.
    assert_eq!(InitiatorIu::parse(&iu.emit()).as_ref(), Ok(&iu));
    if let InitiatorIu::Command(command) = &iu {
        let _ = check_data(command, 1 << 20);
        if let Buffer::Indirect(indirect) = &command.out {
            assert!(indirect.inline.len() <= indirect.entries() && indirect.entries() <= MAX_DESCRIPTORS);
            let _ = check_lengths(&indirect.inline, indirect.len);
        }
    }
});

target!(srp_target_iu, from_targets(), |bytes| {
    let Ok(iu) = TargetIu::parse(bytes) else { return };
    assert_eq!(TargetIu::parse(&iu.emit()).as_ref(), Ok(&iu));
});

target!(srp_login, [login().emit_rdma_cm(), login().emit()], |bytes| {
    let mut gate = Gate::new(Limits { channels: 4, channels_per_nexus: 2, ..Limits::default() });
    assert!(gate.add(TargetPort { name: "t".to_owned(), id: TARGET, initiators: None }));
    let Ok(request) = LoginRequest::parse_rdma_cm(bytes) else { return };
    assert_eq!(LoginRequest::parse_rdma_cm(&request.emit_rdma_cm()), Ok(request));
    for _ in 0..8 {
        match gate.login(&request) {
            Ok(accepted) => {
                assert!(accepted.response.max_it_iu_len <= gate.limits().max_it_iu_len);
                assert!(accepted.immediate_offset.is_none_or(|at| u32::from(at) < request.it_iu_len));
            }
            Err(refusal) => assert_eq!(refusal.reject.tag, request.tag),
        }
        assert!(gate.len() <= 2);
    }
});

target!(
    srp_device_management,
    [dm_question(0x10, 0), dm_question(0x11, 1), dm_question(0x12, 1 << 16)],
    |bytes| {
        let mut mad = [0; 256];
        let len = bytes.len().min(256);
        mad[..len].copy_from_slice(&bytes[..len]);
        let agent = dm::Agent::new(2, "fuzz", &[(TARGET, 9); 6]);
        if let Some(answer) = agent.answer(&mad) {
            assert_eq!((answer[3], &answer[8..24]), (mad[3] | 0x80, &mad[8..24]));
        }
        assert!(dm::IoUnitInfo::parse(&mad).present().count() <= usize::from(dm::MAX_CONTROLLERS));
        let _ = dm::ControllerProfile::parse(&mad);
        for at in 0..4 {
            let _ = dm::ServiceEntry::parse(&mad, at).extension();
        }
    }
);

fn dm_question(attribute: u16, modifier: u32) -> Vec<u8> {
    let mut mad = vec![0; 256];
    mad[..4].copy_from_slice(&[1, 6, 1, 1]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad
}

target!(srp_table, [vec![1; 64]], |bytes| {
    if let Ok(table) = parse_table(bytes) {
        assert_eq!(table.len() * Descriptor::LEN, bytes.len());
    }
});

/// Pieces with a length before them.
fn pieces(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut all) = (bytes, Vec::new());
    while let Some((&len, after)) = rest.split_first() {
        let (piece, behind) = after.split_at(after.len().min(len.into()));
        all.push(piece);
        rest = behind;
    }
    all
}

fn prefixed(units: Vec<Vec<u8>>) -> Vec<u8> {
    units
        .iter()
        .flat_map(|unit| [&[unit.len().min(255) as u8][..], &unit[..unit.len().min(255)]].concat())
        .collect()
}

target!(srp_target_channel, [prefixed(from_initiators()[1..].to_vec())], |bytes| {
    const LIMIT: u16 = 4;
    let mut channel = Channel::new(LIMIT, Some(68));
    let (mut given, mut waiting) = (i64::from(LIMIT), Vec::new());
    let outcome = Outcome { status: Status::GOOD, sense: None, data_in: 0, residual: Residual::None };
    let delta = |bytes: &[u8]| match TargetIu::parse(bytes).expect("what it sends is understood") {
        TargetIu::Response(response) => i64::from(response.request_limit_delta),
        TargetIu::Credit(credit) => i64::from(credit.request_limit_delta),
        TargetIu::Event(event) => i64::from(event.request_limit_delta),
        other => panic!("{other:?}"),
    };
    for (i, piece) in pieces(bytes).into_iter().enumerate() {
        match channel.receive(piece) {
            Ok(Received::Command(command)) => {
                given -= 1;
                if let Buffer::Immediate { len } = command.out {
                    let at = channel.immediate(len, piece.len());
                    assert!(at.is_err() || at.is_ok_and(|at| at + len as usize <= piece.len()));
                }
                waiting.push(Asked::of(&command));
            }
            Ok(Received::Manage(manage)) => {
                given -= 1;
                given += delta(&channel.managed(&manage, ResponseCode::COMPLETE));
            }
            Ok(Received::Nothing) => {}
            Ok(Received::Logout) | Err(_) => break,
        }
        assert!(given >= 0, "never more than were given");
        match (i % 3, waiting.pop()) {
            (0, Some(_)) => channel.silent(),
            (1, Some(asked)) => given += delta(&channel.respond(&asked, &outcome)),
            (_, Some(asked)) => waiting.push(asked),
            (_, None) => {}
        }
        while let Some(request) = channel.poll_request() {
            given += delta(&request);
        }
        assert!(given + waiting.len() as i64 <= i64::from(LIMIT));
        assert_eq!(channel.active(), waiting.len());
    }
});

target!(srp_initiator_channel, [prefixed(from_targets()[2..].to_vec())], |bytes| {
    let mut session = Session::new(&login(), &granted()).expect("granted");
    let data = [Descriptor { addr: 1, key: 2, len: 512 }; 3];
    let mut ends = std::collections::HashSet::new();
    for (tag, piece) in pieces(bytes).into_iter().enumerate() {
        let tag = tag as u64;
        let request = Request { lun: 0, cdb: &[0x28; 10], attribute: 0, data: Data::In(&data), table: None };
        if let Ok(Some(unit)) = session.command(tag, &request) {
            assert!(InitiatorIu::parse(&unit).is_ok() && unit.len() <= 8260);
        }
        match session.receive(piece) {
            Ok((everywire_srp::initiator::Event::Done { tag, .. }, _)) => {
                assert!(ends.insert(tag), "one end")
            }
            Ok((_, Some(reply))) => assert!(InitiatorIu::parse(&reply).is_ok()),
            Ok(_) => {}
            Err(_) => break,
        }
    }
});
