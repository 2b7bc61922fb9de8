//! Connecting through the connection manager, in the middle of all the rest.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_verbs::{ConnParam, ConnectOptions, ListenOptions, RejReason};

use super::connection::Connection;
use super::rig::Rig;
use crate::checkers::Violation;
use crate::violation;
use crate::world::HostId;

/// Connecting may take this long, with a network that loses a lot.
const CONNECT_LIMIT: Duration = Duration::from_secs(120);
/// Connection `n` is accepted at this port plus `n`.
const FIRST_PORT: u16 = 7000;

impl Rig {
    /// End 0 connects to end 1; both end up in RTS. False when the peer still had a connection to a queue pair of the same
    /// number, from before this host was restarted (it says so, and forgets that one), or when TCP gave up: the attempt has to be
    /// made again.
    pub fn connect_by_manager(
        &mut self,
        connection: &mut Connection,
        index: usize,
    ) -> Result<bool, Violation> {
        let [client, server] = [0, 1].map(|side| &connection.ends[side]);
        let address = SocketAddr::new(self.plan.ips[server.host], FIRST_PORT + index as u16);
        let listener = self.nodes[server.host]
            .device
            .listen(address, ListenOptions::default())
            .map_err(|e| violation!("listening on {address}: {e}"))?;
        let plan = &connection.plan;
        let greeting = self.dice.bits().to_le_bytes();
        let param = ConnParam {
            responder_resources: plan.rd_atomic,
            initiator_depth: plan.rd_atomic,
            min_rnr_timer: plan.rnr_timer,
            rnr_retry_count: plan.rnr_retry,
            ack_timeout: Some(plan.timeout),
            ..ConnParam::with_private_data(greeting)
        };
        let (server_qp, server_param) = (server.qp.clone(), param.clone());
        let accepted = self.world.rt(HostId(server.host)).spawn(async move {
            let request = listener.next_request().await?;
            let heard = request.private_data().to_vec();
            request.accept(&server_qp, server_param).await.map(|connection| (connection, heard))
        });
        let options = ConnectOptions::new(address, &client.qp)
            .src(SocketAddr::new(self.plan.ips[client.host], 0))
            .param(param);
        let connecting = self.nodes[client.host].device.connect(options);
        let both = async move {
            let ours = connecting.await;
            if ours.is_err() {
                accepted.abort();
            }
            (ours, accepted.await)
        };
        let (ours, theirs) = self
            .world
            .block_on(CONNECT_LIMIT, both)
            .map_err(|e| violation!("connection {index} through the connection manager: {e}"))?;
        let gives_up = !self.traits().is_ib && self.plan.loses();
        let ours = match ours {
            Err(e) if e.reject_reason() == Some(RejReason::StaleConnection) => return Ok(false),
            // A network that loses a lot makes TCP give up.
            Err(_) if gives_up => return Ok(false),
            Err(e) => return Err(violation!("connecting to {address}: {e}")),
            Ok(ours) => ours,
        };
        let theirs = theirs.map_err(|e| violation!("the accepting task ended: {e}"))?;
        let (theirs, heard) = match theirs {
            Err(_) if gives_up => return Ok(false),
            Err(e) => return Err(violation!("accepting at {address}: {e}")),
            Ok(accepted) => accepted,
        };
        for private in [&heard, ours.private_data()] {
            crate::ensure!(
                private.starts_with(&greeting),
                "connection {index}: private data is {private:02x?}"
            );
        }
        connection.ends[0].cm = Some(ours);
        connection.ends[1].cm = Some(theirs);
        Ok(true)
    }
}
