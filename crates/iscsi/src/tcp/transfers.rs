//! The initiator's datamover on a byte stream: immediate and unsolicited data, answers to R2T, Data-In.
//!
//! Read RFC 7143 §4.2.5.2, §11.7, §11.8, §13.10–§13.14. What a target asks for or sends outside a command's data ends the
//! session: nothing is read or written outside the buffers that the command was given.

use std::collections::HashMap;

use bytes::Bytes;

use super::Outbox;
use crate::keys::Params;
use crate::pdu::{DataIn, DataOut, FINAL, Header, NO_TAG, Pdu, R2t};
use crate::session::initiator::Session;

#[derive(Debug)]
struct Transfer {
    lun: u64,
    out: Bytes,
    into: Vec<u8>,
    want: usize,
    r2ts: u32,
    data_sn: u32,
}

/// Data of the commands of one connection, by tag.
#[derive(Debug, Default)]
pub(super) struct Transfers(HashMap<u32, Transfer>);

impl Transfers {
    /// A command that will start: its data.
    pub(super) fn add(&mut self, itt: u32, lun: u64, out: Bytes, want: usize) {
        let into = Vec::with_capacity(want);
        self.0.insert(itt, Transfer { lun, out, into, want, r2ts: 0, data_sn: 0 });
    }

    /// What came for a command that has ended.
    pub(super) fn take(&mut self, itt: u32) -> Vec<u8> {
        self.0.remove(&itt).map(|transfer| transfer.into).unwrap_or_default()
    }

    /// Sends a command with the data that may go unasked (RFC 7143 §13.10, §13.11).
    pub(super) fn start(&self, session: &Session, itt: u32, mut pdu: Pdu, out: &mut Outbox) {
        let params = session.params();
        let Some(transfer) = self.0.get(&itt) else { return out.push(&pdu) };
        let first = transfer.out.len().min(params.first_burst as usize);
        let immediate = if params.immediate_data { first.min(params.max_send) } else { 0 };
        let unsolicited = if params.initial_r2t { immediate } else { first };
        pdu.data = transfer.out.slice(..immediate);
        if unsolicited > immediate
            && let Header::ScsiCommand(header) = &mut pdu.header
        {
            header.flags &= !FINAL;
        }
        out.push(&pdu);
        transfer.send(session, itt, NO_TAG, immediate, unsolicited, out);
    }

    /// The target asks for data.
    pub(super) fn r2t(&mut self, session: &Session, header: &R2t, out: &mut Outbox) -> Result<(), String> {
        // A command that has ended here: the target will hear of it otherwise.
        let Some(transfer) = self.0.get_mut(&header.itt) else { return Ok(()) };
        let (from, length) = (header.offset as usize, header.length as usize);
        let fits = from.checked_add(length).is_some_and(|end| end <= transfer.out.len());
        if length == 0 || !fits || header.r2t_sn != transfer.r2ts {
            return Err(format!(
                "R2T {} for bytes {from} and {length} more of {}, after {} R2Ts (RFC 7143 §11.8)",
                header.r2t_sn,
                transfer.out.len(),
                transfer.r2ts
            ));
        }
        transfer.r2ts += 1;
        transfer.send(session, header.itt, header.ttt, from, from + length, out);
        Ok(())
    }

    /// Data came.
    pub(super) fn data_in(&mut self, params: &Params, header: &DataIn, data: &[u8]) -> Result<(), String> {
        let Some(transfer) = self.0.get_mut(&header.itt) else { return Ok(()) };
        let at = header.offset as usize;
        let in_place = at == transfer.into.len() && header.data_sn == transfer.data_sn;
        if !in_place || at + data.len() > transfer.want || data.len() > params.max_recv {
            return Err(format!(
                "Data-In {} of {} bytes at {at}, where {} of {} bytes were there (RFC 7143 §11.7)",
                header.data_sn,
                data.len(),
                transfer.into.len(),
                transfer.want
            ));
        }
        transfer.data_sn += 1;
        transfer.into.extend_from_slice(data);
        Ok(())
    }
}

impl Transfer {
    /// Sends bytes `from..to` in PDUs that the target takes.
    fn send(&self, session: &Session, itt: u32, ttt: u32, from: usize, to: usize, out: &mut Outbox) {
        let (mut at, mut data_sn) = (from, 0);
        while at < to {
            let end = to.min(at + session.params().max_send);
            let header = DataOut {
                flags: if end == to { FINAL } else { 0 },
                lun: if ttt == NO_TAG { 0 } else { self.lun },
                itt,
                ttt,
                exp_stat_sn: session.exp_stat_sn(),
                data_sn,
                offset: at as u32,
            };
            out.push(&Pdu::with_data(header, self.out.slice(at..end)));
            (at, data_sn) = (end, data_sn + 1);
        }
    }
}
