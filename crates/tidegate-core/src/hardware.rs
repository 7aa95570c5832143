//! What the language has no safe words for: the processor's time stamp counter, its prefetch and its AES, and memory
//! that is not touched before it is used. All `unsafe` of Tidegate is in this file.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::ptr::NonNull;

use bytemuck::Zeroable;

/// A slice of zeroes whose pages the system hands out as they are first used, however the items are aligned. (A vector of
/// items that are aligned to more than the allocator does by itself is written over from end to end when it is made.)
#[cfg_attr(tidegate_loom, allow(dead_code))]
pub(crate) struct Zeroes<T> {
    allocated: NonNull<u8>,
    layout: Layout,
    items: NonNull<T>,
    length: usize,
}

#[cfg_attr(tidegate_loom, allow(dead_code))]
impl<T: Zeroable> Zeroes<T> {
    /// What every allocator aligns to by itself.
    const ALIGNED_ANYWAY: usize = 16;

    /// `None` if there is not the memory.
    pub(crate) fn new(length: usize) -> Option<Self> {
        const { assert!(size_of::<T>() > 0 && !std::mem::needs_drop::<T>()) };
        let bytes = size_of::<T>()
            .checked_mul(length)?
            .checked_add(align_of::<T>())?;
        let layout = Layout::from_size_align(bytes, Self::ALIGNED_ANYWAY).ok()?;
        // SAFETY: the layout's size is not zero, since it has room for an alignment, which is at least 1.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let padding = allocated.as_ptr().align_offset(align_of::<T>());
        if padding > align_of::<T>() {
            // SAFETY: allocated just now, with this layout. (An offset that cannot be told is none that we can use.)
            unsafe { dealloc(allocated.as_ptr(), layout) };
            return None;
        }
        // SAFETY: the padding is at most an alignment, which the allocation has beyond the items: within its bounds.
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
        // SAFETY: `items` is aligned, and `length` items from there on are within the allocation, which lives as long as
        // `self`. They were zeroed, and zeroes are a value of `T`: only `new` makes one of these, for `T: Zeroable`.
        // Nobody else has the allocation, and we only ever hand out shared references into it.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr(), self.length) }
    }
}

impl<T> Drop for Zeroes<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here. `T` has nothing to drop, as `new` asserts.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) };
    }
}

// SAFETY: it owns its items as a boxed slice would, so it may go where these may.
unsafe impl<T: Send> Send for Zeroes<T> {}
// SAFETY: as above; all that it hands out are shared references to its items.
unsafe impl<T: Sync> Sync for Zeroes<T> {}

/// Whether the time stamp counter counts at one rate through every state of power.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_steady_counter() -> bool {
    use core::arch::x86_64::__cpuid;
    // SAFETY: every x86-64 processor has the CPUID instruction, and 0x8000_0000 answers on every one: it names the
    // highest leaf there is, so the second call asks only for what exists.
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

/// Reads the counter. It means nothing unless [`has_steady_counter`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn counter() -> u64 {
    // SAFETY: RDTSC reads a register, touches no memory, and is part of every x86-64 processor. A kernel may forbid it
    // to user space (prctl PR_SET_TSC); it then ends the process with a signal, as a system call forbidden would.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// No counter that user space reads in one way on every other architecture: the clock asks the system each time.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_steady_counter() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn counter() -> u64 {
    0
}

/// Asks for the 128 bytes at `line` to be brought near, to be written soon. A hint: it changes nothing.
#[inline]
pub(crate) fn prefetch<T>(line: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        let first = std::ptr::from_ref(line).cast::<i8>();
        // SAFETY: a prefetch never faults, whatever the address, and neither reads nor writes as far as the language
        // is concerned. The second address is made without arithmetic on the reference's provenance.
        unsafe {
            _mm_prefetch::<_MM_HINT_ET0>(first);
            _mm_prefetch::<_MM_HINT_ET0>(first.wrapping_add(64));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The processor's AES, as a keyed hash of 16 bytes.
#[derive(Clone)]
pub(crate) struct BlockCipher {
    #[cfg(target_arch = "x86_64")]
    round_keys: [core::arch::x86_64::__m128i; Self::KEYS],
}

impl BlockCipher {
    /// AES-128 has ten rounds, and one key before them. Here each is drawn by itself: no schedule to derive them by.
    pub(crate) const KEYS: usize = 11;

    /// `None` where the processor has no AES.
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

    /// Half of the block after six of the ten rounds, and the other half after all ten: the first is there in half the
    /// time, for what is only a place to look at; the second tells keys apart that have the same place.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn hash(&self, block: u128) -> (u64, u64) {
        // SAFETY: a cipher is only ever made, in `new`, where the processor has AES.
        unsafe { hash(&self.round_keys, block) }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn hash(&self, block: u128) -> (u64, u64) {
        (block as u64, (block >> 64) as u64) // Never called: there is no cipher.
    }
}

#[cfg(target_arch = "x86_64")]
fn to_vector(number: u128) -> core::arch::x86_64::__m128i {
    // SAFETY: both are 16 bytes, and any 16 bytes are a value of either.
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
    // SAFETY: both are 16 bytes, and any 16 bytes are a value of either.
    unsafe { std::mem::transmute(vector) }
}
