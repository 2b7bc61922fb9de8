//! TCP conversations of a capture, put together: enough for captures of a path without loss. In tests only.

use std::collections::BTreeMap;

/// One TCP connection.
#[derive(Default)]
pub struct Conversation {
    /// What each end sent: 0 is the one that connected.
    pub sent: [Vec<u8>; 2],
    /// The same in the order of arrival: who, and how much.
    pub order: Vec<(usize, usize)>,
    next: [u32; 2],
}

/// The connections in a classic little-endian pcap file of Ethernet frames, by the port that connected.
pub fn conversations(file: &[u8]) -> Vec<Conversation> {
    let mut all: BTreeMap<(u16, u16), Conversation> = BTreeMap::new();
    let mut rest = &file[24..];
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        if let Some(segment) = segment(&rest[16..16 + len]) {
            take(&mut all, segment);
        }
        rest = &rest[16 + len..];
    }
    all.into_values().filter(|c| !c.order.is_empty()).collect()
}

/// TCP header and payload of an IPv4 frame.
fn segment(frame: &[u8]) -> Option<&[u8]> {
    if frame.len() < 54 || frame[12..14] != [8, 0] || frame[23] != 6 {
        return None;
    }
    let header = usize::from(frame[14] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    frame.get(14 + header..14 + total)
}

fn take(all: &mut BTreeMap<(u16, u16), Conversation>, tcp: &[u8]) {
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let (src, dst) = (port(0), port(2));
    let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
    let (syn, ack) = (tcp[13] & 2 != 0, tcp[13] & 16 != 0);
    if syn && !ack {
        all.insert((src, dst), Conversation { next: [seq + 1, 0], ..Conversation::default() });
        return;
    }
    let (key, from) = if all.contains_key(&(src, dst)) { ((src, dst), 0) } else { ((dst, src), 1) };
    let Some(conversation) = all.get_mut(&key) else { return };
    if syn {
        conversation.next[1] = seq + 1;
        return;
    }
    let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
    let known = conversation.next[from].wrapping_sub(seq) as usize;
    // Sent again, or captured twice.
    if payload.is_empty() || known >= payload.len() {
        return;
    }
    let new = &payload[known..];
    conversation.next[from] = conversation.next[from].wrapping_add(new.len() as u32);
    conversation.sent[from].extend_from_slice(new);
    conversation.order.push((from, new.len()));
}
