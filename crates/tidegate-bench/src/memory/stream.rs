//! Streams of keys, packed one after the other as in a request buffer.

use std::sync::Arc;

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draw {
    /// All keys are equally frequent.
    Uniform,
    /// The n-th most popular key is 1/n as frequent as the most popular one.
    Zipf,
}

/// A stream of keys that repeats endlessly.
#[derive(Clone)]
pub(super) struct Stream {
    bytes: Arc<[u8]>,
    ends: Arc<[u32]>,
}

const LENGTH: usize = 1 << 20;

impl Stream {
    pub(super) fn draw(draw: Draw, keys: u64, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let zipf = (draw == Draw::Zipf).then(|| Zipf::new(keys));
        let numbers = (0..LENGTH).map(|_| match &zipf {
            Some(zipf) => scattered(zipf.draw(&mut random), keys),
            None => random.u64(0..keys),
        });
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for number in numbers {
            bytes.extend_from_slice(key(number).as_bytes());
            ends.push(
                u32::try_from(bytes.len()).expect("a stream of a million keys is below 4 GiB"),
            );
        }
        Self {
            bytes: bytes.into(),
            ends: ends.into(),
        }
    }

    /// Returns an endless iterator over the keys, starting at `from`.
    pub(super) fn walk(&self, from: usize) -> impl Iterator<Item = &str> {
        let text = std::str::from_utf8(&self.bytes).expect("keys are text");
        let mut at = from % self.ends.len();
        let mut start = if at == 0 {
            0
        } else {
            self.ends[at - 1] as usize
        };
        std::iter::from_fn(move || {
            if at == self.ends.len() {
                (at, start) = (0, 0);
            }
            let end = self.ends[at] as usize;
            let key = &text[start..end];
            (at, start) = (at + 1, end);
            Some(key)
        })
    }
}

pub(super) fn key(number: u64) -> String {
    format!("user:{number:06}")
}

/// Scatters ranks over the keys, so that the popular keys are not those filled first.
fn scattered(rank: u64, keys: u64) -> u64 {
    ((u128::from(rank.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * u128::from(keys)) >> 64) as u64
}

struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(keys: u64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=keys)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        Self { cumulative }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        let total = self.cumulative.last().copied().unwrap_or(0.0);
        let at = random.f64() * total;
        self.cumulative.partition_point(|sum| *sum < at) as u64
    }
}
