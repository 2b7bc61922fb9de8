//! Task management of a target's session, PDU by PDU: what is ended, what is waited for, what is answered. RFC 7143 §4.2.3.3, §11.5, §11.6.

mod lab;
mod raw_session;

use std::time::Duration;

use everywire_iscsi::pdu::*;
use everywire_iscsi::session::scsi::Function;
use everywire_iscsi::session::target::{Action, TaskId};
use lab::STUCK;
use raw_session::{FIRST, Raw, command, write};

fn abort(ref_tag: u32, ref_cmd_sn: u32, cmd_sn: u32) -> Pdu {
    let request = TaskRequest {
        flags: FINAL | TaskFunction::AbortTask.code(),
        itt: 0x77,
        ref_tag,
        ref_cmd_sn,
        cmd_sn,
        ..TaskRequest::default()
    };
    Pdu::new(request).immediate()
}

/// IS-14, §11.5.1 and §11.6.1.
#[test]
fn abort_of_seen_unseen_and_answered_tasks() {
    let result = |pdus: Vec<Pdu>| match pdus[..] {
        [Pdu { header: Header::TaskResponse(response), .. }] => TaskResult::from_code(response.response),
        _ => panic!("{pdus:?}"),
    };
    let mut raw = Raw::normal();
    raw.say(Pdu::new(command(FIRST, STUCK)));
    let next = FIRST.wrapping_add(1);
    assert_eq!(result(raw.sent(abort(FIRST.wrapping_add(100), FIRST, next))), Some(TaskResult::Complete));
    assert_eq!(raw.session.outstanding(), 0);
    assert!(matches!(raw.disk.managed.borrow()[..], [Function::AbortTask { tag: 1 }]));
    assert_eq!(
        result(raw.sent(abort(FIRST.wrapping_add(100), FIRST, next))),
        Some(TaskResult::NoTask),
        "answered"
    );
    // `next` has not come; the abort counts it as received, and it is ignored when it comes.
    let later = next.wrapping_add(1);
    assert_eq!(
        result(raw.sent(abort(next.wrapping_add(100), next, later))),
        Some(TaskResult::Complete),
        "unseen"
    );
    assert_eq!(raw.sent(Pdu::new(command(next, 0))), []);
    assert_eq!(raw.sent(Pdu::new(command(later, 0))).len(), 1, "the window went on");
}

fn reset(cmd_sn: u32) -> Pdu {
    let flags = FINAL | TaskFunction::LunReset.code();
    Pdu::new(TaskRequest { flags, itt: 0x78, ref_tag: NO_TAG, cmd_sn, ..TaskRequest::default() }).immediate()
}

fn is_complete(pdus: &[Pdu]) -> bool {
    let complete = TaskResult::Complete.code();
    matches!(pdus, [Pdu { header: Header::TaskResponse(one), .. }] if one.response == complete)
}

/// §4.2.3.3, target step b: a function on many tasks waits for commands before it, and leaves those behind it alone.
#[test]
fn a_reset_waits_for_the_commands_before_it() {
    let mut raw = Raw::normal();
    let (second, third) = (FIRST.wrapping_add(1), FIRST.wrapping_add(2));
    assert_eq!(raw.sent(reset(second)), [], "FIRST is still to come");
    assert_eq!(raw.sent(Pdu::new(command(third, 0))), [], "held");
    assert_eq!(raw.sent(Pdu::new(command(second, STUCK))), [], "held");
    let pdus = raw.sent(Pdu::new(command(FIRST, STUCK)));
    assert!(is_complete(&pdus[..1]), "{pdus:?}");
    assert!(matches!(pdus[1].header, Header::ScsiResponse(one) if one.itt == third.wrapping_add(100)));
    assert_eq!(raw.session.outstanding(), 1, "the second came behind the reset, and is stuck");
    assert_eq!(*raw.disk.managed.borrow(), [Function::LunReset]);
}

/// A write whose data was asked for.
fn asked_for_data(raw: &mut Raw) -> TaskId {
    let actions = raw.say(Pdu::new(write(FIRST, FINAL, 4096, 8)));
    let [Action::Allocate { task, len: 4096 }] = actions[..] else { panic!("{} actions", actions.len()) };
    raw.session.memory(task, everywire_block::SharedBuffer::new(vec![0; 4096]).io());
    assert!(matches!(raw.session.poll(), Some(Action::GetData { to: 4096, .. })));
    task
}

/// §4.2.2.2: statuses are numbered in the order in which they go out, whoever makes the PDU.
#[test]
fn statuses_are_numbered_as_they_go_out() {
    let mut raw = Raw::normal();
    raw.session.control(raw.now, Pdu::new(command(FIRST, 0)));
    raw.session.control(raw.now, reset(FIRST.wrapping_add(1)));
    raw.session.control(raw.now, Pdu::new(command(FIRST.wrapping_add(1), 0)));
    let mut numbers = Vec::new();
    while let Some(action) = raw.session.poll() {
        let pdu = match action {
            Action::Send(pdu) => pdu,
            Action::Respond(response) => raw.session.scsi_response(&response, 0),
            _ => continue,
        };
        numbers.push(match pdu.header {
            Header::ScsiResponse(one) => one.stat_sn,
            Header::TaskResponse(one) => one.stat_sn,
            other => panic!("{other:?}"),
        });
    }
    assert!(numbers.len() == 3 && numbers.windows(2).all(|two| two[1] == two[0] + 1), "{numbers:?}");
}

/// §4.2.3.3, target step a: what was asked for is waited for, and dropped; not for ever, since Linux's initiator may not send it.
#[test]
fn a_reset_waits_for_data_that_was_asked_for() {
    for comes in [true, false] {
        let mut raw = Raw::normal();
        let task = asked_for_data(&mut raw);
        let actions = raw.say(reset(FIRST.wrapping_add(1)));
        assert!(matches!(actions[..], [Action::Drain(one)] if one == task), "and no answer");
        // ABORT TASK of what is being aborted has the same to wait for.
        let abort = abort(FIRST.wrapping_add(100), FIRST, FIRST.wrapping_add(1));
        assert_eq!(raw.sent(abort), []);
        if comes {
            raw.session.fetched(task);
        } else {
            let until = raw.session.deadline().expect("it does not wait for ever");
            assert!(until <= raw.now + Duration::from_secs(10), "Linux waits for 15 s");
            raw.session.tick(until);
            assert!(matches!(raw.session.poll(), Some(Action::Release(one)) if one == task));
        }
        let mut answers = Vec::new();
        while let Some(Action::Send(pdu)) = raw.session.poll() {
            answers.push(pdu);
        }
        assert!(answers.len() == 2 && answers.chunks(1).all(is_complete), "{answers:?}");
        assert!(raw.disk.bytes.borrow().iter().all(|&byte| byte == 0), "nothing was written");
    }
}
