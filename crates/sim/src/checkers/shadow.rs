//! A model of one registered region: what every byte must be, and which bytes may be changing just now.
//!
//! Whoever asks for a write claims the range first, with the bytes that will be there. Outside claims every byte must be the known one; inside, a
//! byte is the old or the new one. A claim is settled by what the program was told: it happened, it did not, or nobody knows.
//! Claims do not overlap; a workload gives each operation ranges of its own.

use std::collections::BTreeMap;

use super::Violation;
use crate::{ensure, violation};

/// What a claim is settled as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The new bytes are there.
    Done,
    /// Nothing was written.
    NotDone,
    /// Each byte is the old or the new one; whatever is there becomes the known one.
    Unknown,
}

#[derive(Debug, Clone)]
enum Claim {
    /// These bytes are being written.
    Write(Vec<u8>),
    /// Anything may happen to these many bytes (a receive buffer of an unreliable service, whose content is
    /// undefined until it completes).
    Scribble(usize),
}

impl Claim {
    fn len(&self) -> usize {
        match self {
            Claim::Write(bytes) => bytes.len(),
            Claim::Scribble(len) => *len,
        }
    }
}

/// The model of one region.
#[derive(Debug, Clone)]
pub struct Shadow {
    name: String,
    known: Vec<u8>,
    claims: BTreeMap<usize, Claim>,
}

impl Shadow {
    /// A region of `len` zero bytes; `name` is for messages.
    pub fn new(name: impl Into<String>, len: usize) -> Self {
        Shadow { name: name.into(), known: vec![0; len], claims: BTreeMap::new() }
    }

    /// The bytes that must be at `offset` (old ones where a claim is open).
    pub fn known(&self, offset: usize, len: usize) -> &[u8] {
        &self.known[offset..offset + len]
    }

    /// The program itself wrote `bytes`.
    pub fn wrote(&mut self, offset: usize, bytes: &[u8]) {
        self.known[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Opens a claim: `bytes` are about to be written at `offset`.
    pub fn claim(&mut self, offset: usize, bytes: Vec<u8>) -> Result<(), Violation> {
        self.open(offset, Claim::Write(bytes))
    }

    /// Opens a claim under which anything may happen to `len` bytes.
    pub fn claim_scribble(&mut self, offset: usize, len: usize) -> Result<(), Violation> {
        self.open(offset, Claim::Scribble(len))
    }

    /// Closes the claim at `offset`, checking the region's bytes `actual` there (the claim's length of them).
    pub fn settle(&mut self, offset: usize, outcome: Outcome, actual: &[u8]) -> Result<(), Violation> {
        let Some(claim) = self.claims.remove(&offset) else {
            return Err(violation!("{}: no claim at {offset:#x} to settle", self.name));
        };
        let len = claim.len();
        ensure!(
            actual.len() == len,
            "{}: claim at {offset:#x} has {len} bytes, not {}",
            self.name,
            actual.len()
        );
        let old = &self.known[offset..offset + len];
        let wrong = match (&claim, outcome) {
            (Claim::Write(new), Outcome::Done) => first_difference(actual, new),
            (Claim::Write(_) | Claim::Scribble(_), Outcome::NotDone) => first_difference(actual, old),
            (Claim::Write(new), Outcome::Unknown) => first_stranger(actual, old, new),
            (Claim::Scribble(_), Outcome::Done | Outcome::Unknown) => None,
        };
        if let Some(at) = wrong {
            let expected = match (&claim, outcome) {
                (Claim::Write(new), Outcome::Done) => format!("{:#04x} (new)", new[at]),
                (Claim::Write(new), Outcome::Unknown) => format!("{:#04x} or {:#04x}", old[at], new[at]),
                _ => format!("{:#04x} (old)", old[at]),
            };
            return Err(violation!(
                "{}: after {outcome:?} of {len} bytes at {offset:#x}, byte {at} is {:#04x}, not {expected}",
                self.name,
                actual[at]
            ));
        }
        self.known[offset..offset + len].copy_from_slice(actual);
        Ok(())
    }

    /// Checks that the claimed bytes at `offset` are all there already, and leaves the claim open.
    pub fn landed(&self, offset: usize, actual: &[u8]) -> Result<(), Violation> {
        match self.claims.get(&offset) {
            Some(Claim::Write(new)) if new == actual => Ok(()),
            Some(Claim::Write(_)) => Err(violation!(
                "{}: a write at {offset:#x} was announced before its bytes were there",
                self.name
            )),
            _ => Err(violation!("{}: no write at {offset:#x} is under way", self.name)),
        }
    }

    /// Checks the whole region.
    pub fn verify(&self, actual: &[u8]) -> Result<(), Violation> {
        ensure!(
            actual.len() == self.known.len(),
            "{}: {} bytes, not {}",
            self.name,
            actual.len(),
            self.known.len()
        );
        let mut from = 0;
        for (&offset, claim) in &self.claims {
            self.verify_quiet(actual, from, offset)?;
            from = offset + claim.len();
            if let Claim::Write(new) = claim {
                let (got, old) = (&actual[offset..from], &self.known[offset..from]);
                if let Some(at) = first_stranger(got, old, new) {
                    return Err(violation!(
                        "{}: byte {:#x} is {:#04x}, neither old {:#04x} nor new {:#04x}",
                        self.name,
                        offset + at,
                        got[at],
                        old[at],
                        new[at]
                    ));
                }
            }
        }
        self.verify_quiet(actual, from, actual.len())
    }

    /// Claims that are open.
    pub fn open_claims(&self) -> usize {
        self.claims.len()
    }

    fn verify_quiet(&self, actual: &[u8], from: usize, to: usize) -> Result<(), Violation> {
        match first_difference(&actual[from..to], &self.known[from..to]) {
            None => Ok(()),
            Some(at) => Err(violation!(
                "{}: byte {:#x} is {:#04x}, not {:#04x}, and nobody was writing there",
                self.name,
                from + at,
                actual[from + at],
                self.known[from + at]
            )),
        }
    }

    fn open(&mut self, offset: usize, claim: Claim) -> Result<(), Violation> {
        let end = offset + claim.len();
        ensure!(end <= self.known.len(), "{}: claim {offset:#x}..{end:#x} is outside", self.name);
        if claim.len() == 0 {
            return Ok(()); // nothing can change; there is nothing to settle
        }
        let before = self.claims.range(..end).next_back();
        let clash = before.is_some_and(|(&start, other)| start + other.len() > offset);
        ensure!(!clash, "{}: claim {offset:#x}..{end:#x} overlaps another", self.name);
        self.claims.insert(offset, claim);
        Ok(())
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b {
        return None;
    }
    a.iter().zip(b).position(|(x, y)| x != y)
}

fn first_stranger(actual: &[u8], old: &[u8], new: &[u8]) -> Option<usize> {
    if actual == new || actual == old {
        return None;
    }
    (0..actual.len()).find(|&i| actual[i] != old[i] && actual[i] != new[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_lets_bytes_change_and_nothing_else() {
        let mut shadow = Shadow::new("r", 16);
        let mut memory = vec![0u8; 16];
        shadow.claim(4, vec![7; 4]).unwrap();
        memory[5] = 7; // half way
        shadow.verify(&memory).unwrap();
        memory[8] = 7; // one past the claim
        assert!(shadow.verify(&memory).unwrap_err().0.contains("nobody was writing"));
        memory[8] = 0;
        memory[6] = 9;
        assert!(shadow.verify(&memory).unwrap_err().0.contains("neither"));
        memory[6] = 0;
        assert!(shadow.clone().settle(4, Outcome::Done, &memory[4..8]).is_err());
        assert!(shadow.clone().settle(4, Outcome::NotDone, &memory[4..8]).is_err());
        shadow.settle(4, Outcome::Unknown, &memory[4..8]).unwrap();
        assert_eq!(shadow.known(4, 4), [0, 7, 0, 0]);
        assert_eq!(shadow.open_claims(), 0);
    }

    #[test]
    fn claims_do_not_overlap_and_stay_inside() {
        let mut shadow = Shadow::new("r", 16);
        shadow.claim(4, vec![1; 4]).unwrap();
        assert!(shadow.claim(7, vec![1; 2]).is_err());
        assert!(shadow.claim(2, vec![1; 3]).is_err());
        assert!(shadow.claim(2, vec![1; 8]).is_err());
        shadow.claim(8, vec![1; 8]).unwrap();
        shadow.claim(0, vec![1; 4]).unwrap();
        assert!(shadow.claim(16, vec![1]).is_err());
        shadow.claim(16, vec![]).unwrap();
        assert!(shadow.settle(5, Outcome::Done, &[1]).is_err());
    }

    #[test]
    fn scribbles_allow_anything_until_they_are_settled() {
        let mut shadow = Shadow::new("r", 8);
        shadow.claim_scribble(0, 4).unwrap();
        let memory = [9, 8, 7, 6, 0, 0, 0, 0];
        shadow.verify(&memory).unwrap();
        shadow.settle(0, Outcome::Unknown, &memory[..4]).unwrap();
        shadow.verify(&memory).unwrap();
        assert!(shadow.verify(&[0; 8]).is_err());
    }
}
