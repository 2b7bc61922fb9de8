//! Credits and ends of requests, by the responses that a target may give.

use super::*;
use crate::PortId;
use crate::iu::{AsyncEvent, BufferFormats, Credit, MultiChannel, MultiChannelResult};

fn session(limit: i32, it_iu_len: u32) -> Session {
    let request = LoginRequest {
        tag: 1,
        it_iu_len,
        formats: BufferFormats::OURS,
        multi_channel: MultiChannel::Single,
        immediate_offset: Some(IMMEDIATE_OFFSET),
        initiator: PortId::new(0, 1),
        target: PortId::new(0, 2),
    };
    let response = LoginResponse {
        tag: 1,
        request_limit_delta: limit,
        max_it_iu_len: it_iu_len,
        max_ti_iu_len: 512,
        formats: BufferFormats::OURS,
        multi_channel: MultiChannelResult::None,
        immediate: true,
    };
    Session::new(&request, &response).expect("granted")
}

fn plain(lun: u64) -> Request<'static> {
    Request { lun, cdb: &[0; 6], attribute: 0, data: Data::None, table: None }
}

fn response(tag: u64, delta: i32) -> Vec<u8> {
    Response { tag, request_limit_delta: delta, ..Response::default() }.emit()
}

/// SR-01: places come back with SRP_RSP, SRP_CRED_REQ and SRP_AER_REQ, the last two are answered, and one place is kept.
#[test]
fn credits_of_every_kind() {
    let mut session = session(3, 256);
    assert!(session.command(1, &plain(0)).unwrap().is_some());
    assert!(session.command(2, &plain(0)).unwrap().is_some());
    assert!(session.command(3, &plain(0)).unwrap().is_none(), "one is kept");
    assert!(session.manage(9, 0, Function::AbortTask, 1).is_some());
    assert_eq!((session.credits(), session.outstanding()), (0, 3));
    let credit = Credit { solicited: true, request_limit_delta: 2, tag: 0x11 };
    let (event, reply) = session.receive(&credit.emit()).unwrap();
    assert_eq!((event, reply), (Event::Credit, Some(InitiatorIu::CreditResponse { tag: 0x11 }.emit())));
    let aer =
        AsyncEvent { solicited: false, request_limit_delta: 1, tag: 0x12, lun: 5, sense: vec![0x70; 18] };
    let (_, reply) = session.receive(&aer.emit()).unwrap();
    assert_eq!(reply, Some(InitiatorIu::EventResponse { tag: 0x12 }.emit()));
    assert_eq!(session.credits(), 3);
    session.receive(&response(2, -1)).unwrap();
    assert_eq!(session.credits(), 2, "a delta may be negative");
}

#[test]
fn a_request_ends_once() {
    let mut session = session(8, 256);
    for (tag, lun) in [(1, 0), (2, 0), (3, 7)] {
        session.command(tag, &plain(lun)).unwrap().unwrap();
    }
    assert!(session.command(1, &plain(0)).is_err(), "the tag is taken");
    session.manage(9, 0, Function::LunReset, 0).unwrap();
    session.command(4, &plain(0)).unwrap().unwrap();
    session.receive(&response(2, 1)).unwrap();
    let done = Response { tag: 9, code: Some(ResponseCode::COMPLETE), ..Response::default() };
    let (event, _) = session.receive(&done.emit()).unwrap();
    // Not the one that has ended, not that of another unit, not the one sent afterwards.
    assert_eq!(event, Event::Managed { tag: 9, code: ResponseCode::COMPLETE, ended: vec![1] });
    assert!(session.receive(&response(1, 1)).is_err(), "it has ended");
    session.manage(10, 7, Function::AbortTask, 3).unwrap();
    let failed = Response { tag: 10, code: Some(ResponseCode::FAILED), ..Response::default() };
    let (event, _) = session.receive(&failed.emit()).unwrap();
    assert_eq!(event, Event::Managed { tag: 10, code: ResponseCode::FAILED, ended: vec![] });
}

/// SR-05: what fits is in the command, the table has all of it.
#[test]
fn descriptors_that_do_not_fit() {
    let all: Vec<_> = (0..300).map(|i| Descriptor { addr: i, key: 1, len: 4096 }).collect();
    for (it_iu_len, inline) in [(68 + 16 * 300, 255), (64 + 20 + 16 * 3, 4), (68, 0)] {
        let mut session = session(8, it_iu_len);
        let request = Request { data: Data::Out(&all), ..plain(0) };
        assert!(session.command(1, &request).is_err(), "no table is given");
        let bytes = session.command(1, &Request { table: Some((7, 8)), ..request }).unwrap().unwrap();
        let Ok(InitiatorIu::Command(command)) = InitiatorIu::parse(&bytes) else { panic!("no command") };
        let Buffer::Indirect(indirect) = command.out else { panic!("{:?}", command.out) };
        assert_eq!((indirect.inline.len(), indirect.entries(), indirect.len), (inline, 300, 300 * 4096));
        assert!(bytes.len() <= it_iu_len as usize && !indirect.is_whole());
    }
}
