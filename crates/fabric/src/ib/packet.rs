//! Packets in flight: the bytes as the sender gave them, and what has changed since.
//!
//! A packet is never copied on its way through a subnet; a router writes new headers. A switch changes four bits of its first byte and, by that, its last two (IBTA §7.7.1,
//! §7.8.2); both are kept beside the shared bytes and written into them when the packet leaves the subnet. Copies for a
//! multicast group share the bytes and the input buffer from which they were made.

use bytes::{Bytes, BytesMut};
use everywire_wire::grh::Grh;
use everywire_wire::vcrc::{VCRC_LEN, vcrc, vl_changed};
use everywire_wire::{Bth, Lid, Lnh, Lrh, PKey};

use crate::clock::SimTime;

/// Bytes of the headers before a BTH with GRH.
const LRH_AND_GRH: usize = Lrh::LEN + Grh::LEN;
/// Where the hop limit is in a packet that has a GRH (IBTA §8.3).
const HOP_LIMIT: usize = Lrh::LEN + 7;

/// Stands for "no port" and "not shared".
pub(super) const NONE: u32 = u32::MAX;

/// The input buffer that a packet occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    /// The receiving port, [`NONE`] for a packet that is in no buffer of the fabric.
    pub port: u32,
    /// The link's incarnation in which it came.
    pub epoch: u32,
    pub vl: u8,
    pub blocks: u16,
    /// Where the copies of a multicast packet count themselves, [`NONE`] for a single one.
    pub shared: u32,
}

impl Hold {
    pub const NOTHING: Hold = Hold { port: NONE, epoch: 0, vl: 0, blocks: 0, shared: NONE };
}

#[derive(Debug, Clone)]
pub(super) struct Packet {
    bytes: Bytes,
    /// As the packet is now; `bytes` still has the sender's lane.
    pub lrh: Lrh,
    vcrc: u16,
    pub hold: Hold,
    /// When the node it is in has decided about it.
    pub ready_at: SimTime,
    /// When it came into that node.
    pub entered: SimTime,
    /// Switches behind it.
    pub hops: u8,
    /// The lane that it was last sent on, whatever has become of its header since.
    pub lane: u8,
    /// The wire has flipped a bit, or nobody has summed it yet.
    pub suspect: bool,
}

impl Packet {
    /// A packet whose length the LRH tells right.
    pub fn new(bytes: Bytes, lrh: Lrh, now: SimTime) -> Packet {
        let end = bytes.len() - VCRC_LEN;
        let vcrc = u16::from_le_bytes([bytes[end], bytes[end + 1]]);
        Packet {
            bytes,
            lrh,
            vcrc,
            hold: Hold::NOTHING,
            ready_at: now,
            entered: now,
            hops: 0,
            lane: lrh.vl,
            suspect: true,
        }
    }

    /// Bytes, LRH to VCRC.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    pub fn blocks(&self) -> u16 {
        super::credits::blocks(self.bytes.len())
    }

    /// Puts it on a lane and corrects the VCRC.
    #[inline]
    pub fn set_vl(&mut self, vl: u8) {
        if vl != self.lrh.vl {
            self.vcrc = vl_changed(self.vcrc, self.lrh.pkt_len, self.lrh.vl, vl);
            self.lrh.vl = vl;
        }
    }

    /// Sends it into another subnet: new LIDs, a service level, and a hop less. The ICRC of a packet with GRH covers none of
    /// these (IBTA §7.8.1), so that only the VCRC is made anew.
    pub fn reroute(&mut self, slid: Lid, dlid: Lid, sl: u8, hop_limit: u8) {
        let packet = std::mem::take(&mut self.bytes);
        let mut bytes = packet.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        self.lrh = Lrh { slid, dlid, sl, ..self.lrh };
        self.lrh.emit(&mut bytes);
        bytes[HOP_LIMIT] = hop_limit;
        let end = bytes.len() - VCRC_LEN;
        self.vcrc = vcrc(&bytes[..end]);
        bytes[end..].copy_from_slice(&self.vcrc.to_le_bytes());
        self.bytes = bytes.freeze();
    }

    /// Its GRH, if it has one.
    pub fn grh(&self) -> Option<Grh> {
        let after = self.bytes.get(Lrh::LEN..).filter(|_| self.lrh.lnh == Lnh::IbaGlobal)?;
        Grh::parse(after).ok()
    }

    /// The packet as it is on the wire now; copied only if it has changed and others still share it.
    pub fn into_bytes(self) -> Bytes {
        if self.bytes[0] >> 4 == self.lrh.vl {
            return self.bytes;
        }
        let mut bytes = self.bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        let end = bytes.len() - VCRC_LEN;
        bytes[0] = bytes[0] & 0x0f | self.lrh.vl << 4;
        bytes[end..].copy_from_slice(&self.vcrc.to_le_bytes());
        bytes.freeze()
    }

    /// Whether the VCRC is right.
    pub fn vcrc_is_right(&self) -> bool {
        everywire_wire::vcrc::check_packet(&self.clone().into_bytes()).is_ok()
    }

    /// Flips a bit, counted from the first of the packet.
    pub fn flip(&mut self, bit: usize) {
        let packet = std::mem::take(&mut self.bytes);
        let (vl, vcrc) = (self.lrh.vl, self.vcrc);
        let mut bytes = BytesMut::from(&packet[..]);
        let end = bytes.len() - VCRC_LEN;
        bytes[0] = bytes[0] & 0x0f | vl << 4;
        bytes[end..].copy_from_slice(&vcrc.to_le_bytes());
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        self.lrh.vl = bytes[0] >> 4;
        self.vcrc = u16::from_le_bytes([bytes[end], bytes[end + 1]]);
        self.bytes = bytes.freeze();
        self.suspect = true;
    }

    /// The P_Key in its BTH; `None` for a raw packet or one cut short.
    pub fn pkey(&self) -> Option<PKey> {
        Bth::parse(self.after_link_headers()?).ok().map(|bth| bth.pkey)
    }

    /// The same without a look at the rest of the BTH, for every packet that is delivered.
    #[inline]
    pub fn pkey_bits(&self) -> Option<PKey> {
        let bytes = self.after_link_headers()?.get(2..4)?;
        Some(PKey(u16::from_be_bytes([bytes[0], bytes[1]])))
    }

    /// BTH and what follows; `None` for a raw packet or one cut short.
    pub fn after_link_headers(&self) -> Option<&[u8]> {
        match self.lrh.lnh {
            Lnh::IbaLocal => self.bytes.get(Lrh::LEN..),
            Lnh::IbaGlobal => self.bytes.get(LRH_AND_GRH..),
            Lnh::RawEthertype | Lnh::RawIpv6 => None,
        }
    }

    pub fn is_raw(&self) -> bool {
        matches!(self.lrh.lnh, Lnh::RawEthertype | Lnh::RawIpv6)
    }
}

/// Values under small numbers that are used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = Some(value);
                id
            }
            None => {
                self.slots.push(Some(value));
                (self.slots.len() - 1) as u32
            }
        }
    }

    #[inline]
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.slots.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(value)
    }

    /// Panics where nothing is: ids never come from outside.
    #[inline]
    #[track_caller]
    pub fn get(&self, id: u32) -> &T {
        match &self.slots[id as usize] {
            Some(value) => value,
            None => unreachable!("slot {id} is empty"),
        }
    }

    /// As [`Slab::get`].
    #[inline]
    #[track_caller]
    pub fn get_mut(&mut self, id: u32) -> &mut T {
        match &mut self.slots[id as usize] {
            Some(value) => value,
            None => unreachable!("slot {id} is empty"),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(id, slot)| Some((id as u32, slot.as_ref()?)))
    }

    /// Values that are there.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everywire_wire::vcrc;

    fn sealed(words: u16) -> Bytes {
        let mut bytes: Vec<u8> = (0..words * 4).map(|i| i as u8).collect();
        let lrh = Lrh { vl: 3, lnh: Lnh::IbaLocal, pkt_len: words, ..Lrh::default() };
        lrh.emit(&mut bytes);
        bytes.extend([0; 2]);
        vcrc::seal(&mut bytes);
        bytes.into()
    }

    #[test]
    fn a_change_of_lane_shows_in_the_bytes_and_leaves_shared_ones_alone() {
        let bytes = sealed(20);
        let mut packet = Packet::new(bytes.clone(), Lrh::parse(&bytes).unwrap(), SimTime::ZERO);
        assert_eq!(packet.clone().into_bytes().as_ptr(), bytes.as_ptr(), "not copied");
        packet.set_vl(9);
        assert!(packet.vcrc_is_right());
        let changed = packet.into_bytes();
        assert_eq!(vcrc::check_packet(&changed).unwrap().vl, 9);
        assert_eq!(vcrc::check_packet(&bytes).unwrap().vl, 3);
        // Alone, it is changed in place.
        let at = changed.as_ptr();
        let mut packet = Packet::new(changed, Lrh { vl: 9, ..Lrh::parse(&bytes).unwrap() }, SimTime::ZERO);
        packet.set_vl(1);
        let last = packet.into_bytes();
        assert_eq!((last.as_ptr(), vcrc::check_packet(&last).unwrap().vl), (at, 1));
    }

    #[test]
    fn no_flipped_bit_passes() {
        let bytes = sealed(8);
        for bit in 0..bytes.len() * 8 {
            let mut packet = Packet::new(bytes.clone(), Lrh::parse(&bytes).unwrap(), SimTime::ZERO);
            packet.set_vl(0);
            packet.flip(bit);
            assert!(!packet.vcrc_is_right(), "bit {bit}");
        }
    }
}
