//! The life of one connection as a table: what every input means in every state.
//!
//! Read first: IBTA volume 1 §12.9.5–12.9.9 (state diagrams of both sides), and Linux's observable behaviour where the
//! standard leaves a choice. The table only decides; `active`, `passive` and `disconnect` perform what it says. No arm is a
//! wildcard: a new state or input does not compile until every pair is written down, and a snapshot test shows each change.
//!
//! States: `ReqSent` REQ is out · `ReqMraReceived` the peer asked for time · `ReqReceived` the program must answer ·
//! `ReqMraSent` we asked for time · `RepSent` REP is out · `RepMraReceived` the peer asked for time · `RepReceived` the
//! program must send RTU · `RepMraSent` we asked for time · `Established` · `DreqSent` DREQ is out · `Timewait` over, the
//! QPN still held.

use std::fmt;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Active side: REQ sent, no answer yet.
    ReqSent,
    /// Active side: the peer answered REQ with MRA.
    ReqMraReceived,
    /// Passive side: REQ received, the program has not answered.
    ReqReceived,
    /// Passive side: as `ReqReceived`, and MRA was sent.
    ReqMraSent,
    /// Passive side: REP sent, no RTU yet.
    RepSent,
    /// Passive side: the peer answered REP with MRA.
    RepMraReceived,
    /// Active side: REP received, the program has not sent RTU.
    RepReceived,
    /// Active side: as `RepReceived`, and MRA was sent.
    RepMraSent,
    /// Both sides may send.
    Established,
    /// DREQ sent, no DREP yet.
    DreqSent,
    /// Over; the QPN must not be used again until stray packets have died.
    Timewait,
}

/// Something that happens to a connection: a message, a call of the program, the device, or time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The connection's own REQ once more.
    DuplicateReq,
    /// MRA that answers REQ.
    MraOfReq,
    /// MRA that answers REP (or anything else).
    MraOfRep,
    /// REP.
    Rep,
    /// RTU.
    Rtu,
    /// REJ with any reason but "stale connection".
    Rej,
    /// REJ with reason 10, stale connection.
    RejStale,
    /// DREQ.
    Dreq,
    /// DREP.
    Drep,
    /// LAP, load alternate path.
    Lap,
    /// The program accepts the request.
    Accept,
    /// The program is ready: send RTU.
    Establish,
    /// The program rejects the request or the reply.
    Reject,
    /// The program asks the peer for more time.
    AskForTime,
    /// The program disconnects.
    Disconnect,
    /// The program let go of the connection and wants no more events.
    Abandon,
    /// A packet arrived on the queue pair ("communication established").
    Data,
    /// A new REQ shows that the peer's queue pair is not connected to ours any more.
    Stale,
    /// The network says that nobody is at the peer's address and port.
    Unreachable,
    /// The response timer fired and retries are left.
    Retry,
    /// The timer fired and no retries are left (or none were foreseen).
    Expire,
}

/// What to do about an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Nothing; the message is counted as unexpected.
    Ignore,
    /// Nothing; the caller gets an error that names the state.
    Refuse,
    /// Take the peer's parameters, tell the program.
    TakeReply,
    /// Wait longer before the next retransmission.
    WaitLonger,
    /// Send REP and start its retransmission.
    SendRep,
    /// Send MRA.
    SendMra,
    /// Send RTU; the connection is established.
    SendRtu,
    /// Send REJ on behalf of the program.
    SendRej,
    /// Send DREQ and start its retransmission.
    SendDreq,
    /// Send the last message once more.
    Repeat,
    /// The connection is established by the peer's RTU or data: tell the program.
    Established,
    /// The peer rejected: tell the program.
    Rejected,
    /// No answer in all the time there was: REJ "timeout" to the peer, tell the program.
    GiveUp,
    /// The program let go before there was an answer: REJ "timeout" to the peer, no event.
    Cancel,
    /// The program did not answer in time: REJ "consumer" to the peer, tell the program.
    TooLate,
    /// Nobody is there: tell the program.
    NobodyThere,
    /// Answer DREQ with DREP, tell the program.
    Disconnected,
    /// The peer confirmed our DREQ: tell the program.
    DisconnectDone,
    /// No DREP in all the time there was: tell the program.
    DisconnectTimedOut,
    /// The peer has forgotten the connection: DREQ once, tell the program.
    WentStale,
    /// The peer rejected an established connection: tell the program.
    PeerGaveUp,
    /// Answer DREQ with DREP, no event.
    AnswerDreq,
    /// Answer LAP with APR "not supported".
    AnswerLap,
    /// Answer a late REQ with REJ "stale connection".
    AnswerStale,
    /// Answer a late REP with REJ "invalid communication id".
    AnswerLateRep,
    /// The time-wait is over: tell the program, forget the connection.
    Forget,
}

/// The table's answer: what to do, and the state afterwards (`None`: the connection is gone).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub act: Act,
    /// The state after it, or `None` when the entry is deleted.
    pub next: Option<State>,
}

const fn go(act: Act, next: State) -> Step {
    Step { act, next: Some(next) }
}

const fn close(act: Act) -> Step {
    Step { act, next: None }
}

/// Looks up what `input` means in `state`.
pub const fn step(state: State, input: Input) -> Step {
    match state {
        State::ReqSent | State::ReqMraReceived => await_reply(state, input),
        State::ReqReceived | State::ReqMraSent => answer_request(state, input),
        State::RepSent | State::RepMraReceived => await_ready(state, input),
        State::RepReceived | State::RepMraSent => answer_reply(state, input),
        State::Established => established(input),
        State::DreqSent => await_drep(input),
        State::Timewait => timewait(input),
    }
}

/// Active side, REQ is out (IBTA §12.9.7.1).
const fn await_reply(state: State, input: Input) -> Step {
    use {Act as A, Input as I, State as S};
    match input {
        I::Rep => go(A::TakeReply, S::RepReceived),
        I::MraOfReq => go(A::WaitLonger, S::ReqMraReceived),
        I::Rej => close(A::Rejected),
        // The peer still knows our QPN from an earlier connection: do not reuse it at once.
        I::RejStale => go(A::Rejected, S::Timewait),
        I::Retry => go(A::Repeat, S::ReqSent),
        I::Expire => go(A::GiveUp, S::Timewait),
        I::Abandon => go(A::Cancel, S::Timewait),
        I::Unreachable => close(A::NobodyThere),
        I::Accept | I::Establish | I::Reject | I::AskForTime | I::Disconnect => go(A::Refuse, state),
        I::DuplicateReq | I::MraOfRep | I::Rtu | I::Dreq | I::Drep | I::Lap | I::Data | I::Stale => {
            go(A::Ignore, state)
        }
    }
}

/// Passive side, the program has a request to answer (IBTA §12.9.7.2).
const fn answer_request(state: State, input: Input) -> Step {
    use {Act as A, Input as I, State as S};
    match input {
        // Linux's rdma_cm does the same: the first duplicate shows that the peer's patience ends.
        I::DuplicateReq => go(A::SendMra, S::ReqMraSent),
        I::Rej | I::RejStale => close(A::Rejected),
        I::Accept => go(A::SendRep, S::RepSent),
        I::Reject => close(A::SendRej),
        I::AskForTime => go(A::SendMra, S::ReqMraSent),
        I::Abandon => close(A::SendRej),
        I::Stale => close(A::WentStale),
        I::Expire => close(A::TooLate),
        I::Establish | I::Disconnect => go(A::Refuse, state),
        I::MraOfReq
        | I::MraOfRep
        | I::Rep
        | I::Rtu
        | I::Dreq
        | I::Drep
        | I::Lap
        | I::Data
        | I::Unreachable
        | I::Retry => go(A::Ignore, state),
    }
}

/// Passive side, REP is out.
const fn await_ready(state: State, input: Input) -> Step {
    use {Act as A, Input as I, State as S};
    match input {
        I::Rtu | I::Data => go(A::Established, S::Established),
        I::MraOfRep => go(A::WaitLonger, S::RepMraReceived),
        // Our REP was lost or is under way; a second one costs nothing and saves the peer a timeout.
        I::DuplicateReq => go(A::Repeat, state),
        I::Rej | I::RejStale => go(A::Rejected, S::Timewait),
        // RTU was lost and the peer is done already.
        I::Dreq => go(A::Disconnected, S::Timewait),
        I::Retry => go(A::Repeat, S::RepSent),
        I::Expire => go(A::GiveUp, S::Timewait),
        I::Disconnect | I::Abandon => go(A::SendDreq, S::DreqSent),
        I::Stale => go(A::WentStale, S::Timewait),
        // Nothing is established yet: a client that died after its REQ need not be waited for.
        I::Unreachable => go(A::NobodyThere, S::Timewait),
        I::Accept | I::Establish | I::Reject | I::AskForTime => go(A::Refuse, state),
        I::MraOfReq | I::Rep | I::Drep | I::Lap => go(A::Ignore, state),
    }
}

/// Active side, the program has a reply to answer.
const fn answer_reply(state: State, input: Input) -> Step {
    use {Act as A, Input as I, State as S};
    match input {
        I::Establish => go(A::SendRtu, S::Established),
        I::Reject | I::Abandon => go(A::SendRej, S::Timewait),
        I::AskForTime => go(A::SendMra, S::RepMraSent),
        I::Rep => match state {
            State::RepMraSent => go(A::Repeat, state),
            _ => go(A::Ignore, state),
        },
        I::Rej | I::RejStale => go(A::Rejected, S::Timewait),
        I::Dreq => go(A::Disconnected, S::Timewait),
        I::Stale => go(A::WentStale, S::Timewait),
        I::Expire => go(A::TooLate, S::Timewait),
        I::Accept | I::Disconnect => go(A::Refuse, state),
        I::DuplicateReq
        | I::MraOfReq
        | I::MraOfRep
        | I::Rtu
        | I::Drep
        | I::Lap
        | I::Data
        | I::Unreachable
        | I::Retry => go(A::Ignore, state),
    }
}

/// Both sides may send (IBTA §12.9.8).
const fn established(input: Input) -> Step {
    use {Act as A, Input as I, State as S};
    match input {
        // A second REP means that our RTU was lost.
        I::Rep => go(A::Repeat, S::Established),
        I::Dreq => go(A::Disconnected, S::Timewait),
        I::Disconnect | I::Abandon => go(A::SendDreq, S::DreqSent),
        I::Rej | I::RejStale => go(A::PeerGaveUp, S::Timewait),
        I::Stale => go(A::WentStale, S::Timewait),
        I::Lap => go(A::AnswerLap, S::Established),
        I::Accept | I::Establish | I::Reject | I::AskForTime => go(A::Refuse, S::Established),
        // Unreachable: a neighbour that changes or a route that flaps does not end a connection; its own timers do.
        I::DuplicateReq
        | I::MraOfReq
        | I::MraOfRep
        | I::Rtu
        | I::Drep
        | I::Data
        | I::Unreachable
        | I::Retry
        | I::Expire => go(A::Ignore, S::Established),
    }
}

/// DREQ is out (IBTA §12.9.9).
const fn await_drep(input: Input) -> Step {
    use {Act as A, Input as I, State as S};
    match input {
        I::Drep => go(A::DisconnectDone, S::Timewait),
        // Both sides disconnect at once: each answers the other and is done.
        I::Dreq => go(A::Disconnected, S::Timewait),
        I::Rej | I::RejStale => go(A::PeerGaveUp, S::Timewait),
        I::Stale => go(A::WentStale, S::Timewait),
        I::Unreachable => go(A::DisconnectTimedOut, S::Timewait),
        I::Retry => go(A::Repeat, S::DreqSent),
        I::Expire => go(A::DisconnectTimedOut, S::Timewait),
        I::Accept | I::Establish | I::Reject | I::AskForTime | I::Disconnect => go(A::Refuse, S::DreqSent),
        I::DuplicateReq | I::MraOfReq | I::MraOfRep | I::Rep | I::Rtu | I::Lap | I::Abandon | I::Data => {
            go(A::Ignore, S::DreqSent)
        }
    }
}

/// The connection is over, the QPN still held (IBTA §12.9.8.4).
const fn timewait(input: Input) -> Step {
    use {Act as A, Input as I, State as S};
    match input {
        I::Dreq => go(A::AnswerDreq, S::Timewait),
        I::DuplicateReq => go(A::AnswerStale, S::Timewait),
        I::Rep => go(A::AnswerLateRep, S::Timewait),
        I::Expire => close(A::Forget),
        I::Accept | I::Establish | I::Reject | I::AskForTime | I::Disconnect => go(A::Refuse, S::Timewait),
        I::MraOfReq
        | I::MraOfRep
        | I::Rtu
        | I::Rej
        | I::RejStale
        | I::Drep
        | I::Lap
        | I::Abandon
        | I::Data
        | I::Stale
        | I::Unreachable
        | I::Retry => go(A::Ignore, S::Timewait),
    }
}

impl State {
    /// The state in the standard's words, for messages to people.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::ReqSent => "REQ Sent",
            State::ReqMraReceived => "MRA(REQ) Received",
            State::ReqReceived => "REQ Received",
            State::ReqMraSent => "MRA(REQ) Sent",
            State::RepSent => "REP Sent",
            State::RepMraReceived => "MRA(REP) Received",
            State::RepReceived => "REP Received",
            State::RepMraSent => "MRA(REP) Sent",
            State::Established => "Established",
            State::DreqSent => "DREQ Sent",
            State::Timewait => "TimeWait",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// Every state, in the order of a connection's life.
    const STATES: [State; 11] = [
        State::ReqSent,
        State::ReqMraReceived,
        State::ReqReceived,
        State::ReqMraSent,
        State::RepSent,
        State::RepMraReceived,
        State::RepReceived,
        State::RepMraSent,
        State::Established,
        State::DreqSent,
        State::Timewait,
    ];

    /// Every input: messages, calls, device, time.
    const INPUTS: [Input; 21] = [
        Input::DuplicateReq,
        Input::MraOfReq,
        Input::MraOfRep,
        Input::Rep,
        Input::Rtu,
        Input::Rej,
        Input::RejStale,
        Input::Dreq,
        Input::Drep,
        Input::Lap,
        Input::Accept,
        Input::Establish,
        Input::Reject,
        Input::AskForTime,
        Input::Disconnect,
        Input::Abandon,
        Input::Data,
        Input::Stale,
        Input::Unreachable,
        Input::Retry,
        Input::Expire,
    ];

    /// The whole table as text: a change of any pair shows in review.
    #[test]
    fn table_snapshot() {
        let mut text = String::new();
        for state in STATES {
            for input in INPUTS {
                let Step { act, next } = step(state, input);
                let next = next.map_or("(gone)", State::as_str);
                writeln!(text, "{state} + {input:?} -> {act:?}, {next}").unwrap();
            }
        }
        insta::assert_snapshot!("cm_states", text);
    }

    /// Timers are armed in every waiting state; each must lead out of it in the end.
    #[test]
    fn every_state_but_established_expires() {
        for state in STATES {
            let Step { act, next } = step(state, Input::Expire);
            if state == State::Established {
                assert_eq!(act, Act::Ignore);
            } else {
                assert_ne!(next, Some(state), "{state} would wait for ever");
            }
        }
    }
}
