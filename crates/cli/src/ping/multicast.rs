//! `everywire ping --multicast GROUP`: who is a member of a group, and how far away.
//!
//! The side that asks sends datagrams to the group without being a member; every `--listen`ing member answers each of them to
//! its sender. A datagram begins with 12 bytes: "ewmc", a word that is 0 for a question and 1 for an answer, and its number,
//! big-endian. The way back is read from the 40 bytes before the question (IBTA §11.4.1.2), which every datagram to a group has. An
//! answer within an InfiniBand subnet has none there, so the member's GID follows in it, 16 bytes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use everywire_net::{Host, TokioRt};
use everywire_verbs::rt::{Either, select};
use everywire_verbs::{
    Access, AhAttr, Completion, Cq, Gid, MemoryRegion, Multicast, MulticastOptions, Pd, Qp, QpCaps, RecvWr,
    SendOp, SendWr, UdDest,
};
use serde_json::json;

use super::{Args, check};
use crate::error::{self, CliError, print};
use crate::perf::datagram::{GRH_BYTES, QKEY, queue_pair};
use crate::serve::Signals;
use crate::words::count;

/// Bytes that a datagram begins with, all of a question.
const HEAD: usize = 12;
/// Bytes of an answer.
const ANSWER: usize = HEAD + 16;
/// What a datagram begins with.
const MAGIC: [u8; 4] = *b"ewmc";
/// Receives that are posted.
const RECEIVES: usize = 64;
/// Bytes of a receive.
const SLOT: usize = GRH_BYTES + ANSWER;
/// Receives have this bit in their tokens.
const RECEIVE: u64 = 1 << 32;
/// How long answers to the last question are waited for.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// A question or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Message {
    /// Who answers; `None` for a question.
    member: Option<Gid>,
    number: u32,
}

impl Message {
    fn emit(self) -> Vec<u8> {
        let word = u32::from(self.member.is_some());
        let mut out = [MAGIC, word.to_be_bytes(), self.number.to_be_bytes()].concat();
        out.extend(self.member.iter().flat_map(|gid| gid.0));
        out
    }

    fn parse(bytes: &[u8]) -> Option<Message> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let member = match head[4..8] {
            [0, 0, 0, 0] if rest.is_empty() => None,
            [0, 0, 0, 1] => Some(Gid(rest.try_into().ok()?)),
            _ => return None,
        };
        let number = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        (head[..4] == MAGIC).then_some(Message { member, number })
    }
}

/// Asks the group, or answers as a member of it.
pub fn run(args: &Args, group: IpAddr) -> Result<(), CliError> {
    if !group.is_multicast() {
        return Err(CliError::usage(format_args!("{group} is not a multicast address")));
    }
    let host = match args.listen {
        true => args.device.open_to_serve()?,
        false => args.device.open_toward(SocketAddr::new(group, 0))?,
    };
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    host.run(&runtime).map_err(CliError::failed)?;
    runtime.block_on(async {
        let mut end = End::new(&host, group)?;
        let how = if args.listen { MulticastOptions::new(group) } else { MulticastOptions::send_only(group) };
        let member = end.qp.join_multicast(&end.pd, how).await.map_err(error::verbs)?;
        eprintln!("ping: {} {}", if args.listen { "member of" } else { "asking" }, about(&member));
        if !args.listen {
            return ask(args, &runtime, &mut end, &member).await;
        }
        let mut signals = Signals::new()?;
        match select(end.answer(), signals.next()).await {
            Either::First(ended) => ended,
            Either::Second(name) => {
                eprintln!("ping: stopped by {name}");
                Ok(())
            }
        }
    })
}

/// The group in all its names.
fn about(member: &Multicast) -> String {
    let (mgid, mlid, qkey) = (member.mgid(), member.mlid().0, member.qkey().0);
    let lid = if mlid == 0 { String::new() } else { format!(", LID {mlid:#06x}") };
    format!("{}: MGID {mgid}{lid}, Q_Key {qkey:#010x}, MTU {}", member.group(), member.mtu().bytes())
}

async fn ask(args: &Args, runtime: &TokioRt, end: &mut End, member: &Multicast) -> Result<(), CliError> {
    let rt = runtime.handle();
    let (mut members, mut answers) = (BTreeSet::new(), 0);
    for number in 0..args.count {
        let start = Instant::now();
        end.send(member.dest(), Message { member: None, number })?;
        let last = number + 1 == args.count;
        let pause = if last { LAST_WAIT } else { Duration::from_millis(args.interval) };
        let over = rt.sleep(pause);
        let mut over = std::pin::pin!(over);
        loop {
            let heard = match select(end.next(), &mut over).await {
                Either::First(heard) => heard?,
                Either::Second(()) => break,
            };
            let Some((from, message)) = heard.filter(|(_, message)| message.member.is_some()) else {
                continue;
            };
            members.insert(from.ip);
            answers += 1;
            if !args.json {
                let us = start.elapsed().as_nanos() as f64 / 1e3;
                print(format_args!("answer of {}: turn={} time={us:.1} us", from.ip, message.number))?;
            }
        }
    }
    let members: Vec<String> = members.iter().map(IpAddr::to_string).collect();
    if args.json {
        print(json!({
            "group": member.group().to_string(), "mgid": member.mgid().to_string(), "mlid": member.mlid().0,
            "sent": args.count, "answers": answers, "members": members,
        }))?;
    } else {
        let (questions, answers) =
            (count(args.count as usize, "question", "s"), count(answers, "answer", "s"));
        print(format_args!("{questions}, {answers} of {}", count(members.len(), "member", "s")))?;
    }
    if members.is_empty() {
        return Err(CliError::peer(format_args!("nobody in {} has answered", member.group())));
    }
    Ok(())
}

/// Where a datagram came from.
#[derive(Debug, Clone, Copy)]
struct From {
    ip: IpAddr,
    wc: Completion,
}

/// A datagram queue pair with its receives.
struct End {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    slots: MemoryRegion,
    scope_id: u32,
    /// What it is called in answers.
    own: Gid,
    who: String,
    ready: Vec<Completion>,
}

impl End {
    fn new(host: &Host, group: IpAddr) -> Result<End, CliError> {
        let device = host.device();
        let pd = device.alloc_pd().map_err(CliError::failed)?;
        let cq = device.create_cq(4 * RECEIVES as u32).map_err(CliError::failed)?;
        let wrs = RECEIVES as u32;
        let caps = QpCaps { max_send_wr: wrs, max_recv_wr: wrs, ..QpCaps::default() };
        let qp = queue_pair(&pd, &cq, caps).map_err(error::verbs)?;
        let slots = pd.register(RECEIVES * SLOT, Access::LOCAL_WRITE).map_err(CliError::failed)?;
        let scope_id = device.gids().first().map_or(0, |gid| gid.scope_id);
        let own = device.gids().first().map(|gid| Gid::from(gid.ip)).unwrap_or_default();
        let who = format!("ping {group}");
        let end = End { pd, cq, qp, slots, scope_id, own, who, ready: Vec::new() };
        (0..RECEIVES as u64).try_for_each(|slot| end.post(RECEIVE | slot))?;
        Ok(end)
    }

    fn post(&self, token: u64) -> Result<(), CliError> {
        let at = (token & !RECEIVE) as usize * SLOT;
        let wr = RecvWr::new(token, [self.slots.sge(at..at + SLOT)]);
        self.qp.post_recv(wr).map_err(|e| CliError::failed(format_args!("{}: post receive: {e}", self.who)))
    }

    fn send(&self, to: UdDest, message: Message) -> Result<(), CliError> {
        let wr = SendWr::new(0, SendOp::Send).with_inline(message.emit());
        let posted = self.qp.post_send(SendWr { ud: Some(to), ..wr });
        posted.map_err(|e| CliError::failed(format_args!("{}: post SEND: {e}", self.who)))
    }

    /// The next datagram; `None` for a completion of something else, or a datagram of somebody else's.
    async fn next(&mut self) -> Result<Option<(From, Message)>, CliError> {
        if self.ready.is_empty() {
            self.cq.wait(&mut self.ready, RECEIVES).await.map_err(CliError::failed)?;
        }
        let Some(wc) = self.ready.pop() else { return Ok(None) };
        let what = if wc.wr_id & RECEIVE == 0 { "SEND" } else { "RECV" };
        check(&self.who, what, &wc)?;
        if wc.wr_id & RECEIVE == 0 {
            return Ok(None);
        }
        let at = (wc.wr_id & !RECEIVE) as usize * SLOT;
        let bytes = self.slots.read_vec(at, (wc.byte_len as usize).min(SLOT)).map_err(CliError::failed)?;
        self.post(wc.wr_id)?;
        let Some((grh, text)) = bytes.split_first_chunk::<GRH_BYTES>() else { return Ok(None) };
        let Some(message) = Message::parse(text) else { return Ok(None) };
        let ip = if wc.grh { Some(source(grh)) } else { message.member.map(Gid::to_ip) };
        Ok(ip.map(|ip| (From { ip, wc }, message)))
    }

    /// Answers every question, for ever.
    async fn answer(&mut self) -> Result<(), CliError> {
        loop {
            let Some((from, question)) = self.next().await?.filter(|(_, message)| message.member.is_none())
            else {
                continue;
            };
            let link_local = matches!(from.ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            let scope_id = if link_local { self.scope_id } else { 0 };
            let ah = self.pd.create_ah(AhAttr { scope_id, ..AhAttr::new(from.ip) }).await;
            match ah {
                Ok(ah) => {
                    self.send(ah.dest(from.wc.src_qp, QKEY), Message { member: Some(self.own), ..question })?;
                    print(format_args!("question {} of {}", question.number, from.ip))?;
                }
                // Whoever cannot be answered must not end the service for the others.
                Err(e) => eprintln!("everywire: {e}"),
            }
        }
    }
}

/// The sender in the 40 bytes before a datagram: a GRH or an IPv6 header, or an IPv4 header in the last 20 (annex A17.4.5.2).
fn source(grh: &[u8; GRH_BYTES]) -> IpAddr {
    if grh[0] >> 4 == 6 {
        let mut gid = [0; 16];
        gid.copy_from_slice(&grh[8..24]);
        return Gid(gid).to_ip();
    }
    IpAddr::from([grh[32], grh[33], grh[34], grh[35]])
}

#[cfg(test)]
mod tests {
    use super::*;

    everywire_fuzz::target!(
        multicast_ping,
        [
            Message { member: None, number: 7 }.emit(),
            Message { member: Some(Gid([9; 16])), number: 7 }.emit()
        ],
        |bytes| {
            if let Some(message) = Message::parse(bytes) {
                assert_eq!(message.emit(), *bytes);
            }
        }
    );
}
