//! What futures of commands report to the connection that waits for them, and how a connection is woken from outside.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use everywire_verbs::rt::Notify;

use crate::pdu::TaskResult;
use crate::session::scsi::Outcome;
use crate::session::target::{Session, TaskId};

enum Done {
    Task(TaskId, Option<Outcome>),
    Management(u64, TaskResult),
}

/// One connection's. What futures report, and what the target orders, wakes the connection.
#[derive(Default)]
pub(crate) struct Inbox {
    done: RefCell<VecDeque<Done>>,
    /// Told when there is something to look at.
    pub(crate) poke: Notify,
}

impl Inbox {
    fn push(&self, done: Done) {
        self.done.borrow_mut().push_back(done);
        self.poke.notify_one();
    }

    /// A task's future ended.
    pub(crate) fn task(&self, id: TaskId, outcome: Option<Outcome>) {
        self.push(Done::Task(id, outcome));
    }

    /// A task management function's future ended.
    pub(crate) fn management(&self, id: u64, result: TaskResult) {
        self.push(Done::Management(id, result));
    }

    /// Tells the session what ended.
    pub(crate) fn drain(&self, session: &mut Session) {
        loop {
            let done = self.done.borrow_mut().pop_front();
            match done {
                Some(Done::Task(id, outcome)) => session.finished(id, outcome),
                Some(Done::Management(id, result)) => session.managed(id, result),
                None => return,
            }
        }
    }

    /// Wakes the connection, if it is still there.
    pub(crate) fn poke_fn(self: &Rc<Self>) -> Rc<dyn Fn()> {
        let inbox = Rc::downgrade(self);
        Rc::new(move || {
            if let Some(inbox) = inbox.upgrade() {
                inbox.poke.notify_one();
            }
        })
    }
}
