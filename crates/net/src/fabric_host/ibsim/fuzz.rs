//! Fuzz target of ibsim's messages: any bytes as a control message and as a MAD packet.

use everywire_fuzz::target;

use super::message::{CONTROL_LEN, Control, PACKET_LEN, Packet, Request, answer, welcome};

/// A CONNECT as libumad2sim sends it, a GET_VENDOR, and a MAD packet with a directed route.
fn messages() -> Vec<Vec<u8>> {
    let control = |kind: u32, len: u32| {
        let mut bytes = vec![0; CONTROL_LEN];
        for (at, word) in [(0, 0xdead_beef_u32), (8, kind), (12, len)] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    };
    let mut hello = control(1, 44);
    hello[16..20].copy_from_slice(&4711u32.to_ne_bytes());
    hello[28..30].copy_from_slice(b"h1");
    let mut packet = vec![0; PACKET_LEN];
    packet[..2].copy_from_slice(&[0xff, 0xff]);
    packet[32..36].copy_from_slice(&[1, 0x81, 1, 1]);
    vec![hello, control(4, 24), control(8, 64), packet]
}

target!(ibsim_messages, messages(), |bytes| {
    if let Some(control) = Control::parse(bytes) {
        let reply = match control.request {
            Request::Connect(asked) => {
                assert!(asked.host().len() <= 3 * 32, "a name of 32 bytes");
                welcome(bytes, 7)
            }
            _ => answer(bytes, Some(&[0xaa; 64])),
        };
        assert_eq!(reply[..4], bytes[..4]);
        assert_eq!(reply[8..16], bytes[8..16], "type and length are the request's");
        let len = u32::from_ne_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        assert_eq!(reply[16 + len..], bytes[16 + len..], "nothing beyond the length is written");
        assert_eq!(answer(bytes, None)[8..12], [0; 4], "type 0 is an error");
    }
    if let Some(packet) = Packet::parse(bytes) {
        let again = packet.bytes();
        assert_eq!(Packet::parse(&again).map(|packet| packet.bytes()), Some(again));
        assert_eq!(again[32..], bytes[32..]);
    }
});
