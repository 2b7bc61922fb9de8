//! The command window of a session: which CmdSN is next, which may come, what is held until a gap closes.
//!
//! Read RFC 7143 §4.2.2.1. Numbers are compared by serial arithmetic (RFC 1982). A command outside the window, or one that
//! came already, is ignored without a word.

use std::collections::BTreeMap;

/// Whether `a` comes before `b`.
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// What to do with a numbered command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one.
    Now,
    /// It is within the window, and others are missing before it.
    Early,
    /// Outside the window, or there already.
    Ignored,
}

/// The target's side of the window. `T` is what is held.
#[derive(Debug)]
pub struct Window<T> {
    expected: u32,
    max: u32,
    /// By distance from the first number ever expected, so that the order survives a wrap of numbers.
    held: BTreeMap<u64, Option<T>>,
    delivered: u64,
}

impl<T> Window<T> {
    /// Expects `first`, and takes `depth` commands before one is answered.
    pub fn new(first: u32, depth: u32) -> Window<T> {
        Window {
            expected: first,
            max: first.wrapping_add(depth.max(1) - 1),
            held: BTreeMap::new(),
            delivered: 0,
        }
    }

    /// ExpCmdSN.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// MaxCmdSN.
    pub fn max(&self) -> u32 {
        self.max
    }

    fn distance(&self, number: u32) -> u64 {
        self.delivered + u64::from(number.wrapping_sub(self.expected))
    }

    fn is_inside(&self, number: u32) -> bool {
        !before(number, self.expected) && !before(self.max, number)
    }

    /// A command of this number came. What is [`Arrival::Early`] is to be held; what is [`Arrival::Now`] counts as delivered.
    pub fn arrive(&mut self, number: u32) -> Arrival {
        if !self.is_inside(number) || self.held.contains_key(&self.distance(number)) {
            return Arrival::Ignored;
        }
        if number != self.expected {
            return Arrival::Early;
        }
        self.step();
        Arrival::Now
    }

    fn step(&mut self) {
        self.expected = self.expected.wrapping_add(1);
        self.delivered += 1;
    }

    /// Keeps an early command.
    pub fn hold(&mut self, number: u32, command: T) {
        self.held.insert(self.distance(number), Some(command));
    }

    /// Counts a number as received although its command never came (RFC 7143 §11.5.1, ABORT TASK); false outside the window.
    pub fn skip(&mut self, number: u32) -> bool {
        if !self.is_inside(number) {
            return false;
        }
        self.held.insert(self.distance(number), None);
        true
    }

    /// The next command whose turn has come.
    pub fn next_held(&mut self) -> Option<T> {
        while let Some(first) = self.held.first_entry() {
            if *first.key() != self.delivered {
                return None;
            }
            let command = first.remove();
            self.step();
            match command {
                Some(command) => return Some(command),
                // It was aborted before it came: its place is free again.
                None => self.advance(),
            }
        }
        None
    }

    /// Whether something like this is held.
    pub fn holds(&self, is: impl Fn(&T) -> bool) -> bool {
        self.held.values().flatten().any(is)
    }

    /// All that is held.
    pub fn held(&mut self) -> impl Iterator<Item = &mut T> {
        self.held.values_mut().flatten()
    }

    /// A command was answered: there is room for one more.
    pub fn advance(&mut self) {
        self.max = self.max.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7143 §4.2.2.1, over a wrap of the numbers.
    #[test]
    fn in_order_held_and_ignored() {
        let mut window: Window<&str> = Window::new(u32::MAX, 4);
        assert_eq!(window.max(), 2);
        assert_eq!(window.arrive(3), Arrival::Ignored, "above MaxCmdSN");
        assert_eq!(window.arrive(u32::MAX - 1), Arrival::Ignored, "below ExpCmdSN");
        assert_eq!(window.arrive(1), Arrival::Early);
        window.hold(1, "one");
        assert_eq!(window.arrive(1), Arrival::Ignored, "a duplicate");
        assert_eq!(window.arrive(u32::MAX), Arrival::Now);
        assert_eq!(window.next_held(), None);
        assert_eq!(window.arrive(0), Arrival::Now);
        assert_eq!(window.next_held(), Some("one"));
        assert_eq!((window.expected(), window.max()), (2, 2));
        window.advance();
        assert_eq!(window.arrive(3), Arrival::Early);
        assert!(window.skip(2), "aborted before it came");
        window.hold(3, "three");
        assert_eq!(window.next_held(), Some("three"));
        assert_eq!(window.max(), 4);
    }
}
