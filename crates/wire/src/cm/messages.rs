//! The contents of the CM messages, as tables: byte after the MAD header, first bit and end bit, bit 0 the highest.
//!
//! Read IBTA §12.6.5 (REQ) to §12.6.15 and §12.11 (SIDR) first; §12.7 explains the fields. Five-bit times are exponents:
//! 4.096 µs · 2^n. Codes with names are enums that keep unknown values too.

use super::codes::{AprStatus, FailoverStatus, RejReason, SidrStatus, TransportService};
use crate::layout::layout;
use crate::{Gid, Guid, Lid, PKey, Psn, QKey, Qpn};

layout! {
    /// Request for communication (IBTA §12.6.5).
    Req, 232 bytes {
        /// The sender's name for this connection.
        local_comm_id: u32, 0, 0..32;
        /// Reserved.
        reserved_4: u32, 4, 0..32;
        /// What is asked for; see [`crate::ip_cm::service_id`].
        service_id: u64, 8, 0..64;
        /// GUID of the sender's channel adapter.
        local_ca_guid: Guid, 16, 0..64;
        /// Reserved.
        reserved_24: u32, 24, 0..32;
        /// Q_Key of the sender's datagram QP; 0 for connections.
        local_qkey: QKey, 28, 0..32;
        /// The sender's queue pair.
        local_qpn: Qpn, 32, 0..24;
        /// READs and atomics that the sender can have outstanding against it.
        responder_resources: u8, 35, 0..8;
        /// RD only.
        local_eecn: u32, 36, 0..24;
        /// READs and atomics that the sender wants to have outstanding.
        initiator_depth: u8, 39, 0..8;
        /// RD only.
        remote_eecn: u32, 40, 0..24;
        /// How long the receiver may take to answer; five-bit time.
        remote_response_timeout: u8, 43, 0..5;
        /// The kind of connection.
        transport_service: TransportService, 43, 5..7;
        /// The sender keeps end-to-end credits.
        end_to_end_flow_control: bool, 43, 7..8;
        /// PSN of the first packet that the sender will send.
        starting_psn: Psn, 44, 0..24;
        /// How long the sender may take to answer; five-bit time.
        local_response_timeout: u8, 47, 0..5;
        /// Retries on timeout and sequence errors for the receiver to use.
        retry_count: u8, 47, 5..8;
        /// Partition.
        pkey: PKey, 48, 0..16;
        /// Path MTU code; see [`crate::Mtu::from_code`].
        path_mtu: u8, 50, 0..4;
        /// RD only.
        rdc_exists: bool, 50, 4..5;
        /// Retries on RNR for the receiver to use; 7 is without end.
        rnr_retry_count: u8, 50, 5..8;
        /// How often either side repeats a CM message.
        max_cm_retries: u8, 51, 0..4;
        /// The sender's QP uses a shared receive queue.
        srq: bool, 51, 4..5;
        /// 1 for XRC where `transport_service` says "extended".
        extended_transport: u8, 51, 5..8;
        /// The path to use.
        primary: ReqPath, 52, 0..352;
        /// The path to fail over to; zeros for none.
        alternate: ReqPath, 96, 0..352;
        /// For the consumer.
        private_data: [u8; 92], 140, 0..736;
    }
}

layout! {
    /// A path in a [`Req`], seen from its sender (IBTA §12.6.5).
    ReqPath, 44 bytes {
        /// LID of the sender's port; 0xffff on RoCE from Linux.
        local_lid: Lid, 0, 0..16;
        /// LID of the receiver's port.
        remote_lid: Lid, 2, 0..16;
        /// GID of the sender's port.
        local_gid: Gid, 4, 0..128;
        /// GID of the receiver's port.
        remote_gid: Gid, 20, 0..128;
        /// Flow label.
        flow_label: u32, 36, 0..20;
        /// Reserved.
        reserved_38: u8, 38, 4..10;
        /// Packet rate code.
        packet_rate: u8, 39, 2..8;
        /// Traffic class.
        traffic_class: u8, 40, 0..8;
        /// Hop limit.
        hop_limit: u8, 41, 0..8;
        /// Service level.
        sl: u8, 42, 0..4;
        /// Both ports are in one subnet.
        subnet_local: bool, 42, 4..5;
        /// Reserved.
        reserved_42: u8, 42, 5..8;
        /// Five-bit time after which an unacknowledged packet is sent again.
        local_ack_timeout: u8, 43, 0..5;
        /// Reserved.
        reserved_43: u8, 43, 5..8;
    }
}

layout! {
    /// Message receipt acknowledgement: "got it, the answer will take longer" (IBTA §12.6.6).
    Mra, 232 bytes {
        /// The sender's name for this connection.
        local_comm_id: u32, 0, 0..32;
        /// The receiver's.
        remote_comm_id: u32, 4, 0..32;
        /// What was received; see [`super::about`].
        message_mraed: u8, 8, 0..2;
        /// Reserved.
        reserved_8: u8, 8, 2..8;
        /// How long the answer may take from now; five-bit time.
        service_timeout: u8, 9, 0..5;
        /// Reserved.
        reserved_9: u8, 9, 5..8;
        /// For the consumer.
        private_data: [u8; 222], 10, 0..1776;
    }
}

layout! {
    /// Reject (IBTA §12.6.7).
    Rej, 232 bytes {
        /// The sender's name for this connection; 0 if it never had one.
        local_comm_id: u32, 0, 0..32;
        /// The receiver's.
        remote_comm_id: u32, 4, 0..32;
        /// What is rejected; see [`super::about`].
        message_rejected: u8, 8, 0..2;
        /// Reserved.
        reserved_8: u8, 8, 2..8;
        /// Bytes of `ari` in use.
        reject_info_length: u8, 9, 0..7;
        /// Reserved.
        reserved_9: u8, 9, 7..8;
        /// Why.
        reason: RejReason, 10, 0..16;
        /// Additional reject information: what would have been accepted.
        ari: [u8; 72], 12, 0..576;
        /// For the consumer.
        private_data: [u8; 148], 84, 0..1184;
    }
}

layout! {
    /// Reply to a request (IBTA §12.6.8).
    Rep, 232 bytes {
        /// The sender's name for this connection.
        local_comm_id: u32, 0, 0..32;
        /// The receiver's.
        remote_comm_id: u32, 4, 0..32;
        /// Q_Key of the sender's datagram QP; 0 for connections.
        local_qkey: QKey, 8, 0..32;
        /// The sender's queue pair.
        local_qpn: Qpn, 12, 0..24;
        /// Reserved.
        reserved_15: u8, 15, 0..8;
        /// RD only.
        local_eecn: u32, 16, 0..24;
        /// Reserved.
        reserved_19: u8, 19, 0..8;
        /// PSN of the first packet that the sender will send.
        starting_psn: Psn, 20, 0..24;
        /// Reserved.
        reserved_23: u8, 23, 0..8;
        /// READs and atomics that the sender can have outstanding against it.
        responder_resources: u8, 24, 0..8;
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8, 25, 0..8;
        /// Five-bit time that the sender's adapter needs at most to acknowledge.
        target_ack_delay: u8, 26, 0..5;
        /// What became of the alternate path.
        failover_accepted: FailoverStatus, 26, 5..7;
        /// The sender keeps end-to-end credits.
        end_to_end_flow_control: bool, 26, 7..8;
        /// Retries on RNR for the receiver to use; 7 is without end.
        rnr_retry_count: u8, 27, 0..3;
        /// The sender's QP uses a shared receive queue.
        srq: bool, 27, 3..4;
        /// Reserved.
        reserved_27: u8, 27, 4..8;
        /// GUID of the sender's channel adapter.
        local_ca_guid: Guid, 28, 0..64;
        /// For the consumer.
        private_data: [u8; 196], 36, 0..1568;
    }
}

layout! {
    /// Ready to use: the reply has arrived (IBTA §12.6.9).
    Rtu, 232 bytes {
        /// The sender's name for this connection.
        local_comm_id: u32, 0, 0..32;
        /// The receiver's.
        remote_comm_id: u32, 4, 0..32;
        /// For the consumer.
        private_data: [u8; 224], 8, 0..1792;
    }
}

layout! {
    /// Request to disconnect (IBTA §12.6.10).
    Dreq, 232 bytes {
        /// The sender's name for this connection.
        local_comm_id: u32, 0, 0..32;
        /// The receiver's.
        remote_comm_id: u32, 4, 0..32;
        /// The receiver's queue pair, as proof that the right connection is meant.
        remote_qpn: Qpn, 8, 0..24;
        /// Reserved.
        reserved_11: u8, 11, 0..8;
        /// For the consumer.
        private_data: [u8; 220], 12, 0..1760;
    }
}

layout! {
    /// Reply to a request to disconnect (IBTA §12.6.11).
    Drep, 232 bytes {
        /// The sender's name for this connection.
        local_comm_id: u32, 0, 0..32;
        /// The receiver's.
        remote_comm_id: u32, 4, 0..32;
        /// For the consumer.
        private_data: [u8; 224], 8, 0..1792;
    }
}

layout! {
    /// Service ID resolution request, for datagrams (IBTA §12.11.1).
    SidrReq, 232 bytes {
        /// The sender's name for this request.
        request_id: u32, 0, 0..32;
        /// Partition.
        pkey: PKey, 4, 0..16;
        /// Reserved.
        reserved_6: u16, 6, 0..16;
        /// What is asked for.
        service_id: u64, 8, 0..64;
        /// For the consumer.
        private_data: [u8; 216], 16, 0..1728;
    }
}

layout! {
    /// Service ID resolution response (IBTA §12.11.2).
    SidrRep, 232 bytes {
        /// The name of the request.
        request_id: u32, 0, 0..32;
        /// Whether the service is here.
        status: SidrStatus, 4, 0..8;
        /// Bytes of `additional_information` in use.
        additional_information_length: u8, 5, 0..8;
        /// Reserved.
        reserved_6: u16, 6, 0..16;
        /// The queue pair to send to.
        qpn: Qpn, 8, 0..24;
        /// Reserved.
        reserved_11: u8, 11, 0..8;
        /// What was asked for.
        service_id: u64, 12, 0..64;
        /// The key to send with.
        qkey: QKey, 20, 0..32;
        /// Where to ask instead, with status "redirect".
        additional_information: [u8; 72], 24, 0..576;
        /// For the consumer.
        private_data: [u8; 136], 96, 0..1088;
    }
}

layout! {
    /// Load alternate path (IBTA §12.8.1).
    Lap, 232 bytes {
        /// The sender's name for this connection.
        local_comm_id: u32, 0, 0..32;
        /// The receiver's.
        remote_comm_id: u32, 4, 0..32;
        /// Reserved.
        reserved_8: u32, 8, 0..32;
        /// The receiver's queue pair.
        remote_qpn: Qpn, 12, 0..24;
        /// How long the receiver may take to answer; five-bit time.
        remote_response_timeout: u8, 15, 0..5;
        /// Reserved.
        reserved_15: u8, 15, 5..8;
        /// Reserved.
        reserved_16: u32, 16, 0..32;
        /// LID of the sender's port.
        local_lid: Lid, 20, 0..16;
        /// LID of the receiver's port.
        remote_lid: Lid, 22, 0..16;
        /// GID of the sender's port.
        local_gid: Gid, 24, 0..128;
        /// GID of the receiver's port.
        remote_gid: Gid, 40, 0..128;
        /// Flow label.
        flow_label: u32, 56, 0..20;
        /// Reserved.
        reserved_58: u8, 58, 4..8;
        /// Traffic class.
        traffic_class: u8, 59, 0..8;
        /// Hop limit.
        hop_limit: u8, 60, 0..8;
        /// Reserved.
        reserved_61: u8, 61, 0..2;
        /// Packet rate code.
        packet_rate: u8, 61, 2..8;
        /// Service level.
        sl: u8, 62, 0..4;
        /// Both ports are in one subnet.
        subnet_local: bool, 62, 4..5;
        /// Reserved.
        reserved_62: u8, 62, 5..8;
        /// Five-bit time after which an unacknowledged packet is sent again.
        local_ack_timeout: u8, 63, 0..5;
        /// Reserved.
        reserved_63: u8, 63, 5..8;
        /// For the consumer.
        private_data: [u8; 168], 64, 0..1344;
    }
}

layout! {
    /// Alternate path response (IBTA §12.8.2).
    Apr, 232 bytes {
        /// The sender's name for this connection.
        local_comm_id: u32, 0, 0..32;
        /// The receiver's.
        remote_comm_id: u32, 4, 0..32;
        /// Bytes of `additional_information` in use.
        additional_information_length: u8, 8, 0..8;
        /// Whether the path was taken.
        status: AprStatus, 9, 0..8;
        /// Reserved.
        reserved_10: u16, 10, 0..16;
        /// What would have been accepted.
        additional_information: [u8; 72], 12, 0..576;
        /// For the consumer.
        private_data: [u8; 148], 84, 0..1184;
    }
}
