//! Logins: which target port, which channels of an I_T nexus there are, what is granted. SRP r16a §5.3, §6.4–§6.6.
//!
//! A login that is refused gets SRP_LOGIN_REJ with a reason, and its words go into the log with the limit that was hit.
//! MULTI-CHANNEL ACTION decides about the channels that the nexus has already.

use std::collections::BTreeMap;

use crate::PortId;
use crate::iu::{
    BufferFormats, IuError, LoginReject, LoginRequest, LoginResponse, MIN_IU_LEN, MultiChannel,
    MultiChannelResult, RejectReason,
};

/// Longest information unit that a channel may ask for by default: 8 KiB of immediate data behind Linux's offset.
pub const MAX_IT_IU_LEN: u32 = 8260;
/// Shortest room for information units to the initiator: a response with response and sense data.
const MIN_TI_IU_LEN: u32 = 36 + 4 + 252;

/// What channels are granted.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Requests that an initiator may have outstanding on a channel.
    pub request_limit: u16,
    /// Longest information unit taken, in bytes.
    pub max_it_iu_len: u32,
    /// Channels of one I_T nexus.
    pub channels_per_nexus: usize,
    /// Channels in all.
    pub channels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request_limit: 128, max_it_iu_len: MAX_IT_IU_LEN, channels_per_nexus: 64, channels: 1024 }
    }
}

/// A target port, and who may log in to it.
#[derive(Debug, Clone)]
pub struct TargetPort {
    /// Its name for people.
    pub name: String,
    /// Its identifier.
    pub id: PortId,
    /// Initiator ports that may; all if `None`.
    pub initiators: Option<Vec<PortId>>,
}

/// Names a channel among those of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

/// A login that may go on.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// The channel, from now on among the nexus's.
    pub channel: ChannelId,
    /// Which of the target ports.
    pub port: usize,
    /// What to answer.
    pub response: LoginResponse,
    /// Where immediate data begin, if they were agreed.
    pub immediate_offset: Option<u16>,
    /// Channels that end for it.
    pub ends: Vec<ChannelId>,
}

/// A login that may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What to answer.
    pub reject: LoginReject,
    /// What the log says: the reason, and the limit that was hit.
    pub why: String,
}

struct Entry {
    initiator: PortId,
    port: usize,
}

/// Target ports, and the channels that lead to them.
#[derive(Default)]
pub struct Gate {
    limits: Limits,
    ports: Vec<TargetPort>,
    channels: BTreeMap<ChannelId, Entry>,
    last: u64,
}

impl Gate {
    /// Without ports.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Adds a target port; false if its identifier is taken.
    pub fn add(&mut self, port: TargetPort) -> bool {
        let free = self.ports.iter().all(|other| other.id != port.id);
        if free {
            self.ports.push(port);
        }
        free
    }

    /// The target ports.
    pub fn ports(&self) -> &[TargetPort] {
        &self.ports
    }

    /// What channels are granted.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Channels that are open.
    pub fn len(&self) -> usize {
        self.channels.len()
    }

    /// Whether no channel is open.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// A channel has ended.
    pub fn remove(&mut self, channel: ChannelId) {
        self.channels.remove(&channel);
    }

    /// The refusal of bytes that are no login request.
    pub fn malformed(error: &IuError) -> Refusal {
        refusal(0, RejectReason::UNABLE_TO_ESTABLISH, error.to_string())
    }

    /// Judges a login request.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn login(&mut self, request: &LoginRequest) -> Result<Accepted, Refusal> {
        let refuse = |reason, why| Err(refusal(request.tag, reason, why));
        let port = self.judge(request)?;
        let same = |entry: &&Entry| entry.initiator == request.initiator && entry.port == port;
        let siblings: Vec<ChannelId> =
            self.channels.iter().filter(|(_, entry)| same(entry)).map(|(&id, _)| id).collect();
        let (result, ends) = match request.multi_channel {
            _ if siblings.is_empty() => (MultiChannelResult::None, siblings),
            MultiChannel::Single => (MultiChannelResult::Terminated, siblings),
            MultiChannel::Multi if siblings.len() >= self.limits.channels_per_nexus => {
                let why = format!("{} channels of this nexus are open", siblings.len());
                return refuse(RejectReason::CHANNEL_LIMIT, why);
            }
            _ => (MultiChannelResult::Maintained, Vec::new()),
        };
        if self.channels.len() - ends.len() >= self.limits.channels {
            let why = format!("{} channels are open", self.channels.len());
            return refuse(RejectReason::INSUFFICIENT_RESOURCES, why);
        }
        self.channels.retain(|id, _| !ends.contains(id));
        self.last += 1;
        let channel = ChannelId(self.last);
        self.channels.insert(channel, Entry { initiator: request.initiator, port });
        let offset = request.immediate_offset.filter(|&at| u32::from(at) < request.it_iu_len);
        let response = LoginResponse {
            tag: request.tag,
            request_limit_delta: self.limits.request_limit.into(),
            max_it_iu_len: request.it_iu_len,
            max_ti_iu_len: request.it_iu_len.max(MIN_TI_IU_LEN),
            formats: BufferFormats::OURS,
            multi_channel: result,
            immediate: offset.is_some(),
        };
        Ok(Accepted { channel, port, response, immediate_offset: offset, ends })
    }

    /// Which port is meant, and whether this initiator may have a channel of this kind to it.
    fn judge(&self, request: &LoginRequest) -> Result<usize, Refusal> {
        let refuse = |reason, why| Err(refusal(request.tag, reason, why));
        let longest = self.limits.max_it_iu_len;
        if !(MIN_IU_LEN..=longest).contains(&request.it_iu_len) {
            let why = format!("{} bytes are asked for, {MIN_IU_LEN} to {longest} can be", request.it_iu_len);
            return refuse(RejectReason::IU_LENGTH_TOO_LARGE, why);
        }
        if !request.formats.within(BufferFormats::OURS) {
            let why = format!("{:?} are asked for", request.formats);
            return refuse(RejectReason::UNSUPPORTED_FORMAT, why);
        }
        if let MultiChannel::Reserved(code) = request.multi_channel {
            return refuse(RejectReason::MULTI_CHANNEL_UNSUPPORTED, format!("multi-channel action {code}"));
        }
        let Some(at) = self.ports.iter().position(|port| port.id == request.target) else {
            let why = format!("no target port {} is here", request.target);
            return refuse(RejectReason::UNABLE_TO_ASSOCIATE, why);
        };
        let port = &self.ports[at];
        if port.initiators.as_ref().is_some_and(|may| !may.contains(&request.initiator)) {
            let why = format!("{} is none of the initiators that {} admits", request.initiator, port.name);
            return refuse(RejectReason::UNABLE_TO_ASSOCIATE, why);
        }
        Ok(at)
    }
}

fn refusal(tag: u64, reason: RejectReason, why: String) -> Refusal {
    let reject = LoginReject { tag, reason, formats: BufferFormats::OURS };
    Refusal { reject, why: format!("{reason}: {why}") }
}

#[cfg(test)]
mod tests;
