//! What a device has counted, under the names Linux shows in `hw_counters`.
//!
//! The transport counts what queue pairs see ([`Counter`]); [`DeviceCounter`] adds what never reaches one: dropped
//! datagrams by reason, the driver's losses, the link. Counters only ever grow.

use everywire_transport::ib::Counter;

/// Something counted by the device itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DeviceCounter {
    /// The port went down.
    LinkDowned,
    /// Datagrams with a wrong ICRC.
    IcrcErrors,
    /// Datagrams too short, not whole words, or of an unknown opcode.
    DropMalformed,
    /// BTH of another transport version.
    DropBadVersion,
    /// No such queue pair.
    DropUnknownQp,
    /// To QP0, which does not exist on Ethernet.
    DropSmi,
    /// To QP1, but not a MAD with QP1's Q_Key.
    DropGsi,
    /// To a multicast group nobody here has joined.
    DropNoGroupMember,
    /// To an address that is not this device's.
    DropWrongAddress,
    /// Congestion notification packets.
    CnpReceived,
    /// Datagrams the driver's socket dropped for want of room.
    SocketOverflow,
    /// Reports from the network that a destination cannot be reached.
    Unreachable,
    /// Reports that packets are too big for the path to their destination.
    PathTooBig,
    /// Completion queues that overflowed.
    CqOverflow,
    /// Completions lost because their queue had overflowed.
    CompletionsLost,
    /// Asynchronous events that nobody fetched in time.
    EventsLost,
    /// TCP connections to iWARP listeners that ended, or were ended, before a valid MPA request.
    MpaStrangers,
}

const DEVICE_COUNTERS: [(DeviceCounter, &str); 17] = {
    use DeviceCounter::*;
    [
        (LinkDowned, "link_downed"),
        (IcrcErrors, "rx_icrc_encapsulated"), // mlx5's name for it
        (DropMalformed, "drop_malformed_datagram"),
        (DropBadVersion, "drop_bad_version"),
        (DropUnknownQp, "drop_unknown_qp"),
        (DropSmi, "drop_smi"),
        (DropGsi, "drop_gsi"),
        (DropNoGroupMember, "drop_no_group_member"),
        (DropWrongAddress, "drop_wrong_address"),
        (CnpReceived, "rp_cnp_handled"), // mlx5's name for it
        (SocketOverflow, "rx_socket_overflow"),
        (Unreachable, "unreachable"),
        (PathTooBig, "path_too_big"),
        (CqOverflow, "cq_overflow"),
        (CompletionsLost, "completions_lost"),
        (EventsLost, "events_lost"),
        (MpaStrangers, "mpa_strangers"),
    ]
};

/// All counters of a device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    transport: [u64; Counter::COUNT],
    device: [u64; DEVICE_COUNTERS.len()],
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { transport: [0; Counter::COUNT], device: [0; DEVICE_COUNTERS.len()] }
    }
}

impl Counters {
    /// One of the transport's.
    pub fn get(&self, counter: Counter) -> u64 {
        self.transport[counter as usize]
    }

    /// One of the device's own.
    pub fn device(&self, counter: DeviceCounter) -> u64 {
        self.device[counter as usize]
    }

    /// One by its `hw_counters` name.
    pub fn by_name(&self, name: &str) -> Option<u64> {
        self.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let transport = Counter::ALL.iter().map(|&counter| (counter.name(), self.get(counter)));
        transport.chain(DEVICE_COUNTERS.iter().map(|&(counter, name)| (name, self.device(counter))))
    }

    #[inline]
    pub(crate) fn add(&mut self, counter: Counter, by: u64) {
        self.transport[counter as usize] += by;
    }

    #[inline]
    pub(crate) fn add_device(&mut self, counter: DeviceCounter, by: u64) {
        self.device[counter as usize] += by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_in_order() {
        let counters = Counters::default();
        let names: Vec<_> = counters.iter().map(|entry| entry.0).collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for (index, (counter, _)) in DEVICE_COUNTERS.iter().enumerate() {
            assert_eq!(*counter as usize, index);
        }
    }

    #[test]
    fn linux_names_are_there() {
        // The files of /sys/class/infiniband/rxe0/ports/1/hw_counters on Linux 6.1 that count what we count too.
        let mut counters = Counters::default();
        counters.add(Counter::SentPkts, 3);
        assert_eq!(counters.by_name("sent_pkts"), Some(3));
        for name in [
            "ack_deferred",
            "duplicate_request",
            "link_downed",
            "out_of_seq_request",
            "rcvd_pkts",
            "rcvd_rnr_err",
            "rcvd_seq_err",
            "rdma_recvs",
            "rdma_sends",
            "retry_exceeded_err",
            "retry_rnr_exceeded_err",
            "send_err",
            "send_rnr_err",
            "sent_pkts",
        ] {
            assert!(counters.by_name(name).is_some(), "{name}");
        }
        assert_eq!(counters.by_name("no_such"), None);
    }
}
