//! Fuzz targets of the attach protocol: any bytes as a message, and any messages as a conversation.

use everywire_fuzz::target;
use everywire_wire::{Gid, Guid, Lid, Mtu, PKey};

use super::credits::Credits;
use super::message::{MAX_TEXT, Message, PortValues, VERSION, Welcome, lane_of};

fn values() -> PortValues {
    PortValues {
        state: 4,
        lid: Lid(7),
        lmc: 1,
        sm_lid: Lid(1),
        sm_sl: 0,
        subnet_timeout: 18,
        mtu: Mtu::M2048,
        data_bits: 32_000_000_000,
        gid_prefix: 0xfe80 << 48,
        pkeys: vec![PKey::DEFAULT, PKey(0x8001)],
        reregister: true,
    }
}

fn messages() -> Vec<Vec<u8>> {
    let welcome = Welcome {
        version: VERSION,
        node_guid: Guid(1),
        port_guid: Guid(2),
        ip: Gid([3; 16]),
        port: values(),
    };
    let all = [
        Message::Hello { version: VERSION, port: "h1/1" },
        Message::Welcome(Box::new(welcome)),
        Message::Refused("no"),
        Message::NoSuchPort("h1 to h2"),
        Message::Packet(&[0; 64]),
        Message::Credit { lane: 16, total: 70 },
        Message::Port(Box::new(values())),
        Message::Resolve { token: 1, ip: Gid([9; 16]) },
        Message::Resolved { token: 1, gid: Gid([0; 16]), attached: false, port: "" },
        Message::Resolved { token: 2, gid: Gid([9; 16]), attached: true, port: "h2/1" },
        Message::WrongKey { is_qkey: false, head: &[0x12; 20] },
        Message::WrongKey { is_qkey: true, head: &[0x34; 60] },
        Message::Bye,
    ];
    all.iter().map(Message::bytes).collect()
}

target!(fabric_attach_message, messages(), |bytes| {
    if let Some(message) = Message::parse(bytes) {
        let again = message.bytes();
        assert_eq!(Message::parse(&again), Some(message), "what is written is read as the same");
    }
});

// Whatever a peer grants or sends, books stay within a window, and what is legal is not refused.
target!(fabric_attach_credits, [vec![0x10; 64], vec![0x13, 0x43, 0x03]], |bytes| {
    let (mut near, mut far) = (Credits::default(), Credits::default());
    for pair in bytes.chunks_exact(2) {
        let lane = pair[0] & 0x0f;
        match pair[0] >> 4 {
            0 => _ = near.clone().granted(lane, u32::from_le_bytes([pair[1], 0, 0, pair[1]])),
            1 => {
                if near.may_send(lane) {
                    near.sent(lane);
                    assert!(far.received(lane));
                    far.consumed(lane);
                }
            }
            _ => {
                if let Some((lane, total)) = far.next_grant() {
                    assert!(near.granted(lane, total));
                }
            }
        }
        assert!(lane_of(pair).is_some_and(|lane| lane <= 16));
    }
});

/// As much of a packet as a port's agent may be shown, and no more: what is longer is no message, and never made.
#[test]
fn the_head_of_a_packet_with_a_wrong_key_is_bounded() {
    let long = vec![0x34; MAX_TEXT + 1];
    let most = Message::WrongKey { is_qkey: true, head: &long[..MAX_TEXT] };
    assert_eq!(Message::parse(&most.bytes()), Some(most));
    let mut bytes = Message::WrongKey { is_qkey: true, head: &long }.bytes();
    assert_eq!(bytes.len(), 2 + MAX_TEXT);
    bytes.push(0x34);
    assert!(Message::parse(&bytes).is_none());
    let empty = Message::WrongKey { is_qkey: false, head: &[] }.bytes();
    assert_eq!(Message::parse(&empty), Some(Message::WrongKey { is_qkey: false, head: &[] }));
}
