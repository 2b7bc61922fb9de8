//! An InfiniBand port: what its agent tells the device, what arrives there, and the administrator that answers it.
//!
//! Read first: IBTA vol. 1 §9.6 (packet validation), §10.2.1.2 (address handles) and chapter 15 (subnet administration). The
//! port itself (lanes, credits, QP0) is the driver's; it reports changes through [`Drive::ib_port`](crate::Drive::ib_port).
//! Ways to other ports are in `ib_ways`, groups in `ib_group`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use everywire_transport::ib::{LocalRoute, PacketMeta, PathLink};
use everywire_transport::mad::MadPath;
use everywire_transport::mad::sa_client::{Ask, SaClient};
use everywire_wire::grh::Grh;
use everywire_wire::icrc::icrc_ib;
use everywire_wire::lrh::{Lnh, Lrh};
use everywire_wire::mad::{MAD_LEN, class};
use everywire_wire::vcrc::{VCRC_LEN, check_length};
use everywire_wire::{Gid, Guid, Lid, Mtu, PKey};

use crate::config::{DeviceConfig, GidType, PortState};
use crate::counters::DeviceCounter;
use crate::events::AsyncEvent;
use crate::ib_group::IbGroup;
use crate::receive::{ICRC_LEN, check_packet_length, grh_and_packet};
use crate::route::RouteToken;
use crate::state::State;

/// The first multicast LID (IBTA §4.1.3).
pub(crate) const FIRST_MULTICAST_LID: u16 = 0xc000;

/// What an InfiniBand port has been told by the subnet manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbPort {
    /// Whether it carries data: in state Active.
    pub active: bool,
    /// Whether it has not even a link: in state Down.
    pub unplugged: bool,
    /// Base LID; 0 before there is one.
    pub lid: Lid,
    /// It answers to 2^LMC LIDs.
    pub lmc: u8,
    /// Where the subnet manager is, and subnet administration with it.
    pub sm_lid: Lid,
    /// Service level of packets to it.
    pub sm_sl: u8,
    /// High half of the port's GIDs.
    pub gid_prefix: u64,
    /// Partition table; partition 0 for an empty entry.
    pub pkeys: Vec<PKey>,
    /// Largest payload that its link takes.
    pub mtu: Mtu,
    /// The subnet manager asks for everything to be registered anew: groups are joined again.
    pub client_reregister: bool,
}

impl Default for IbPort {
    fn default() -> IbPort {
        IbPort {
            active: false,
            unplugged: false,
            lid: Lid(0),
            lmc: 0,
            sm_lid: Lid(0),
            sm_sl: 0,
            gid_prefix: Gid::DEFAULT_PREFIX,
            pkeys: vec![PKey::DEFAULT],
            mtu: Mtu::M4096,
            client_reregister: false,
        }
    }
}

impl IbPort {
    /// Whether a unicast LID is one of the port's.
    pub(crate) fn has_lid(&self, lid: Lid) -> bool {
        self.lid.0 != 0 && lid.0 & !self.path_bits_mask() == self.lid.0
    }

    /// The low bits of a LID that are the sender's or receiver's choice (IBTA §4.1.3).
    pub(crate) fn path_bits_mask(&self) -> u16 {
        (1 << self.lmc.min(7)) - 1
    }

    /// The way to subnet administration.
    fn administrator(&self) -> MadPath {
        let route =
            LocalRoute { slid: self.lid, dlid: self.sm_lid, sl: self.sm_sl, grh: false, static_rate: 0 };
        let nobody = IpAddr::from([0; 16]);
        MadPath::on(PathLink::Lrh(route), nobody, nobody, 0)
    }
}

/// What an InfiniBand device keeps beside what every device has.
pub(crate) struct IbState {
    pub(crate) port: IbPort,
    pub(crate) sa: SaClient,
    /// What the tokens of open questions to the administrator are for.
    pub(crate) asked: HashMap<u64, AskedFor>,
    pub(crate) last_token: u64,
    pub(crate) groups: BTreeMap<IpAddr, IbGroup>,
    /// Packets to groups with members here, which the port does not hear itself.
    pub(crate) looped: VecDeque<Vec<u8>>,
}

/// Who waits for an answer of the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedFor {
    Way(RouteToken, Gid),
    Join(IpAddr),
    /// Nothing follows.
    Leave,
}

impl IbState {
    pub(crate) fn new(tid_high: u32) -> IbState {
        IbState {
            port: IbPort::default(),
            sa: SaClient::new(tid_high),
            asked: HashMap::new(),
            last_token: 0,
            groups: BTreeMap::new(),
            looped: VecDeque::new(),
        }
    }

    /// Asks the administrator; the answer comes to `State::ib_run`.
    pub(crate) fn ask(&mut self, now: Option<Instant>, what: AskedFor, ask: Ask) {
        self.last_token += 1;
        self.asked.insert(self.last_token, what);
        self.sa.ask(now, self.last_token, ask);
    }
}

impl DeviceConfig {
    /// An InfiniBand device on the port with this GUID, known by `addresses` to those who connect by IP address, with
    /// everything else at its default; give it a seed of real entropy.
    pub fn infiniband(port_guid: Guid, addresses: Vec<IpAddr>) -> DeviceConfig {
        let gid = Gid::link_local(port_guid).to_ip();
        DeviceConfig {
            name: format!("ib:{port_guid}"),
            wire: crate::config::Wire::InfiniBand,
            gids: vec![crate::config::GidEntry::new(gid).of_type(GidType::Ib)],
            ip_names: addresses,
            node_guid: port_guid,
            ..DeviceConfig::default()
        }
    }

    /// The low half of an InfiniBand port's GIDs.
    fn port_guid(&self) -> Guid {
        self.gids.first().map_or(Guid(0), |gid| gid.gid().interface_id())
    }
}

impl State {
    /// The GID that the port has in its subnet.
    pub(crate) fn ib_gid(&self) -> Gid {
        let prefix = self.ib.as_ref().map_or(Gid::DEFAULT_PREFIX, |ib| ib.port.gid_prefix);
        let bytes = u128::from(prefix) << 64 | u128::from(self.config.port_guid().0);
        Gid(bytes.to_be_bytes())
    }

    /// Whether a GID is the port's: by its subnet's prefix, or by the default one (IBTA §4.1.1).
    fn is_ib_gid(&self, gid: Gid) -> bool {
        gid == self.ib_gid() || gid == Gid::link_local(self.config.port_guid())
    }

    /// Whether an address is one of the device's: a GID, or a name.
    pub(crate) fn is_ib_address(&self, ip: IpAddr) -> bool {
        self.config.ip_names.contains(&ip) || self.is_ib_gid(Gid::from(ip))
    }

    /// Whether an address is the GID of a port of this subnet.
    pub(crate) fn is_subnet_gid(&self, ip: IpAddr) -> bool {
        let prefix = Gid::from(ip).subnet_prefix();
        ip.is_ipv6() && (prefix == Gid::DEFAULT_PREFIX || prefix == self.ib_gid().subnet_prefix())
    }

    /// The address that connections to `dst` are made from: the name of its family, or the GID.
    pub(crate) fn ib_name_for(&self, dst: IpAddr) -> IpAddr {
        let gid = self.ib_gid().to_ip();
        if self.is_subnet_gid(dst) {
            return gid;
        }
        let mut names = self.config.ip_names.iter();
        names.find(|name| name.is_ipv4() == dst.is_ipv4()).copied().unwrap_or(gid)
    }

    /// The port's agent reports what holds now.
    pub(crate) fn ib_port(&mut self, port: IbPort) {
        let Some(ib) = &mut self.ib else { return };
        let before = std::mem::replace(&mut ib.port, port);
        let after = ib.port.clone();
        let ways_changed = (before.lid, before.sm_lid, before.sm_sl, before.gid_prefix)
            != (after.lid, after.sm_lid, after.sm_sl, after.gid_prefix);
        if ways_changed || after.client_reregister {
            ib.sa.circumstances_changed();
            self.work = true;
        }
        let had_lid = before.lid.0 != 0;
        let events = [
            (had_lid && before.lid != after.lid, AsyncEvent::LidChange),
            (had_lid && before.sm_lid != after.sm_lid, AsyncEvent::SmChange),
            (before.gid_prefix != after.gid_prefix, AsyncEvent::GidChange),
            (before.pkeys != after.pkeys, AsyncEvent::PkeyChange),
            (after.client_reregister, AsyncEvent::ClientReregister),
        ];
        events.into_iter().filter(|(holds, _)| *holds).for_each(|(_, event)| self.core.raise(event));
        if after.lid.0 != 0 && (after.client_reregister || before.lid != after.lid) {
            self.ib_join_again();
        }
        self.set_port_state(if after.active { PortState::Active } else { PortState::Down });
    }

    /// LRH to VCRC. The VCRC is the port's affair, as everything that concerns the link.
    pub(crate) fn accept_infiniband(&mut self, now: Instant, bytes: &[u8]) -> Result<(), DeviceCounter> {
        let malformed = DeviceCounter::DropMalformed;
        let lrh = check_length(bytes).map_err(|_| malformed)?;
        let body = &bytes[..bytes.len() - VCRC_LEN];
        let (grh, packet) = match lrh.lnh {
            Lnh::IbaLocal => (None, &body[Lrh::LEN..]),
            Lnh::IbaGlobal => {
                let (grh, rest) = body[Lrh::LEN..].split_first_chunk().ok_or(malformed)?;
                let (grh, packet) = grh_and_packet(grh, rest)?;
                (Some(grh), packet)
            }
            Lnh::RawEthertype | Lnh::RawIpv6 => return Err(malformed),
        };
        check_packet_length(packet)?;
        self.check_ib_destination(&lrh, grh.as_ref())?;
        let (covered, icrc) = body.split_at(body.len() - ICRC_LEN);
        if icrc_ib(covered).is_none_or(|right| right.to_le_bytes() != icrc) {
            return Err(DeviceCounter::IcrcErrors);
        }
        let (before, meta) = (self.wrong_keys(), self.ib_meta(&lrh, grh.as_ref(), packet.len()));
        let done = self.dispatch(now, packet, &meta, 0);
        self.tell_wrong_keys(before, bytes);
        done
    }

    /// IBTA §9.6.1.2: one of our LIDs and one of our GIDs; or a group's LID, and then a GRH with the group.
    fn check_ib_destination(&self, lrh: &Lrh, grh: Option<&Grh>) -> Result<(), DeviceCounter> {
        let Some(ib) = &self.ib else { return Err(DeviceCounter::DropWrongAddress) };
        let ours = if lrh.dlid.0 >= FIRST_MULTICAST_LID {
            grh.is_some_and(|grh| grh.dgid.is_multicast())
        } else {
            ib.port.has_lid(lrh.dlid) && grh.is_none_or(|grh| self.is_ib_gid(grh.dgid))
        };
        if ours { Ok(()) } else { Err(DeviceCounter::DropWrongAddress) }
    }

    fn ib_meta(&self, lrh: &Lrh, grh: Option<&Grh>, length: usize) -> PacketMeta {
        let mask = self.ib.as_ref().map_or(0, |ib| ib.port.path_bits_mask());
        let none = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let route =
            LocalRoute { slid: lrh.slid, dlid: lrh.dlid, sl: lrh.sl, grh: grh.is_some(), static_rate: 0 };
        PacketMeta {
            link: PathLink::Lrh(route),
            src: grh.map_or(none, |grh| grh.sgid.to_ip()),
            dst: grh.map_or(none, |grh| grh.dgid.to_ip()),
            traffic_class: grh.map_or(0, |grh| grh.traffic_class),
            hop_limit: grh.map_or(0, |grh| grh.hop_limit),
            ip_id: 0,
            udp_payload_len: length as u16,
            flow_label: grh.map_or(0, |grh| grh.flow_label),
            dlid_path_bits: (lrh.dlid.0 & mask) as u8,
        }
    }

    /// Whether a P_Key is in the port's table, as QP1 wants it (IBTA C10-123).
    pub(crate) fn has_pkey(&self, pkey: PKey) -> bool {
        match &self.ib {
            None => PKey::DEFAULT.matches(pkey),
            Some(ib) => ib.port.pkeys.iter().any(|own| own.matches(pkey)),
        }
    }

    /// An entry of the partition table.
    pub(crate) fn pkey_at(&self, index: u16) -> Option<PKey> {
        match &self.ib {
            None => (index == 0).then_some(PKey::DEFAULT),
            Some(ib) => ib.port.pkeys.get(usize::from(index)).copied().filter(|pkey| pkey.base() != 0),
        }
    }

    /// A MAD of another class than connection management; whether it was the administrator's.
    pub(crate) fn ib_handle_mad(&mut self, now: Instant, mad: &[u8; MAD_LEN]) -> bool {
        let Some(ib) = &mut self.ib else { return false };
        if mad[1] != class::SUBN_ADM {
            return false;
        }
        ib.sa.handle_mad(now, mad);
        self.ib_run(now);
        true
    }

    /// The next MAD to the administrator.
    pub(crate) fn ib_poll_transmit(&mut self, now: Instant) -> Option<(MadPath, [u8; MAD_LEN])> {
        let ib = self.ib.as_mut()?;
        if !ib.port.active {
            return None; // asked anew when it is
        }
        let mad = ib.sa.poll_transmit(now)?;
        Some((ib.port.administrator(), *mad))
    }

    /// Packets to groups that have members on this very port.
    pub(crate) fn ib_loop_back(&mut self, now: Instant) {
        while let Some(packet) = self.ib.as_mut().and_then(|ib| ib.looped.pop_front()) {
            self.receive_frame(now, crate::drive::Frame::InfiniBand(&packet));
        }
    }

    /// When the administrator is to be asked again.
    pub(crate) fn ib_poll_timeout(&self) -> Option<Instant> {
        self.ib.as_ref()?.sa.poll_timeout()
    }

    /// Time has passed.
    pub(crate) fn ib_handle_timeout(&mut self, now: Instant) {
        let Some(ib) = &mut self.ib else { return };
        ib.sa.handle_timeout(now);
        self.ib_run(now);
    }

    /// Draws the consequences of what the administrator has said.
    pub(crate) fn ib_run(&mut self, now: Instant) {
        while let Some((token, answer)) = self.ib.as_mut().and_then(|ib| ib.sa.poll_answer()) {
            let asked = self.ib.as_mut().and_then(|ib| ib.asked.remove(&token));
            match asked {
                Some(AskedFor::Way(token, dgid)) => self.ib_way_answered(now, token, dgid, answer),
                Some(AskedFor::Join(mgid)) => self.ib_joined(now, mgid, answer),
                Some(AskedFor::Leave) | None => {}
            }
        }
    }
}
