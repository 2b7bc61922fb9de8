//! Receiving by RMPP: an answer that takes many MADs, put together segment by segment and acknowledged.
//!
//! Read first: IBTA volume 1 §13.6 (reliable multi-packet transactions); §13.6.6.2 is the receiver's flow diagram. One
//! [`Receiver`] is one transfer. Segments are taken in order; what comes early is dropped and comes again, since an
//! acknowledgement names the last one in order. It does not send data, and it keeps no clock: its owner repeats the request
//! when nothing comes.

use everywire_wire::mad::{MAD_LEN, Mad, MadHeader, RmppHeader, rmpp};

/// Where the RMPP header is.
const RMPP_AT: usize = MadHeader::LEN;
/// Segments that a sender may have under way; each acknowledgement opens so many.
const WINDOW: u32 = 64;

/// Status of an ABORT: the transfer is larger than its receiver takes (IBTA table 129: resources exhausted).
const STATUS_RESOURCES: u8 = 1;

/// What came of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    Wait,
    /// An acknowledgement (or, with [`Step::is_over`], the abort) to be sent.
    Answer(Box<Mad>),
    /// All is there; the last acknowledgement is to be sent.
    Done(Box<Mad>, Vec<u8>),
    /// The sender has given up, or sends too much; what is to be sent then.
    Failed(Option<Box<Mad>>),
}

impl Step {
    /// Whether the transfer has ended.
    pub fn is_over(&self) -> bool {
        matches!(self, Step::Done(..) | Step::Failed(_))
    }
}

/// One transfer, as its receiver sees it.
#[derive(Debug)]
pub struct Receiver {
    /// Bytes of a MAD that come before the class's data.
    header_len: usize,
    /// Bytes that each segment's payload length counts of the class's header (IBTA §13.6.2.1).
    class_header_len: usize,
    /// The most data bytes.
    limit: usize,
    /// The segment that comes next, from 1.
    next: u32,
    data: Vec<u8>,
}

impl Receiver {
    /// For a class whose data begin at `header_len`, of which `class_header_len` bytes are between the RMPP header and them;
    /// takes at most `limit` data bytes.
    pub fn new(header_len: usize, class_header_len: usize, limit: usize) -> Receiver {
        debug_assert!(header_len + 4 <= MAD_LEN);
        Receiver { header_len, class_header_len, limit, next: 1, data: Vec::new() }
    }

    /// A MAD of the transfer. One without RMPP is a transfer of a single segment.
    pub fn handle(&mut self, mad: &Mad) -> Step {
        let Ok(header) = RmppHeader::parse(&mad[RMPP_AT..]) else { return Step::Wait };
        if !header.active {
            if self.data.len() + MAD_LEN - self.header_len > self.limit {
                return Step::Failed(None);
            }
            self.data.extend_from_slice(&mad[self.header_len..]);
            return Step::Done(Box::new([0; MAD_LEN]), std::mem::take(&mut self.data));
        }
        match header.rmpp_type {
            rmpp::DATA => self.segment(mad, &header),
            rmpp::STOP | rmpp::ABORT => Step::Failed(None),
            _ => Step::Wait,
        }
    }

    fn segment(&mut self, mad: &Mad, header: &RmppHeader) -> Step {
        if header.data1 != self.next {
            // Again, or too early: the sender learns what is there.
            return if self.next > 1 { Step::Answer(self.ack(mad)) } else { Step::Wait };
        }
        let most = MAD_LEN - self.header_len;
        // The last segment tells how much of it counts; what it says beside that is the sender's word only.
        let len = if header.last {
            (header.data2 as usize).saturating_sub(self.class_header_len).min(most)
        } else {
            most
        };
        if self.data.len() + len > self.limit {
            return Step::Failed(Some(self.abort(mad)));
        }
        self.data.extend_from_slice(&mad[self.header_len..self.header_len + len]);
        self.next += 1;
        if header.last {
            return Step::Done(self.ack(mad), std::mem::take(&mut self.data));
        }
        // Half a window early, so that the sender does not run dry.
        if header.data1 == 1 || header.data1.is_multiple_of(WINDOW / 2) {
            return Step::Answer(self.ack(mad));
        }
        Step::Wait
    }

    /// An answer to a MAD of the transfer: its header, as the responder wrote it, turned round (IBTA §13.6.2.1).
    fn answer(&self, mad: &Mad, header: &RmppHeader) -> Box<Mad> {
        let mut out = Box::new([0; MAD_LEN]);
        out[..RMPP_AT].copy_from_slice(&mad[..RMPP_AT]);
        header.emit(&mut out[RMPP_AT..]);
        out
    }

    fn ack(&self, mad: &Mad) -> Box<Mad> {
        let last = self.next - 1;
        let header = RmppHeader {
            version: 1,
            rmpp_type: rmpp::ACK,
            active: true,
            data1: last,
            data2: last + WINDOW,
            ..RmppHeader::default()
        };
        self.answer(mad, &header)
    }

    fn abort(&self, mad: &Mad) -> Box<Mad> {
        let header = RmppHeader {
            version: 1,
            rmpp_type: rmpp::ABORT,
            active: true,
            status: STATUS_RESOURCES,
            ..RmppHeader::default()
        };
        self.answer(mad, &header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Subnet administration: 56 bytes before the data, 20 of them the class's (IBTA §15.2.1.1).
    fn receiver(limit: usize) -> Receiver {
        Receiver::new(56, 20, limit)
    }

    fn segment(number: u32, last: bool, len: u32, fill: u8) -> Mad {
        let mut mad = [fill; MAD_LEN];
        let header = RmppHeader {
            version: 1,
            rmpp_type: rmpp::DATA,
            active: true,
            first: number == 1,
            last,
            data1: number,
            data2: len,
            ..RmppHeader::default()
        };
        header.emit(&mut mad[24..]);
        mad
    }

    fn acked(answer: &Mad) -> (u8, u32, u32) {
        let header = RmppHeader::parse(&answer[24..]).unwrap();
        (header.rmpp_type, header.data1, header.data2)
    }

    #[test]
    fn segments_are_put_together_and_acknowledged() {
        let mut receiver = receiver(1000);
        let Step::Answer(ack) = receiver.handle(&segment(1, false, 0, 1)) else { panic!("an ACK opens") };
        assert_eq!(acked(&ack), (rmpp::ACK, 1, 65));
        assert_eq!(receiver.handle(&segment(2, false, 0, 2)), Step::Wait);
        // Too early, then again: the acknowledgement says what is there.
        let Step::Answer(ack) = receiver.handle(&segment(4, true, 30, 4)) else { panic!("told again") };
        assert_eq!(acked(&ack), (rmpp::ACK, 2, 66));
        let Step::Done(ack, data) = receiver.handle(&segment(3, true, 30, 3)) else { panic!("the end") };
        assert_eq!(acked(&ack), (rmpp::ACK, 3, 67));
        let expected: Vec<u8> = [[1; 200], [2; 200]].concat().into_iter().chain([3; 10]).collect();
        assert_eq!(data, expected);
    }

    #[test]
    fn a_sender_that_sends_too_much_is_told_to_stop() {
        let mut receiver = receiver(300);
        receiver.handle(&segment(1, false, 0, 1));
        let Step::Failed(Some(abort)) = receiver.handle(&segment(2, false, 0, 2)) else { panic!("too much") };
        assert_eq!(acked(&abort).0, rmpp::ABORT);
    }

    #[test]
    fn lengths_and_types_of_a_hostile_sender() {
        for len in [0, 19, 20, 220, 221, u32::MAX] {
            let Step::Done(_, data) = receiver(1000).handle(&segment(1, true, len, 9)) else {
                panic!("{len}")
            };
            assert_eq!(data.len(), (len as usize).saturating_sub(20).min(200));
        }
        let mut stop = segment(1, false, 0, 0);
        stop[25] = rmpp::STOP;
        assert_eq!(receiver(10).handle(&stop), Step::Failed(None));
        stop[25] = 77;
        assert_eq!(receiver(10).handle(&stop), Step::Wait);
        let mut plain = [5; MAD_LEN];
        plain[26] = 0;
        assert_eq!(receiver(199).handle(&plain), Step::Failed(None));
        let Step::Done(_, data) = receiver(200).handle(&plain) else { panic!("one segment") };
        assert_eq!(data, [5; 200]);
    }
}
