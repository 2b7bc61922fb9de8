//! What happens to the hosts while they work: killed, restarted, cut off for a while; InfiniBand's cables pulled and plugged in.

use std::time::Duration;

use everywire_fabric::network::{Change, Direction};

use everywire_verbs::Wire;

use super::rig::{Cable, Rig};
use crate::checkers::Violation;
use crate::checkers::completions::Excuses;
use crate::ib::TRUNKS;
use crate::world::HostId;

impl Rig {
    /// Cuts one direction or both of a host's link for up to 20 ms; the RC retries may or may not outlast it.
    pub fn cut_off(&mut self, host: usize) {
        let length = Duration::from_micros(self.dice.between(50, 20_000) as u64);
        if self.plan.wire == Wire::InfiniBand {
            return self.pull(host, length);
        }
        self.say(|| format!("host {host} is cut off for {length:?}"));
        let directions: &[Direction] = match self.dice.below(3) {
            0 => &[Direction::Forth],
            1 => &[Direction::Back],
            _ => &Direction::BOTH,
        };
        for &direction in directions {
            let now = self.world.now();
            self.world.schedule(now, HostId(host), direction, Change::Partition(true));
            self.world.schedule(now + length, HostId(host), direction, Change::Partition(false));
        }
    }

    /// Pulls a host's cable or one of those between the switches; the subnet manager sees it go, and come back.
    fn pull(&mut self, host: usize, length: Duration) {
        let trunk = self.dice.below(usize::from(TRUNKS)) as u8;
        let cable = if self.dice.chance(1, 2) { Cable::Host(host) } else { Cable::Trunk(trunk) };
        if self.pulled.iter().any(|(_, pulled)| *pulled == cable) {
            return;
        }
        self.say(|| format!("{cable:?} is out for {length:?}"));
        self.set_cut(cable, true);
        self.pulled.push((self.world.elapsed() + length, cable));
    }

    fn set_cut(&self, cable: Cable, cut: bool) {
        match cable {
            Cable::Host(host) => self.world.partition(HostId(host), cut),
            Cable::Trunk(trunk) => self.world.cut_trunk(trunk, cut),
        }
    }

    /// Plugs in what was pulled until `now`.
    pub fn plug_in(&mut self, now: Duration) {
        for (_, cable) in self.pulled.extract_if(.., |(until, _)| *until <= now).collect::<Vec<_>>() {
            self.say(|| format!("{cable:?} is in again"));
            self.set_cut(cable, false);
        }
    }

    /// Kills a host in the middle of everything, lets the others notice or not, and starts it again.
    pub fn kill_and_restart(&mut self, host: usize) -> Result<(), Violation> {
        self.say(|| format!("host {host} is killed"));
        self.world.kill(HostId(host));
        self.drop_datagrams(host);
        for connection in &mut self.connections {
            if connection.plan.hosts.contains(&host) {
                connection.broken = true;
                for end in &mut connection.ends {
                    end.excuse(Excuses {
                        retry: true,
                        flush: self.plan.wire == Wire::Iwarp,
                        ..Excuses::default()
                    });
                }
            }
        }
        let down = self.dice.between(0, 40);
        for _ in 0..down {
            self.tick(Duration::from_millis(2))?;
        }
        self.world.restart(HostId(host));
        let node = self.new_node(host)?;
        self.nodes[host] = node;
        self.open_datagrams(host)
    }
}
