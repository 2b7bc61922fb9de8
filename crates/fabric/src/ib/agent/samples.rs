//! Sampling of a port's counters over an interval: PortSamplesControl and PortSamplesResult.
//!
//! Read IBTA §16.1.3.2 and §16.1.3.4 first. One mechanism a node. A SET waits SampleStart ticks, counts for SampleInterval
//! ticks and keeps the differences; one that comes while a sample is on changes nothing. The five mandatory counters are
//! there, in the first five places.

use everywire_wire::mad::status;
use everywire_wire::perf::{PortSamplesControl, PortSamplesResult, sample_select, sample_status};

use super::pma::TICK_NS;
use crate::clock::SimTime;
use crate::ib::counters::Counters;
use crate::ib::events::Next;
use crate::ib::subnet::Subnet;

/// Places that take a counter.
const PLACES: usize = 5;
/// CounterMasks: those places take the mandatory counters (three bits each, the first place leftmost of 30).
const MASKS: u32 = 0b001_001_001_001_001 << 15;
/// CounterWidth: 32 bits.
const WIDTH: u8 = 4;

/// The sample that was asked for last.
#[derive(Debug, Default)]
pub(super) struct Sample {
    asked: PortSamplesControl,
    /// When counting begins and ends.
    span: (SimTime, SimTime),
    /// One of [`sample_status`].
    status: u8,
    /// Port that is sampled, and what it had counted when that began.
    port: u32,
    before: [u64; PLACES],
    result: [u32; PLACES],
}

impl Subnet {
    pub(super) fn samples_control(
        &mut self,
        now: SimTime,
        index: u32,
        set: bool,
        data: &mut [u8; 192],
    ) -> Result<(), u16> {
        let asked = PortSamplesControl::parse(data).map_err(|_| status::INVALID_FIELD)?;
        let node = self.ports[index as usize].node;
        let port = self.one_port(index, asked.port_select)?;
        if set && self.nodes[node as usize].agent.sample.status == sample_status::DONE {
            let known = |select: &u16| *select <= sample_select::XMIT_WAIT;
            if !asked.counter_select[..PLACES].iter().all(known) {
                return Err(status::INVALID_FIELD);
            }
            let begins = SimTime::from_nanos(now.as_nanos() + u64::from(asked.sample_start) * TICK_NS);
            let ends = SimTime::from_nanos(begins.as_nanos() + u64::from(asked.sample_interval) * TICK_NS);
            let status = sample_status::STARTED;
            let span = (begins, ends);
            self.nodes[node as usize].agent.sample =
                Sample { asked, span, status, port, ..Sample::default() };
            self.events.push(begins, Next::Sample { node });
        }
        let sample = &self.nodes[node as usize].agent.sample;
        *data = [0; 192];
        let mut counter_select = [0; 15];
        counter_select[..PLACES].copy_from_slice(&sample.asked.counter_select[..PLACES]);
        PortSamplesControl {
            port_select: asked.port_select,
            counter_width: WIDTH,
            counter_masks0to9: MASKS,
            sample_status: sample.status,
            sample_start: sample.asked.sample_start,
            sample_interval: sample.asked.sample_interval,
            tag: sample.asked.tag,
            counter_select,
            ..PortSamplesControl::default()
        }
        .emit(data);
        Ok(())
    }

    pub(super) fn samples_result(&self, index: u32, data: &mut [u8; 192]) {
        let sample = &self.node_of(index).agent.sample;
        let mut counters = [0; 15];
        counters[..PLACES].copy_from_slice(&sample.result);
        *data = [0; 192];
        let (tag, sample_status) = (sample.asked.tag, sample.status);
        PortSamplesResult { tag, sample_status, counters, ..PortSamplesResult::default() }.emit(data);
    }

    fn one_port(&self, index: u32, select: u8) -> Result<u32, u16> {
        match self.selected(index, select)?[..] {
            [port] => Ok(port),
            _ => Err(status::INVALID_FIELD),
        }
    }

    /// A sample begins, or ends.
    pub(in crate::ib) fn take_sample(&mut self, now: SimTime, node: u32) {
        let sample = &mut self.nodes[node as usize].agent.sample;
        let selects = sample.asked.counter_select;
        let counters = &self.ports[sample.port as usize].counters;
        let values: [u64; PLACES] = std::array::from_fn(|n| counted(counters, selects[n]));
        let (begins, ends) = sample.span;
        // What belongs to a sample that a loss of power has ended finds nothing to do.
        match sample.status {
            sample_status::STARTED if begins <= now => {
                (sample.status, sample.before) = (sample_status::RUNNING, values);
                self.events.push(ends, Next::Sample { node });
            }
            sample_status::RUNNING if ends <= now => {
                sample.status = sample_status::DONE;
                let difference = |n: usize| values[n].saturating_sub(sample.before[n]);
                sample.result = std::array::from_fn(|n| u32::try_from(difference(n)).unwrap_or(u32::MAX));
            }
            _ => {}
        }
    }
}

fn counted(c: &Counters, select: u16) -> u64 {
    match select {
        sample_select::XMIT_DATA => c.xmit_words,
        sample_select::RCV_DATA => c.rcv_words,
        sample_select::XMIT_PACKETS => c.xmit_packets,
        sample_select::RCV_PACKETS => c.rcv_packets,
        sample_select::XMIT_WAIT => c.xmit_wait_ns / TICK_NS,
        _ => 0,
    }
}
