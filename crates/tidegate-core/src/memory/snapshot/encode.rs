//! Writes snapshots.

use std::hash::Hasher;
use std::io::{self, Write};

use siphasher::sip128::SipHasher13;

use super::DENIALS_AT;
use crate::algorithm::{BucketState, StepState};
use crate::identity::BucketNumbers;
use crate::memory::table::Entry;
use crate::record::Record;

/// A writer that computes the checksum of its output.
pub(super) struct ChecksumWriter<W> {
    pub(super) to: W,
    pub(super) sum: SipHasher13,
}

impl<W: Write> ChecksumWriter<W> {
    pub(super) fn new(to: W) -> Self {
        Self {
            to,
            sum: SipHasher13::new(),
        }
    }

    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.write(bytes);
        self.to.write_all(bytes)
    }

    pub(super) fn number(&mut self, number: u64) -> io::Result<()> {
        self.write_all(&number.to_le_bytes())
    }

    /// Writes the names, at most 255.
    pub(super) fn names(&mut self, names: &[Box<str>]) -> io::Result<()> {
        self.write_all(&[names.len() as u8])?;
        for name in names {
            self.number(name.len() as u64)?;
            self.write_all(name.as_bytes())?;
        }
        Ok(())
    }

    pub(super) fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        let Entry {
            fingerprint,
            slot,
            record,
            denials,
        } = entry;
        self.write_all(&[slot.kind as u8 | denials << DENIALS_AT, fingerprint.tag])?;
        self.number(fingerprint.low)?;
        self.number(fingerprint.high)?;
        self.number(slot.time)?;
        match record {
            None => self.number(slot.amount),
            Some(record) => {
                let states = record.as_states();
                self.number(states.len() as u64)?;
                states.iter().try_for_each(|state| self.state(state))
            }
        }
    }

    /// Writes a record on its own.
    pub(super) fn alone(&mut self, record: &Record) -> io::Result<()> {
        let states = record.as_states();
        self.write_all(&[states.len() as u8])?;
        states.iter().try_for_each(|state| self.state(state))
    }

    fn state(&mut self, state: &StepState) -> io::Result<()> {
        match state {
            StepState::Fresh => self.write_all(&[0]),
            StepState::Bucket(versions) => {
                let others = versions
                    .others
                    .as_deref()
                    .map_or(&[][..], |others| &others[..]);
                self.write_all(&[1, others.len() as u8])?;
                self.bucket(versions.numbers, versions.state)?;
                others
                    .iter()
                    .try_for_each(|(numbers, state)| self.bucket(*numbers, *state))
            }
            StepState::Window(state) => {
                self.write_all(&[2])?;
                self.number(state.end)?;
                self.number(state.count)
            }
            StepState::Counter(state) => {
                self.write_all(&[3])?;
                self.number(state.end)?;
                self.number(state.current)?;
                self.number(state.previous)
            }
            StepState::Log(state) => {
                let (base, entries) = state.parts();
                self.write_all(&[4])?;
                self.number(base)?;
                self.number(entries.len() as u64)?;
                for (at, total) in entries {
                    self.number(at)?;
                    self.number(total)?;
                }
                Ok(())
            }
        }
    }

    fn bucket(&mut self, numbers: BucketNumbers, state: BucketState) -> io::Result<()> {
        self.write_all(&numbers.to_bytes())?;
        self.write_all(&[state.denominator_tag])?;
        self.number(state.free_at)?;
        self.number(state.part)
    }
}
