//! PERSISTENT RESERVE IN: its four service actions. SPC-4 §6.15.
//!
//! Each gives the whole parameter data; cutting it at the allocation length is the caller's, which leaves the length
//! fields as they are (§4.2.5.6).

use super::{ReservationType, Reservations};
use crate::bytes::put;
use crate::sense::Sense;

const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;
const REPORT_CAPABILITIES: u8 = 2;
const READ_FULL_STATUS: u8 = 3;

/// Compatible reservation handling, specify initiator ports.
const CRH_AND_SIP: u8 = 0x18;
/// Persist through power loss is possible.
const PTPL_C: u8 = 0x01;
/// The type mask is valid.
const TMV: u8 = 0x80;

impl Reservations {
    /// The parameter data of a service action; `persistent` says whether APTPL can be kept.
    pub(crate) fn report(&self, action: u8, persistent: bool) -> Result<Vec<u8>, Sense> {
        match action {
            READ_KEYS => Ok(self.read_keys()),
            READ_RESERVATION => Ok(self.read_reservation()),
            REPORT_CAPABILITIES => Ok(self.report_capabilities(persistent)),
            READ_FULL_STATUS => Ok(self.read_full_status()),
            _ => Err(Sense::cdb_bit(1, 4)),
        }
    }

    /// PRGENERATION, the length of what follows, and it.
    fn with_header(&self, body: &[u8]) -> Vec<u8> {
        let mut data = self.generation.to_be_bytes().to_vec();
        data.extend_from_slice(&(body.len() as u32).to_be_bytes());
        data.extend_from_slice(body);
        data
    }

    fn read_keys(&self) -> Vec<u8> {
        let keys: Vec<u8> = self.registrations.iter().flat_map(|entry| entry.key.to_be_bytes()).collect();
        self.with_header(&keys)
    }

    fn read_reservation(&self) -> Vec<u8> {
        let Some(held) = &self.held else { return self.with_header(&[]) };
        let mut body = [0; 16];
        let holder = self.registration(&held.holder);
        // §6.15.3.2: with an all-registrants type there is no one holder, and the key is 0.
        let key = holder.filter(|_| !held.kind.all_registrants()).map_or(0, |holder| holder.key);
        put(&mut body, 0, key.to_be_bytes());
        body[13] = held.kind.code();
        self.with_header(&body)
    }

    fn report_capabilities(&self, persistent: bool) -> Vec<u8> {
        let mut data = vec![0; 8];
        put(&mut data, 0, 8u16.to_be_bytes());
        data[2] = CRH_AND_SIP | if persistent { PTPL_C } else { 0 };
        data[3] = TMV | u8::from(self.aptpl);
        // Bit n of the mask's first byte is type n; type 8 is bit 0 of the second (table 215).
        for kind in ReservationType::ALL {
            data[4 + usize::from(kind.code() / 8)] |= 1 << (kind.code() % 8);
        }
        data
    }

    fn read_full_status(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for registration in &self.registrations {
            let id = registration.nexus.initiator.as_bytes();
            let mut head = [0; 24];
            put(&mut head, 0, registration.key.to_be_bytes());
            if let Some(held) = self.held.as_ref().filter(|_| self.holds(&registration.nexus)) {
                put(&mut head, 12, [1, held.kind.code()]);
            }
            put(&mut head, 18, registration.nexus.port.to_be_bytes());
            put(&mut head, 20, (id.len() as u32).to_be_bytes());
            body.extend_from_slice(&head);
            body.extend_from_slice(id);
        }
        self.with_header(&body)
    }
}
