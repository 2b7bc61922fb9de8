//! A fabric that is gone, and the way back to it: whoever runs on its port may end, or wait until there is one again.
//!
//! The first attempt follows a second after the loss, later ones with pauses of at most five. Nothing here blocks: a fabric
//! that has opened its door and does not answer is waited for by its descriptor. Only the same port is taken again, since
//! the device's GUIDs and names are in its peers' hands.

use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use everywire_wire::{Gid, Guid};

use super::Host;
use crate::fabric_port::message::Welcome;
use crate::fabric_port::{FabricPort, Greeting};

/// How long after the loss the first attempt is made.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Which port a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) fabric: String,
    pub(crate) port: String,
    pub(crate) node_guid: Guid,
    pub(crate) port_guid: Guid,
    pub(crate) ip: Gid,
}

impl Seat {
    /// Of a port that welcomes.
    pub(crate) fn new(fabric: &str, port: &str, welcome: &Welcome) -> Seat {
        let Welcome { node_guid, port_guid, ip, .. } = *welcome;
        Seat { fabric: fabric.to_owned(), port: port.to_owned(), node_guid, port_guid, ip }
    }
}

/// What a look at a lost port came to.
#[derive(Debug)]
pub(super) enum Look {
    /// Nothing.
    Nothing,
    /// A fabric's door is open: its answer comes by the descriptor of [`Lost::fd`].
    Began,
    /// The port is there again.
    Back(Box<(FabricPort, Welcome)>),
}

/// A port that is lost.
#[derive(Debug)]
pub(super) struct Lost {
    next: Instant,
    pause: Duration,
    greeting: Option<Greeting>,
    /// The last reason that was told.
    told: String,
}

impl Lost {
    pub(super) fn new(now: Instant) -> Lost {
        Lost { next: now + FIRST_PAUSE, pause: FIRST_PAUSE, greeting: None, told: String::new() }
    }

    /// When to look at the latest.
    pub(super) fn deadline(&self) -> Instant {
        self.greeting.as_ref().map_or(self.next, Greeting::until)
    }

    /// The descriptor of an attempt that waits for its answer.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.greeting.as_ref().and_then(Greeting::fd)
    }

    /// Tries what can be tried.
    pub(super) fn look(&mut self, now: Instant, seat: &Seat) -> Look {
        let Some(greeting) = &mut self.greeting else {
            if now < self.next {
                return Look::Nothing;
            }
            return match Greeting::begin(&seat.fabric, &seat.port) {
                Ok(greeting) => {
                    self.greeting = Some(greeting);
                    Look::Began
                }
                Err(_) => self.failed(now, String::new()), // no fabric yet, as was told when it went
            };
        };
        match greeting.poll(now) {
            Ok(None) => Look::Nothing,
            Ok(Some((port, welcome))) => {
                self.greeting = None;
                if Seat::new(&seat.fabric, &seat.port, &welcome) == *seat {
                    return Look::Back(Box::new((port, welcome)));
                }
                let text = "it is another port now: its GUID or address has changed; start the program anew";
                self.failed(now, text.to_owned())
            }
            Err(error) => {
                self.greeting = None;
                self.failed(now, error.to_string())
            }
        }
    }

    fn failed(&mut self, now: Instant, why: String) -> Look {
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.next = now + self.pause;
        if !why.is_empty() && why != self.told {
            tracing::info!("cannot attach again yet: {why}");
            self.told = why;
        }
        Look::Nothing
    }
}

/// Whether a device's port is lost, for those who wait for that.
#[derive(Debug, Default)]
pub(crate) struct Absence(Mutex<(Option<String>, Vec<Waker>)>);

impl Absence {
    fn lock(&self) -> MutexGuard<'_, (Option<String>, Vec<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is lost, or there again.
    pub(super) fn set(&self, why: Option<String>) {
        let wakers = {
            let mut state = self.lock();
            state.0 = why;
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Why it is lost, if it is.
    pub(crate) fn why(&self) -> Option<String> {
        self.lock().0.clone()
    }

    /// Waits until it is lost.
    pub(crate) async fn wait(&self) -> String {
        poll_fn(|cx| {
            let mut state = self.lock();
            match &state.0 {
                Some(why) => Poll::Ready(why.clone()),
                None => {
                    state.1.retain(|waker| !waker.will_wake(cx.waker()));
                    state.1.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Host {
    /// Why the fabric of the device's port is gone, while it is. The device is attached again as soon as there is one, and
    /// what listens on it goes on listening; connections have ended. Always `None` on other wires.
    pub fn lost(&self) -> Option<String> {
        self.shared.lock().absence()?.why()
    }

    /// Waits until that fabric is gone; why it is. Never, on other wires.
    pub async fn until_lost(&self) -> String {
        let absence = self.shared.lock().absence();
        match absence {
            Some(absence) => absence.wait().await,
            None => std::future::pending().await,
        }
    }
}
