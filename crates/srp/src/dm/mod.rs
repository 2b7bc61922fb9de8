//! The device-management class: how hosts on InfiniBand find SRP targets. IBTA vol. 1 §16.3 and annex A1; SRP r16a annex B.
//!
//! A port's agent answers for one I/O unit with one controller, whose service entries name the target ports: the name is
//! `SRP.T10:` and the identifier extension, the service is where logins go. [`Agent`] is what ibsrpdm asks, [`find`] what
//! asks as ibsrpdm does. MADs may be lost: a question is asked again.
//! What this does not do: tell the subnet administrator that the port has device management (PortInfo's capability mask).

mod format;

use std::net::IpAddr;
use std::time::Duration;

use everywire_verbs::rt::Rt;
use everywire_verbs::{Device, MAD_LEN, MadAgent, MadPath, MadSide, VerbsError};

pub use format::{ControllerProfile, DmError, IoUnitInfo, MAX_CONTROLLERS, ServiceEntry, attribute};
use format::{Question, answer_of, parse_answer};

use crate::PortId;

/// Service entries of one datagram.
pub const ENTRIES_PER_MAD: usize = 4;
/// How often a question is asked, and how long each waits.
const TRIES: u32 = 4;
const PATIENCE: Duration = Duration::from_millis(400);

/// What an I/O unit says of itself: one controller with SRP targets.
#[derive(Debug, Clone)]
pub struct Agent {
    /// The controller.
    pub profile: ControllerProfile,
    /// Its services: one a target port.
    pub services: Vec<ServiceEntry>,
    /// Counts changes of the above.
    pub change_id: u16,
}

impl Agent {
    /// A controller of these target ports, which all have its GUID; logins to each go to its service id.
    pub fn new(guid: u64, name: &str, ports: &[(PortId, u64)]) -> Self {
        let services: Vec<_> =
            ports.iter().map(|&(id, service_id)| ServiceEntry::target(id.ext, service_id)).collect();
        Self { profile: ControllerProfile::srp(guid, name, services.len() as u8), services, change_id: 1 }
    }

    /// The answer to a datagram; `None` if it deserves none.
    pub fn answer(&self, mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
        answer_of(self, mad)
    }

    /// Answers on a device, for as long as it is polled.
    ///
    /// # Errors
    /// The class is not to be had there.
    pub async fn serve(self, device: &Device) -> Result<(), VerbsError> {
        let gsi = device.mad_agent(format::CLASS, MadSide::Agent)?;
        loop {
            let (back, mad) = gsi.recv().await;
            if let Some(answer) = self.answer(&mad) {
                gsi.send(back, &answer);
            }
        }
    }
}

/// A target port that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its identifier.
    pub id: PortId,
    /// Where logins go.
    pub service_id: u64,
    /// The controller's name for people.
    pub controller: String,
}

/// Why nothing was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The device has no such datagrams, or no way there.
    #[error("{0}")]
    Verbs(#[from] VerbsError),
    /// No answer.
    #[error(
        "{address} does not answer questions of device management ({TRIES} were asked for attribute {attribute:#06x})"
    )]
    Silent {
        /// Who.
        address: IpAddr,
        /// What was asked for.
        attribute: u16,
    },
    /// An answer that is none.
    #[error("{address}: {error}")]
    Answer {
        /// Who.
        address: IpAddr,
        /// What is wrong with it.
        error: DmError,
    },
}

struct Asking<'a> {
    rt: &'a Rt,
    gsi: MadAgent,
    to: MadPath,
    address: IpAddr,
    transaction: u64,
}

impl Asking<'_> {
    async fn get(&mut self, attribute: u16, modifier: u32) -> Result<[u8; MAD_LEN], FindError> {
        self.transaction += 1;
        let question = Question { transaction: self.transaction, attribute, modifier };
        let mad = question.emit();
        for _ in 0..TRIES {
            self.gsi.send(self.to, &mad);
            let answer = async {
                loop {
                    let (from, mad) = self.gsi.recv().await;
                    if from.remote == self.to.remote && question.is_answered_by(&mad) {
                        return mad;
                    }
                }
            };
            if let Ok(mad) = self.rt.timeout(PATIENCE, answer).await {
                let address = self.address;
                return parse_answer(&mad)
                    .map(|()| mad)
                    .map_err(|error| FindError::Answer { address, error });
            }
        }
        Err(FindError::Silent { address: self.address, attribute })
    }
}

/// Asks the I/O unit at `address` for its SRP targets, as ibsrpdm does.
///
/// # Errors
/// There is no way, no answer, or none that can be understood.
pub async fn find(rt: &Rt, device: &Device, address: IpAddr, scope_id: u32) -> Result<Vec<Found>, FindError> {
    let gsi = device.mad_agent(format::CLASS, MadSide::Manager)?;
    let to = gsi.way(address, scope_id).await?;
    let mut asking = Asking { rt, gsi, to, address, transaction: rt.entropy() >> 8 };
    let unit = IoUnitInfo::parse(&asking.get(attribute::IO_UNIT_INFO, 0).await?);
    let mut found = Vec::new();
    for slot in unit.present() {
        let profile = asking.get(attribute::CONTROLLER_PROFILE, slot.into()).await?;
        let profile = ControllerProfile::parse(&profile);
        if !profile.is_srp() {
            continue;
        }
        for first in (0..profile.services).step_by(ENTRIES_PER_MAD) {
            let last = (first + ENTRIES_PER_MAD as u8 - 1).min(profile.services - 1);
            let modifier = u32::from(slot) << 16 | u32::from(last) << 8 | u32::from(first);
            let entries = asking.get(attribute::SERVICE_ENTRIES, modifier).await?;
            for at in 0..=usize::from(last - first) {
                let entry = ServiceEntry::parse(&entries, at);
                if let Some(ext) = entry.extension() {
                    let id = PortId::new(ext, profile.guid);
                    let (service_id, controller) = (entry.service_id, profile.name.clone());
                    found.push(Found { id, service_id, controller });
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
