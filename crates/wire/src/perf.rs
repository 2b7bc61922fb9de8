//! Performance management: the counters of a port, as MADs carry them.
//!
//! Read IBTA §16.1.2 (format) and §16.1.3, §16.1.4 (attributes) first. A performance MAD is the common header, 40 reserved
//! bytes and 192 bytes of data, which one of these tables begins. Counters stop at their highest value; a Set writes the
//! ones that its select bits name. Counting is the agent's affair.

use crate::layout::{array_field, layout};
use crate::mad::MadHeader;

/// Version of the class.
pub const CLASS_VERSION: u8 = 1;

/// Attributes of the class (IBTA §16.1.2.2).
pub mod attribute {
    /// What a performance management agent can do.
    pub const CLASS_PORT_INFO: u16 = 0x0001;
    /// What to count over an interval.
    pub const PORT_SAMPLES_CONTROL: u16 = 0x0010;
    /// What was counted over it.
    pub const PORT_SAMPLES_RESULT: u16 = 0x0011;
    /// Basic counters of a port.
    pub const PORT_COUNTERS: u16 = 0x0012;
    /// 64-bit counters of a port.
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x001d;
}

/// Capabilities of the class in ClassPortInfo (IBTA §16.1.3.1).
pub mod capability {
    /// Port 255 stands for all ports.
    pub const ALL_PORT_SELECT: u16 = 1 << 8;
    /// PortCountersExtended, all of it.
    pub const EXTENDED_WIDTH: u16 = 1 << 9;
    /// PortXmitWait is counted.
    pub const XMIT_WAIT: u16 = 1 << 12;
}

/// Selects all ports of a node.
pub const ALL_PORTS: u8 = 255;

layout! {
    /// A performance management MAD (IBTA §16.1.2.1).
    PerfMad, 256 bytes {
        /// Common header.
        header: MadHeader, 0, 0..192;
        /// Reserved.
        reserved: [u8; 40], 24, 0..320;
        /// The attribute.
        data: [u8; 192], 64, 0..1536;
    }
}

layout! {
    /// Basic counters of a port (IBTA §16.1.3.5). Bit n of the selects stands for the n-th counter.
    PortCounters, 44 bytes {
        /// Reserved.
        reserved: u8, 0, 0..8;
        /// Which port; 255 for all.
        port_select: u8, 1, 0..8;
        /// Set: the counters that it writes.
        counter_select: u16, 2, 0..16;
        /// Symbols that were not right.
        symbol_errors: u16, 4, 0..16;
        /// Times that the link trained again and came back.
        link_error_recovery: u8, 6, 0..8;
        /// Times that it trained again and did not.
        link_downed: u8, 7, 0..8;
        /// Packets received and dropped as damaged or malformed.
        rcv_errors: u16, 8, 0..16;
        /// Packets that came marked as bad.
        rcv_remote_physical_errors: u16, 10, 0..16;
        /// Packets that a switch knew no way for.
        rcv_switch_relay_errors: u16, 12, 0..16;
        /// Packets that could not be sent.
        xmit_discards: u16, 14, 0..16;
        /// Packets that might not be sent: partition, raw.
        xmit_constraint_errors: u8, 16, 0..8;
        /// Packets that might not come in.
        rcv_constraint_errors: u8, 17, 0..8;
        /// Set: bit 0 for the wait counter.
        counter_select2: u8, 18, 0..8;
        /// Times that local errors passed their threshold.
        local_link_integrity_errors: u8, 19, 0..4;
        /// Times that buffers overran in sequence.
        excessive_buffer_overruns: u8, 19, 4..8;
        /// Packets to QP1 dropped.
        qp1_dropped: u16, 20, 0..16;
        /// Packets of lane 15 dropped.
        vl15_dropped: u16, 22, 0..16;
        /// Words sent.
        xmit_data: u32, 24, 0..32;
        /// Words received.
        rcv_data: u32, 28, 0..32;
        /// Packets sent.
        xmit_packets: u32, 32, 0..32;
        /// Packets received.
        rcv_packets: u32, 36, 0..32;
        /// Ticks in which something waited and nothing was sent.
        xmit_wait: u32, 40, 0..32;
    }
}

layout! {
    /// 64-bit counters of a port (IBTA §16.1.4.11).
    PortCountersExtended, 72 bytes {
        /// Reserved.
        reserved: u8, 0, 0..8;
        /// Which port; 255 for all.
        port_select: u8, 1, 0..8;
        /// Set: the counters that it writes.
        counter_select: u16, 2, 0..16;
        /// Set: more counters, which are not there.
        counter_select2: u32, 4, 0..32;
        /// Words sent.
        xmit_data: u64, 8, 0..64;
        /// Words received.
        rcv_data: u64, 16, 0..64;
        /// Packets sent.
        xmit_packets: u64, 24, 0..64;
        /// Packets received.
        rcv_packets: u64, 32, 0..64;
        /// Of those sent, to one port.
        unicast_xmit_packets: u64, 40, 0..64;
        /// Of those received, to one port.
        unicast_rcv_packets: u64, 48, 0..64;
        /// Of those sent, to a group.
        multicast_xmit_packets: u64, 56, 0..64;
        /// Of those received, to a group.
        multicast_rcv_packets: u64, 64, 0..64;
    }
}

array_field! {
    /// Counters of a sample, by number.
    SampleSelects = [u16; 15], 16;
    /// Counters of a sample.
    SampleCounters = [u32; 15], 32;
}

layout! {
    /// What to count over an interval (IBTA §16.1.3.2).
    PortSamplesControl, 80 bytes {
        /// Which of the vendor's sampling operations; 0.
        op_code: u8, 0, 0..8;
        /// Which port.
        port_select: u8, 1, 0..8;
        /// Unit of times: 0 for ten symbol times, or 4 ns at 2.5 Gbit/s.
        tick: u8, 2, 0..8;
        /// Reserved.
        reserved: u8, 3, 0..5;
        /// Bits of a counter: 16 + 4 × value.
        counter_width: u8, 3, 5..8;
        /// Reserved.
        reserved2: u8, 4, 0..2;
        /// Three bits a counter, the first leftmost: 1 where it may be any mandatory one.
        counter_masks0to9: u32, 4, 2..32;
        /// Reserved.
        reserved3: u8, 8, 0..1;
        /// The same of the rest.
        counter_masks10to14: u16, 8, 1..16;
        /// Sampling mechanisms besides the first, a bit each.
        sample_mechanisms: u8, 10, 0..8;
        /// Reserved.
        reserved4: u8, 11, 0..6;
        /// See [`sample_status`].
        sample_status: u8, 11, 6..8;
        /// Optional counters that are there.
        option_mask: u64, 12, 0..64;
        /// Vendor's counters that are there.
        vendor_mask: u64, 20, 0..64;
        /// Ticks until counting begins.
        sample_start: u32, 28, 0..32;
        /// Ticks of counting.
        sample_interval: u32, 32, 0..32;
        /// Tells samples apart.
        tag: u16, 36, 0..16;
        /// See [`sample_select`].
        counter_select: SampleSelects, 38, 0..240;
        /// Reserved.
        reserved5: u32, 68, 0..32;
        /// Optional counters that are there for samples only.
        samples_only_option_mask: u64, 72, 0..64;
    }
}

layout! {
    /// What was counted over an interval (IBTA §16.1.3.4).
    PortSamplesResult, 64 bytes {
        /// Of the request.
        tag: u16, 0, 0..16;
        /// Reserved.
        reserved: u16, 2, 0..14;
        /// See [`sample_status`].
        sample_status: u8, 3, 6..8;
        /// By place.
        counters: SampleCounters, 4, 0..480;
    }
}

/// States of a sample.
pub mod sample_status {
    /// Over, or never asked for.
    pub const DONE: u8 = 0;
    /// Asked for, not counting yet.
    pub const STARTED: u8 = 1;
    /// Counting.
    pub const RUNNING: u8 = 2;
}

/// The mandatory counters of a sample.
pub mod sample_select {
    /// Words sent.
    pub const XMIT_DATA: u16 = 1;
    /// Words received.
    pub const RCV_DATA: u16 = 2;
    /// Packets sent.
    pub const XMIT_PACKETS: u16 = 3;
    /// Packets received.
    pub const RCV_PACKETS: u16 = 4;
    /// Ticks in which something waited and nothing was sent.
    pub const XMIT_WAIT: u16 = 5;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::assert_complete;

    #[test]
    fn tables_are_complete() {
        assert_complete("PerfMad", PerfMad::FIELDS, PerfMad::LEN);
        assert_complete("PortCounters", PortCounters::FIELDS, PortCounters::LEN);
        assert_complete("PortSamplesControl", PortSamplesControl::FIELDS, PortSamplesControl::LEN);
        assert_complete("PortSamplesResult", PortSamplesResult::FIELDS, PortSamplesResult::LEN);
        assert_complete("PortCountersExtended", PortCountersExtended::FIELDS, PortCountersExtended::LEN);
    }

    #[test]
    fn counters_are_where_the_standard_puts_them() {
        // Byte offsets of IBTA §16.1.3.5: words sent at 24, wait at 40.
        let mut bytes = [0; PortCounters::LEN];
        bytes[24..28].copy_from_slice(&0x0102_0304u32.to_be_bytes());
        bytes[40..44].copy_from_slice(&7u32.to_be_bytes());
        bytes[19] = 0x5a;
        let counters = PortCounters::parse(&bytes).unwrap();
        assert_eq!((counters.xmit_data, counters.xmit_wait), (0x0102_0304, 7));
        assert_eq!((counters.local_link_integrity_errors, counters.excessive_buffer_overruns), (5, 10));
    }
}
