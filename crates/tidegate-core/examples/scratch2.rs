use std::hint::black_box; use tidegate_core::*;
fn main(){ let mc=ManualClock::new(); let l2=Limiter::new(MemoryStore::builder().max_keys(1000).clock(mc).build().unwrap(), "2/minute burst=100_000_000".parse().unwrap()); let k=String::from("user:000042");
 for _ in 0..10000 { let _=black_box(&l2.check(black_box(&k)).now()); } }
