//! Many messages in flight: keeps every connection's window full until the time is over, then lets it drain.

use std::collections::VecDeque;
use std::time::Instant;

use everywire_verbs::{Completion, SendOp, SendWr, WcStatus};

use super::client::Link;
use super::report::Measured;
use super::{Operation, Plan};
use crate::error::CliError;
use crate::samples::Samples;

/// Completions taken in one poll.
const BATCH: usize = 64;

/// One connection's messages in flight, oldest first.
struct Window {
    posted: VecDeque<Instant>,
    next_slot: usize,
}

/// Runs the plan on links that share one completion queue.
pub fn run(links: &[Link], plan: &Plan) -> Result<Measured, CliError> {
    let mut windows: Vec<Window> = links
        .iter()
        .map(|_| Window { posted: VecDeque::with_capacity(plan.depth as usize), next_slot: 0 })
        .collect();
    let mut samples = Samples::new();
    let mut done = Vec::with_capacity(BATCH);
    let mut messages = 0;
    let start = Instant::now();
    let deadline = start + plan.duration;
    let mut now = start;
    loop {
        if now < deadline {
            for (link, window) in links.iter().zip(&mut windows) {
                refill(link, window, plan, now)?;
            }
        }
        if windows.iter().all(|w| w.posted.is_empty()) {
            break;
        }
        done.clear();
        links[0].cq.poll(&mut done, BATCH).map_err(CliError::failed)?;
        now = Instant::now();
        for completion in &done {
            let window =
                windows.get_mut(completion.wr_id as usize).ok_or_else(|| CliError::failed("unknown WR"))?;
            take(&links[completion.wr_id as usize], window, completion, now, &mut samples)?;
            messages += 1;
        }
    }
    Ok(Measured::new(messages, plan.size, start.elapsed(), &samples))
}

/// Posts what the window has room for, in one list.
fn refill(link: &Link, window: &mut Window, plan: &Plan, now: Instant) -> Result<(), CliError> {
    let room = plan.depth as usize - window.posted.len();
    // Half a window at a time: fewer, longer lists.
    if room == 0 || (room < plan.depth as usize / 2 && !window.posted.is_empty()) {
        return Ok(());
    }
    let list = (0..room).map(|_| {
        window.next_slot = (window.next_slot + 1) % link.slots;
        request(link, plan, window.next_slot)
    });
    let list: Vec<SendWr> = list.collect();
    window.posted.extend(std::iter::repeat_n(now, room));
    link.qp.post_send_list(list).map_err(|e| CliError::failed(format_args!("{}: {e}", link.who)))
}

/// One message from or into slot `slot`.
fn request(link: &Link, plan: &Plan, slot: usize) -> SendWr {
    let size = plan.size as usize;
    let at = slot * link.slot_bytes;
    let remote = link.remote_slot(slot);
    let op = match plan.operation {
        Operation::Write => SendOp::Write { remote },
        Operation::Read => SendOp::Read { remote },
        Operation::Send => SendOp::Send,
        Operation::Atomic => SendOp::FetchAdd { remote, add: 1 },
    };
    let mut wr = SendWr::new(link.index, op).with_sges([link.buffer.sge(at..at + size)]);
    wr.ud = link.ud;
    wr
}

fn take(
    link: &Link,
    window: &mut Window,
    done: &Completion,
    now: Instant,
    samples: &mut Samples,
) -> Result<(), CliError> {
    if done.status != WcStatus::Success {
        let silent = window.posted.front().map(|posted| now - *posted);
        return Err(CliError::peer(format_args!("{}: {}", link.who, link.ended(done.status, silent))));
    }
    let posted = window.posted.pop_front().ok_or_else(|| CliError::failed("a completion too many"))?;
    samples.record(now - posted);
    Ok(())
}
