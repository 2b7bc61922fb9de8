//! Credits of one lane in one direction: how a sender knows that the receiver has room.
//!
//! Read IBTA §7.9.4 first. The sender counts blocks of 64 bytes that it has sent (FCTBS), the receiver those that arrived
//! (ABR), and tells how far the sender may go (FCCL). All are modulo 4096, so that no more than 2048 blocks may be
//! outstanding. What is kept here is only what a real port keeps; [`super::audit`] counts the same without wrapping.

/// Bytes of a block.
pub const BLOCK: usize = 64;
/// The most blocks that a receiver may offer.
pub const MAX_BLOCKS: u16 = 2048;

const MODULUS_MASK: u16 = 0xfff;

/// Blocks of a packet of that many bytes, LRH to VCRC.
#[inline]
pub(super) const fn blocks(bytes: usize) -> u16 {
    bytes.div_ceil(BLOCK) as u16
}

/// The sending end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sender {
    /// Blocks sent: Flow Control Total Blocks Sent.
    pub fctbs: u16,
    /// How far to go: Flow Control Credit Limit, as last heard.
    pub fccl: u16,
}

impl Sender {
    /// Whether that many blocks more may be sent (IBTA §7.9.4.4).
    #[inline]
    pub fn allows(&self, blocks: u16) -> bool {
        self.fccl.wrapping_sub(self.fctbs.wrapping_add(blocks)) & MODULUS_MASK <= MAX_BLOCKS
    }

    /// That many were sent.
    #[inline]
    pub fn sent(&mut self, blocks: u16) {
        self.fctbs = self.fctbs.wrapping_add(blocks) & MODULUS_MASK;
    }

    /// Blocks that may be sent.
    pub fn available(&self) -> u16 {
        let ahead = self.fccl.wrapping_sub(self.fctbs) & MODULUS_MASK;
        if ahead <= MAX_BLOCKS { ahead } else { 0 }
    }
}

/// The receiving end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Receiver {
    /// Blocks that arrived: Adjusted Blocks Received.
    pub abr: u16,
    /// Blocks in the buffer.
    pub used: u16,
    /// Blocks of the buffer, at most [`MAX_BLOCKS`].
    pub capacity: u16,
}

impl Receiver {
    /// An empty buffer.
    pub fn new(capacity: u16) -> Receiver {
        Receiver { abr: 0, used: 0, capacity: capacity.min(MAX_BLOCKS) }
    }

    /// Whether a packet has room. It always does if the sender obeys its credits.
    #[inline]
    pub fn has_room(&self, blocks: u16) -> bool {
        self.used + blocks <= self.capacity
    }

    /// A packet came in.
    #[inline]
    pub fn arrived(&mut self, blocks: u16) {
        self.abr = self.abr.wrapping_add(blocks) & MODULUS_MASK;
        self.used += blocks;
    }

    /// A packet left the buffer.
    #[inline]
    pub fn freed(&mut self, blocks: u16) {
        self.used -= blocks;
    }

    /// The credit limit to tell the sender (IBTA §7.9.4.3).
    #[inline]
    pub fn fccl(&self) -> u16 {
        self.abr.wrapping_add(self.capacity - self.used) & MODULUS_MASK
    }

    /// The sender has told what it has sent, which makes up for packets that the wire swallowed.
    #[inline]
    pub fn resynchronise(&mut self, fctbs: u16) {
        self.abr = fctbs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_may_be_sent_before_the_first_credit() {
        let sender = Sender::default();
        assert!(!sender.allows(1));
        assert_eq!(sender.available(), 0);
    }

    #[test]
    fn counters_wrap_at_4096_and_the_largest_buffer_is_2048_blocks() {
        let (mut sender, mut receiver) = (Sender::default(), Receiver::new(4000));
        assert_eq!(receiver.capacity, 2048);
        for _ in 0..100 {
            sender.fccl = receiver.fccl();
            assert!(sender.allows(2048) && !sender.allows(2049));
            sender.sent(1999);
            receiver.arrived(1999);
            assert!(sender.allows(49) && !sender.allows(50));
            sender.fccl = receiver.fccl();
            assert_eq!(sender.available(), 49, "an update without room gained nothing");
            receiver.freed(1999);
        }
    }

    #[test]
    fn lost_blocks_come_back_when_the_sender_tells_its_count() {
        let (mut sender, mut receiver) = (Sender::default(), Receiver::new(128));
        sender.fccl = receiver.fccl();
        sender.sent(65); // swallowed by the wire
        sender.fccl = receiver.fccl();
        assert_eq!(sender.available(), 63);
        receiver.resynchronise(sender.fctbs);
        sender.fccl = receiver.fccl();
        assert_eq!(sender.available(), 128);
    }

    #[test]
    fn packets_count_in_whole_blocks() {
        assert_eq!([22, 64, 65, 290, 4096 + 34].map(blocks), [1, 1, 2, 5, 65]);
    }
}
