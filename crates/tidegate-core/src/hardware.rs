//! Processor features and memory that safe Rust cannot express: the time stamp counter,
//! prefetching, AES, and zeroed memory that is not touched before use.
//!
//! This file holds all of Tidegate's `unsafe` code. Every use has its proof beside it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::ptr::NonNull;

use bytemuck::Zeroable;

/// A slice of zeroes whose pages the system maps on first use, whatever the alignment of the items.
///
/// A `Vec` of items with a larger alignment than the allocator's own is written from end to end
/// when it is created.
#[cfg_attr(tidegate_loom, allow(dead_code))]
pub(crate) struct Zeroes<T> {
    allocated: NonNull<u8>,
    layout: Layout,
    items: NonNull<T>,
    length: usize,
}

#[cfg_attr(tidegate_loom, allow(dead_code))]
impl<T: Zeroable> Zeroes<T> {
    /// The alignment that every allocator provides.
    const ALIGNED_ANYWAY: usize = 16;

    /// Allocates the slice. Returns `None` if there is not enough memory.
    pub(crate) fn new(length: usize) -> Option<Self> {
        const { assert!(size_of::<T>() > 0 && !std::mem::needs_drop::<T>()) };
        let bytes = size_of::<T>()
            .checked_mul(length)?
            .checked_add(align_of::<T>())?;
        let layout = Layout::from_size_align(bytes, Self::ALIGNED_ANYWAY).ok()?;
        // SAFETY: the layout's size is not zero, since it has room for an alignment, which is at
        // least 1.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let padding = allocated.as_ptr().align_offset(align_of::<T>());
        if padding > align_of::<T>() {
            // SAFETY: allocated just now with this layout. (An offset that cannot be computed
            // cannot be used.)
            unsafe { dealloc(allocated.as_ptr(), layout) };
            return None;
        }
        // SAFETY: the padding is at most one alignment, which the allocation has beyond the items,
        // so the pointer stays within its bounds.
        let items = unsafe { allocated.add(padding) }.cast::<T>();
        Some(Self {
            allocated,
            layout,
            items,
            length,
        })
    }
}

impl<T> Deref for Zeroes<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `items` is aligned, and `length` items from there on are within the allocation,
        // which lives as long as `self`. They were zeroed, and zeroes are a valid `T`: only `new`
        // creates this type, for `T: Zeroable`. The allocation is not shared, and only shared
        // references into it are handed out.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr(), self.length) }
    }
}

impl<T> Drop for Zeroes<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here. `T` needs no drop, as
        // `new` asserts.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) };
    }
}

// SAFETY: the type owns its items as a boxed slice would, so it is `Send` when they are.
unsafe impl<T: Send> Send for Zeroes<T> {}
// SAFETY: as above; only shared references to the items are handed out.
unsafe impl<T: Sync> Sync for Zeroes<T> {}

/// Returns `true` if the time stamp counter runs at a constant rate in every power state.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_steady_counter() -> bool {
    use core::arch::x86_64::__cpuid;
    // SAFETY: every x86-64 processor has the CPUID instruction and answers leaf 0x8000_0000, which
    // names the highest leaf. The second call therefore only asks for a leaf that exists.
    #[allow(unused_unsafe)] // A safe function in newer compilers.
    let power = unsafe {
        if __cpuid(0x8000_0000).eax < 0x8000_0007 {
            0
        } else {
            __cpuid(0x8000_0007).edx
        }
    };
    const INVARIANT_TSC: u32 = 1 << 8;
    power & INVARIANT_TSC != 0
}

/// Reads the time stamp counter. The value is meaningless unless [`has_steady_counter`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn counter() -> u64 {
    // SAFETY: RDTSC reads a register, touches no memory, and is part of every x86-64 processor. A
    // kernel may forbid it to user space (prctl PR_SET_TSC); the process then ends with a signal,
    // as for a forbidden system call.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Other architectures have no counter that user space can read uniformly: the clock asks the
/// system each time.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_steady_counter() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn counter() -> u64 {
    0
}

/// Prefetches the 128 bytes at `line` for writing. This is a hint and changes nothing.
#[inline]
pub(crate) fn prefetch<T>(line: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        let first = std::ptr::from_ref(line).cast::<i8>();
        // SAFETY: a prefetch never faults, whatever the address, and neither reads nor writes as
        // far as the language is concerned. The second address is computed without using the
        // reference's provenance.
        unsafe {
            _mm_prefetch::<_MM_HINT_ET0>(first);
            _mm_prefetch::<_MM_HINT_ET0>(first.wrapping_add(64));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The processor's AES, used as a keyed hash of 16 bytes.
#[derive(Clone)]
pub(crate) struct BlockCipher {
    #[cfg(target_arch = "x86_64")]
    round_keys: [core::arch::x86_64::__m128i; Self::KEYS],
}

impl BlockCipher {
    /// The number of round keys. AES-128 has ten rounds and one key before them. Each key is random
    /// here; there is no key schedule.
    pub(crate) const KEYS: usize = 11;

    /// Creates the cipher. Returns `None` if the processor has no AES.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn new(round_keys: [u128; Self::KEYS]) -> Option<Self> {
        let is_there = std::arch::is_x86_feature_detected!("aes");
        is_there.then(|| Self {
            round_keys: round_keys.map(to_vector),
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn new(_round_keys: [u128; Self::KEYS]) -> Option<Self> {
        None
    }

    /// Hashes a block. Returns half of the block after six rounds, and the other half after all
    /// ten.
    ///
    /// The first half only selects a place in the table, so it can be used before the rest is
    /// computed. The second half distinguishes keys with the same place.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn hash(&self, block: u128) -> (u64, u64) {
        // SAFETY: `new` creates a cipher only if the processor has AES.
        unsafe { hash(&self.round_keys, block) }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn hash(&self, block: u128) -> (u64, u64) {
        (block as u64, (block >> 64) as u64) // Never called: there is no cipher.
    }
}

#[cfg(target_arch = "x86_64")]
fn to_vector(number: u128) -> core::arch::x86_64::__m128i {
    // SAFETY: both types have 16 bytes, and every bit pattern is valid for both.
    unsafe { std::mem::transmute(number) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "aes")]
fn hash(round_keys: &[core::arch::x86_64::__m128i; BlockCipher::KEYS], block: u128) -> (u64, u64) {
    use core::arch::x86_64::{_mm_aesenc_si128, _mm_aesenclast_si128, _mm_xor_si128};
    let [first, early @ .., seventh, eighth, ninth, last] = round_keys;
    let whitened = _mm_xor_si128(to_vector(block), *first);
    let early = early
        .iter()
        .fold(whitened, |state, key| _mm_aesenc_si128(state, *key));
    let late = [seventh, eighth, ninth]
        .into_iter()
        .fold(early, |state, key| _mm_aesenc_si128(state, *key));
    let late = _mm_aesenclast_si128(late, *last);
    (to_number(early) as u64, (to_number(late) >> 64) as u64)
}

#[cfg(target_arch = "x86_64")]
fn to_number(vector: core::arch::x86_64::__m128i) -> u128 {
    // SAFETY: both types have 16 bytes, and every bit pattern is valid for both.
    unsafe { std::mem::transmute(vector) }
}
