//! What happens to the hosts while they work: killed, restarted, cut off for a while.

use std::time::Duration;

use everywire_fabric::network::{Change, Direction};

use everywire_verbs::Wire;

use super::rig::Rig;
use crate::checkers::Violation;
use crate::checkers::completions::Excuses;
use crate::world::HostId;

impl Rig {
    /// Cuts one direction or both of a host's link for up to 20 ms; the RC retries may or may not outlast it.
    pub fn cut_off(&mut self, host: usize) {
        let length = Duration::from_micros(self.dice.between(50, 20_000) as u64);
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
