//! What an initiator stands on over all its logins: device, memory, options; and how it logs in and sends.
//!
//! Buffers are described as the options say: in one piece, or in many, whose table the target fetches if a command has no room for it.

use std::rc::Rc;

use everywire_verbs::rt::{Notify, Rt};
use everywire_verbs::{Access, Device, MemoryRegion, Pd};

use super::{IoData, TagCell};
use crate::initiator::{Data, Request};
use crate::iu::{Descriptor, MultiChannel};
use crate::rdma::initiator::InitiatorOptions;
use crate::rdma::initiator::channel::{Answer, Channel, Open};
use crate::rdma::initiator::error::{SrpError, SrpErrorKind, Who};

pub(super) struct Environment {
    pub(super) rt: Rt,
    pub(super) device: Device,
    pub(super) pd: Pd,
    pub(super) options: InitiatorOptions,
    pub(super) who: Who,
}

impl Environment {
    pub(super) async fn login(&self, trouble: &Notify) -> Result<Vec<Rc<Channel>>, SrpError> {
        let mut channels = Vec::new();
        for number in 0..self.options.channels.max(1) {
            // The first one takes the place of what is left from before.
            let multi = if number == 0 { MultiChannel::Single } else { MultiChannel::Multi };
            let open = Open {
                rt: &self.rt,
                device: &self.device,
                pd: &self.pd,
                who: &self.who,
                options: &self.options,
                multi,
                trouble,
            };
            match Channel::open(open).await {
                Ok(channel) => channels.push(channel),
                Err(error) => {
                    let lost = || SrpErrorKind::Lost(error.to_string());
                    channels.iter().for_each(|channel: &Rc<Channel>| channel.fail(lost()));
                    return Err(error);
                }
            }
        }
        Ok(channels)
    }

    pub(super) async fn send(
        &self,
        channel: &Rc<Channel>,
        lun: u64,
        cdb: &[u8],
        data: IoData<'_>,
        tag: &TagCell,
    ) -> Result<Answer, SrpErrorKind> {
        let request = Request { lun, cdb, attribute: 0, data: Data::None, table: None };
        let (region, at, len, out) = match data {
            IoData::None => return channel.command(&request, None, Vec::new(), tag).await,
            IoData::Out { region, at, len } => (region, at, len, true),
            IoData::In { region, at, len } => (region, at, len, false),
        };
        let mut regions = vec![region.clone()];
        if out && len > 0 && len as usize <= channel.immediate() {
            let request = Request { data: Data::Immediate(len), ..request };
            return channel.command(&request, Some((region, at)), regions, tag).await;
        }
        let descriptors = self.describe(region, at, len);
        let mut table = None;
        if descriptors.len() > channel.inline_descriptors(cdb.len()) {
            let bytes = descriptors.iter().flat_map(|descriptor| descriptor.to_bytes()).collect();
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let memory = self.pd.register_vec(bytes, access)?;
            table = Some((memory.addr(), memory.rkey().0));
            regions.push(memory);
        }
        let data = if out { Data::Out(&descriptors) } else { Data::In(&descriptors) };
        channel.command(&Request { data, table, ..request }, None, regions, tag).await
    }

    fn describe(&self, region: &MemoryRegion, at: usize, len: u32) -> Vec<Descriptor> {
        let segment = self.options.segment.unwrap_or(len).max(1);
        let count = len.div_ceil(segment).max(1);
        let one = |i: u32| {
            let offset = i * segment;
            let remote = region.remote(at + offset as usize);
            Descriptor { addr: remote.addr, key: remote.rkey.0, len: segment.min(len - offset) }
        };
        (0..count).map(one).collect()
    }
}
