//! Reads snapshots. Rejects everything that no store could have written.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::{CHECKSUM_BYTES, DENIALS_AT, END, MAGIC, RestoreError, VERSION};
use crate::algorithm::{
    BucketState, BucketVersions, CounterState, LogState, MAX_ENTRIES, StepState, WindowState,
};
use crate::identity::BucketNumbers;
use crate::memory::cache_line::{AMOUNT_BITS, Kind, Slot};
use crate::memory::fingerprint::Fingerprint;
use crate::memory::table::Entry;
use crate::policy::MAX_LIMITS;
use crate::record::Record;

/// The largest count in thousandths: a limit and a debt of 10^9 each. A part of a nanosecond is
/// smaller.
const MAX_AMOUNT: u64 = 2_000_000_000_000;

/// The unread rest of a snapshot.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads a record on its own, without a checksum.
    pub(super) fn alone(bytes: &'a [u8]) -> Result<Record, RestoreError> {
        let mut reader = Reader(bytes);
        let states = u64::from(reader.byte()?);
        let record = reader.record(states)?;
        if reader.is_empty() {
            Ok(record)
        } else {
            Err(RestoreError::Damaged("it is too long"))
        }
    }

    /// Checks the magic bytes, the version and the checksum. Returns the rest.
    pub(super) fn checked(snapshot: &'a [u8]) -> Result<Self, RestoreError> {
        let length = snapshot
            .len()
            .checked_sub(CHECKSUM_BYTES)
            .ok_or(RestoreError::Damaged("it is too short"))?;
        let (content, checksum) = snapshot.split_at(length);
        let mut reader = Reader(content);
        if reader.array::<8>()? != *MAGIC {
            return Err(RestoreError::Damaged("wrong magic bytes"));
        }
        let version = u32::from_le_bytes(reader.array()?);
        if version != VERSION {
            return Err(RestoreError::Version(version));
        }
        let mut sum = SipHasher13::new();
        sum.write(content);
        if sum.finish128().as_bytes() != *checksum {
            return Err(RestoreError::Damaged("wrong checksum"));
        }
        Ok(reader)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let (head, rest) = self
            .0
            .split_first_chunk()
            .ok_or(RestoreError::Damaged("it ends too early"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn byte(&mut self) -> Result<u8, RestoreError> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, RestoreError> {
        self.array().map(u64::from_le_bytes)
    }

    fn amount(&mut self) -> Result<u64, RestoreError> {
        let amount = self.number()?;
        if amount > MAX_AMOUNT {
            Err(RestoreError::Damaged("an amount is too large"))
        } else {
            Ok(amount)
        }
    }

    pub(super) fn names(&mut self) -> Result<Vec<Box<str>>, RestoreError> {
        let count = self.byte()?;
        let mut names: Vec<Box<str>> = Vec::new();
        for _ in 0..count {
            let length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
            let (name, rest) = self
                .0
                .split_at_checked(length)
                .ok_or(RestoreError::Damaged("it ends too early"))?;
            self.0 = rest;
            let name = std::str::from_utf8(name)
                .map_err(|_| RestoreError::Damaged("a name is not text"))?;
            names.push(name.into());
        }
        Ok(names)
    }

    /// Reads the next entry. Returns `None` at the end.
    pub(super) fn entry(&mut self, group_count: usize) -> Result<Option<Entry>, RestoreError> {
        let first = self.byte()?;
        if first == END {
            return Ok(None);
        }
        let kind = match first & ((1 << DENIALS_AT) - 1) {
            1 => Kind::Plain,
            2 => Kind::Counter,
            3 => Kind::Record,
            _ => return Err(RestoreError::Damaged("an entry is of no known kind")),
        };
        let tag = self.byte()?;
        let fingerprint = Fingerprint {
            low: self.number()?,
            high: self.number()?,
            tag,
        };
        // An empty slot has the fingerprint 0, so an entry with it would not be counted.
        if fingerprint.is_zero() || usize::from(fingerprint.group().0) >= group_count {
            return Err(RestoreError::Damaged(
                "an entry has an impossible fingerprint",
            ));
        }
        let time = self.number()?;
        let amount = self.number()?;
        let record = match kind {
            // The amount of a record is the number of its states.
            Kind::Record => Some(self.record(amount)?),
            _ if amount >> AMOUNT_BITS != 0 => {
                return Err(RestoreError::Damaged("an amount is too large"));
            }
            _ => None,
        };
        let slot = Slot {
            kind,
            time,
            amount: if record.is_some() { 0 } else { amount },
        };
        Ok(Some(Entry {
            fingerprint,
            slot,
            record,
            denials: first >> DENIALS_AT & 3,
        }))
    }

    fn record(&mut self, states: u64) -> Result<Record, RestoreError> {
        if states > MAX_LIMITS as u64 {
            return Err(RestoreError::Damaged("an entry has too many limits"));
        }
        let states: Vec<StepState> = (0..states)
            .map(|_| self.state())
            .collect::<Result<_, _>>()?;
        Ok(Record::of_states(states))
    }

    fn state(&mut self) -> Result<StepState, RestoreError> {
        Ok(match self.byte()? {
            0 => StepState::Fresh,
            1 => {
                let other_count = self.byte()?;
                let (numbers, state) = self.bucket()?;
                let others: Vec<_> = (0..other_count)
                    .map(|_| self.bucket())
                    .collect::<Result<_, _>>()?;
                let others = (!others.is_empty()).then(|| Box::new(others));
                StepState::Bucket(BucketVersions {
                    numbers,
                    state,
                    others,
                })
            }
            2 => StepState::Window(WindowState {
                end: self.number()?,
                count: self.amount()?,
            }),
            3 => StepState::Counter(CounterState {
                end: self.number()?,
                current: self.amount()?,
                previous: self.amount()?,
            }),
            4 => StepState::Log(self.log()?),
            _ => return Err(RestoreError::Damaged("a state is of no known kind")),
        })
    }

    fn bucket(&mut self) -> Result<(BucketNumbers, BucketState), RestoreError> {
        let numbers = BucketNumbers::from_bytes(self.array()?);
        let denominator_tag = self.byte()?;
        Ok((
            numbers,
            BucketState {
                free_at: self.number()?,
                part: self.amount()?,
                denominator_tag,
            },
        ))
    }

    /// Reads a log: entries in order of time, with increasing running totals.
    fn log(&mut self) -> Result<LogState, RestoreError> {
        let (base, count) = (self.number()?, self.number()?);
        if count > MAX_ENTRIES as u64 {
            return Err(RestoreError::Damaged("a log is too long"));
        }
        let mut entries: Vec<(u64, u64)> = Vec::new();
        let (mut last_at, mut last_total) = (0, 0);
        for _ in 0..count {
            let (at, total) = (self.number()?, self.number()?);
            let so_far = total.wrapping_sub(base);
            if at < last_at || so_far < last_total || so_far > MAX_AMOUNT {
                return Err(RestoreError::Damaged("a log is out of order"));
            }
            (last_at, last_total) = (at, so_far);
            entries.push((at, total));
        }
        Ok(LogState::of_parts(base, entries))
    }
}
