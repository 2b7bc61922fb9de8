//! The sessions of a target: handles (TSIH), and who takes whose place.
//!
//! Read RFC 7143 §4.4.3 and §6.3.5: a login with the name, ISID and portal group of an open session, and TSIH 0, ends that
//! session and takes its place; another ISID is another session.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use everywire_verbs::rt::Notify;

use crate::login::target::Refusal;
use crate::login::{Identity, LoginStatus};

/// Why a session is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Another took its place.
    Reinstated,
    /// The target ends.
    Shutdown,
    /// TARGET COLD RESET.
    Reset,
}

/// How a target tells a connection to end, and hears that it has.
#[derive(Default)]
pub(crate) struct Order {
    order: Cell<Option<Ended>>,
    wake: RefCell<Option<Rc<dyn Fn()>>>,
    gone: Cell<bool>,
    went: Notify,
}

impl Order {
    fn give(&self, order: Ended) {
        self.order.set(Some(order));
        let wake = self.wake.borrow().clone();
        if let Some(wake) = wake {
            wake();
        }
    }

    /// What was ordered since the last look.
    pub(crate) fn take(&self) -> Option<Ended> {
        self.order.take()
    }

    /// How to wake the connection.
    pub(crate) fn wake_with(&self, wake: &Rc<dyn Fn()>) {
        *self.wake.borrow_mut() = Some(wake.clone());
    }

    pub(crate) fn is_gone(&self) {
        self.gone.set(true);
        self.went.notify_one();
    }

    /// Waits until the connection has ended.
    pub(crate) async fn gone(&self) {
        while !self.gone.get() {
            self.went.notified().await;
        }
    }
}

struct Entry {
    identity: Identity,
    portal_group: u16,
    order: Rc<Order>,
    replaces: Option<Rc<Order>>,
}

/// All sessions.
#[derive(Default)]
pub(super) struct Registry {
    entries: HashMap<u16, Entry>,
    last: u16,
    connections: usize,
}

impl Registry {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn has(&self, tsih: u16) -> bool {
        self.entries.contains_key(&tsih)
    }

    pub(super) fn enter(&mut self, limit: usize) -> bool {
        let room = self.connections < limit;
        self.connections += usize::from(room);
        room
    }

    pub(super) fn leave(&mut self) {
        self.connections -= 1;
    }

    pub(super) fn open(
        &mut self,
        identity: &Identity,
        portal_group: u16,
        limit: usize,
    ) -> Result<u16, Refusal> {
        let same = |entry: &Entry| entry.identity == *identity && entry.portal_group == portal_group;
        let old = self.entries.iter().find(|(_, entry)| same(entry)).map(|(&tsih, _)| tsih);
        if old.is_none() && self.entries.len() >= limit.min(usize::from(u16::MAX)) {
            return Err(Refusal::new(LoginStatus::OutOfResources, format_args!("{limit} sessions are open")));
        }
        let replaces = old.and_then(|tsih| self.entries.remove(&tsih)).map(|entry| {
            tracing::info!("{}: session {} is reinstated", identity.initiator, identity.isid);
            entry.order.give(Ended::Reinstated);
            entry.order
        });
        let tsih = loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.entries.contains_key(&self.last) {
                break self.last;
            }
        };
        let order = Rc::new(Order::default());
        self.entries.insert(tsih, Entry { identity: identity.clone(), portal_group, order, replaces });
        Ok(tsih)
    }

    /// The order of a session that begins, and that of the session before it.
    pub(super) fn claim(&mut self, tsih: u16) -> (Rc<Order>, Option<Rc<Order>>) {
        match self.entries.get_mut(&tsih) {
            Some(entry) => (entry.order.clone(), entry.replaces.take()),
            // It was replaced before it began.
            None => {
                let order = Rc::new(Order::default());
                order.give(Ended::Reinstated);
                (order, None)
            }
        }
    }

    pub(super) fn remove(&mut self, tsih: u16) {
        self.entries.remove(&tsih);
    }

    pub(super) fn end(&mut self, how: Ended, which: impl Fn(&Identity) -> bool) {
        self.entries.values().filter(|entry| which(&entry.identity)).for_each(|entry| entry.order.give(how));
    }

    pub(super) fn end_all(&mut self, how: Ended) {
        self.end(how, |_| true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::SessionKind;
    use crate::name::Isid;

    fn identity(host: &str, isid: u8, target: Option<&str>) -> Identity {
        let name = |tail: &str| format!("iqn.2001-04.com.example:{tail}").parse().unwrap();
        Identity {
            initiator: name(host),
            isid: Isid([0x80, 0, 0, 0, 0, isid]),
            kind: target.map_or(SessionKind::Discovery, |tail| SessionKind::Normal(name(tail))),
        }
    }

    /// RFC 7143 §6.3.5's table: same name, ISID and group is reinstatement; everything else a session of its own (IS-15).
    #[test]
    fn who_takes_whose_place() {
        let mut registry = Registry::default();
        let mut open = |host, isid, target, group| {
            let tsih = registry.open(&identity(host, isid, target), group, 100).unwrap();
            let (order, old) = registry.claim(tsih);
            assert_ne!(tsih, 0);
            (order, old.is_some())
        };
        let (first, _) = open("a", 1, Some("disk"), 1);
        for (host, isid, target, group) in [
            ("a", 2, Some("disk"), 1),
            ("b", 1, Some("disk"), 1),
            ("a", 1, Some("tape"), 1),
            ("a", 1, Some("disk"), 2),
        ] {
            let (_, replaced) = open(host, isid, target, group);
            assert!(!replaced, "{host} {isid} {target:?} {group}");
        }
        assert_eq!(first.take(), None);
        let (_, replaced) = open("a", 1, Some("disk"), 1);
        assert!(replaced);
        assert_eq!(first.take(), Some(Ended::Reinstated));
        assert_eq!(registry.len(), 5);
    }

    #[test]
    fn bounded() {
        let mut registry = Registry::default();
        for isid in 0..3 {
            let opened = registry.open(&identity("a", isid, None), 1, 2);
            assert_eq!(opened.is_ok(), isid < 2);
        }
        assert!(registry.open(&identity("a", 1, None), 1, 2).is_ok(), "in an old one's place");
    }
}
