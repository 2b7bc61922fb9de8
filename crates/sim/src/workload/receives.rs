//! Receives: of an end, or shared by a host.

use everywire_verbs::RecvWr;

use super::connection::{RECV_DEPTH, SEGMENTS};
use super::end::Stream;
use super::node::{SHARED_DEPTH, SHARED_RECV};
use super::rig::{RECV_BIT, Rig};
use super::slots::Layout;
use crate::checkers::Violation;
use crate::violation;

/// Bytes of receives that an end has posted, about.
const RECV_MEMORY: usize = 64 << 10;

impl Rig {
    /// Posts a receive to an end, or to the shared queue of its host; `exactly` as long as the message it is for, where that is known.
    pub fn post_recv(&mut self, index: usize, side: usize, exactly: bool) -> Result<(), Violation> {
        let connection = &self.connections[index];
        let host = connection.ends[side].host;
        let longest = connection.longest[side];
        let Some(recvs) = &connection.ends[side].recvs else { return self.post_shared_recv(host) };
        // Where the message is known that will take it, often exactly as long as that.
        let known = match &connection.ends[1 - side].out {
            Stream::Reliable(stream) => stream.nth(recvs.open()).map(|message| message.payload.len()),
            Stream::Lossy(_) => None,
        };
        if recvs.open() >= RECV_DEPTH {
            return Ok(());
        }
        let len = match known {
            Some(len) if exactly || self.dice.chance(2, 3) => len,
            // Few long receives, so that memory is left for the rest.
            _ if recvs.open() >= RECV_MEMORY.div_ceil(longest) => return Ok(()),
            _ => longest + self.dice.below(3),
        };
        let Some((id, layout, wr)) = self.build_recv(host, len)? else { return Ok(()) };
        let end = &mut self.connections[index].ends[side];
        end.qp.post_recv(wr).map_err(|e| violation!("receive of connection {index} end {side}: {e}"))?;
        if let Some(recvs) = &mut end.recvs {
            recvs.posted(id);
        }
        end.recv_open.insert(id, layout);
        Ok(())
    }

    /// Posts a receive to the shared queue of a host.
    pub fn post_shared_recv(&mut self, host: usize) -> Result<(), Violation> {
        if self.nodes[host].shared.open() >= SHARED_DEPTH as usize / 2 {
            return Ok(());
        }
        let len = SHARED_RECV + self.dice.below(3);
        let Some((id, layout, wr)) = self.build_recv(host, len)? else { return Ok(()) };
        let node = &mut self.nodes[host];
        node.srq.post_recv(wr).map_err(|e| violation!("shared receive of host {host}: {e}"))?;
        node.shared.posted(id);
        node.shared_open.insert(id, layout);
        Ok(())
    }

    fn build_recv(&mut self, host: usize, len: usize) -> Result<Option<(u64, Layout, RecvWr)>, Violation> {
        let Some(slot) = self.nodes[host].areas[0].take(&mut self.dice, len, 1) else { return Ok(None) };
        let layout = Layout::new(&mut self.dice, slot, SEGMENTS);
        let id = self.id() | RECV_BIT;
        self.nodes[host].shadow.claim_scribble(slot.offset, slot.len)?;
        self.tally.receives += 1;
        let wr = RecvWr::new(id, self.sges(host, &layout));
        Ok(Some((id, layout, wr)))
    }
}
