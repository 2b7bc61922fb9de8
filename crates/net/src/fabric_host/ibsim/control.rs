//! Control messages of ibsim's clients: letting them in and out, and what their sysfs would say of their port.

use std::os::fd::AsFd;
use std::time::Instant;

use everywire_fabric::ib::PortId;
use everywire_wire::smp::attribute;
use rustix::net::{RecvFlags, SendFlags, connect, recv, sendto};

use super::super::built::Built;
use super::client::Client;
use super::message::{CONTROL_LEN, Connect, Control, DATA_LEN, PACKET_LEN, Request, answer, welcome};
use super::peer::{self, Datagram, Peer};
use super::server::{Ibsim, IbsimEvent, LOOK_EVERY, MAX_CLIENTS, NO_MESSAGE, OTHER_USER, address};

impl Ibsim {
    /// Answers control messages; whether there were any.
    pub(super) fn hear_control(&mut self, built: &mut Built, now: Instant) -> bool {
        let mut progress = false;
        // One byte more than a message has, so that a longer one is seen to be none.
        let mut bytes = [0; CONTROL_LEN + 1];
        while let Ok(Datagram { length, peer, from }) = peer::receive(self.control.as_fd(), &mut bytes) {
            progress = true;
            let message = &bytes[..length];
            let let_in = peer.filter(|peer| peer.is_let_in());
            if let_in.is_none() {
                self.stranger(now, "ctl", from.as_ref(), peer, OTHER_USER);
            } else if Control::parse(message).is_none() {
                self.stranger(now, "ctl", from.as_ref(), peer, NO_MESSAGE);
            }
            let Some(from) = from else { continue };
            let reply = match let_in {
                Some(peer) => self.reply(peer, message, built, now),
                None => answer(message, None),
            };
            let _ = sendto(&self.control, &reply, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &from);
        }
        progress
    }

    fn reply(&mut self, peer: Peer, message: &[u8], built: &mut Built, now: Instant) -> [u8; CONTROL_LEN] {
        match Control::parse(message) {
            Some(Control { request: Request::Connect(asked), .. }) => {
                match self.connect(peer, &asked, built) {
                    Ok(number) => welcome(message, number),
                    Err(error) => {
                        tracing::warn!(pid = peer.pid, "an ibsim client is refused: {error}");
                        answer(message, None)
                    }
                }
            }
            Some(Control { client, request }) => {
                let data = self.ask(client as usize, request, built, now);
                answer(message, data.as_ref().map(|data| &data[..]))
            }
            None => answer(message, None),
        }
    }

    fn connect(&mut self, peer: Peer, asked: &Connect, built: &Built) -> Result<u32, String> {
        let host = asked.host();
        let port = match host.as_str() {
            "" => built.host_ports().next().ok_or("there are no hosts")?,
            // A host with two ports is meant by its first.
            _ if host.contains('/') => built.port_id(built.plan.port(&host)?),
            _ => built.port_id(built.plan.port(&format!("{host}/1"))?),
        };
        if !built.host_ports().any(|own| own == port) {
            return Err(format!("{host} is no host"));
        }
        let free = self.slots.iter().position(|slot| slot.client.is_none());
        let index = free.ok_or(format!("there are {MAX_CLIENTS} clients already"))?;
        let slot = &mut self.slots[index];
        // What the client calls its process names its sockets, and nothing else: it may see itself by another number.
        let inbox = address(&self.name, &format!("in{}", asked.pid)).map_err(|e| e.to_string())?;
        connect(&slot.fd, &inbox).map_err(|e| format!("its socket {}:in{}: {e}", self.name, asked.pid))?;
        // What was meant for whoever had the place before.
        let mut stale = [0; PACKET_LEN];
        while recv(&slot.fd, &mut stale[..], RecvFlags::DONTWAIT).is_ok() {}
        slot.queue.clear();
        slot.client = Some(Client::new(index as u8, peer.pid, port, asked.is_sm));
        self.look_at.get_or_insert_with(|| Instant::now() + LOOK_EVERY);
        self.events.push(IbsimEvent::Connected { pid: peer.pid, port });
        Ok(index as u32)
    }

    /// A control message of a client.
    fn ask(
        &mut self,
        index: usize,
        request: Request,
        built: &mut Built,
        now: Instant,
    ) -> Option<[u8; DATA_LEN]> {
        let port = self.slots.get(index)?.client.as_ref()?.port;
        let mut data = [0; DATA_LEN];
        match request {
            Request::Connect(_) => {}
            Request::Disconnect => self.remove(index, built, now),
            Request::Port => {
                let values = built.subnet.port_values(port)?;
                data[..2].copy_from_slice(&values.lid.0.to_ne_bytes());
                data[2] = values.state;
            }
            // Vendor 0, part 0, hardware 0; the firmware's version is this program's.
            Request::Vendor => data[16..24].copy_from_slice(&1u64.to_ne_bytes()),
            Request::Gid => {
                let (values, guid) = (built.subnet.port_values(port)?, built.guid(port));
                data[..8].copy_from_slice(&values.gid_prefix.to_be_bytes());
                data[8..16].copy_from_slice(&guid.to_be_bytes());
            }
            Request::Guid => data[..8].copy_from_slice(&built.guid(port).to_be_bytes()),
            Request::NodeInfo => data = built.subnet.inspect(port, attribute::NODE_INFO, 0)?,
            Request::PortInfo(number) => {
                let number = if number == 0 { port.port } else { number };
                let port = PortId { port: number, ..port };
                data = built.subnet.inspect(port, attribute::PORT_INFO, number.into())?;
            }
            Request::SetIsSm(is_sm) => self.set_sm(index, is_sm, built, now),
            Request::Pkeys => {
                let values = built.subnet.port_values(port)?;
                for (place, pkey) in data.chunks_exact_mut(2).zip(&values.pkeys) {
                    place.copy_from_slice(&pkey.0.to_ne_bytes());
                }
            }
        }
        Some(data)
    }

    fn set_sm(&mut self, index: usize, is_sm: bool, built: &mut Built, now: Instant) {
        let Some(client) = &mut self.slots[index].client else { return };
        if std::mem::replace(&mut client.is_sm, is_sm) == is_sm {
            return;
        }
        let (pid, port) = (client.pid, client.port);
        built.subnet.set_sm(now, port, is_sm || self.sm_at(port).is_some());
        self.events.push(IbsimEvent::IsSm { pid, port, is_sm });
    }

    /// A client has left.
    pub(super) fn remove(&mut self, index: usize, built: &mut Built, now: Instant) {
        self.set_sm(index, false, built, now);
        let slot = &mut self.slots[index];
        slot.queue.clear();
        slot.blocked = false;
        if let Some(client) = slot.client.take() {
            self.events.push(IbsimEvent::Left { pid: client.pid, port: client.port });
        }
    }
}
