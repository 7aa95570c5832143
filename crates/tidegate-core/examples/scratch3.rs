use std::hint::black_box; use std::time::Instant;
use tidegate_core::*;
fn main(){
  let n:u64=1_000_000;
  let keys:Vec<[u8;11]>=(0..n).map(|i|{let mut a=[0u8;11]; a.copy_from_slice(format!("user:{i:06}").as_bytes()); a}).collect();
  let mut order:Vec<[u8;11]>=Vec::new(); let mut x=12345u64; for _ in 0..1<<20 { x=x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); order.push(keys[((x>>33)%n) as usize]); }
  for mk in [1_000_000u64, 1_600_000, 4_000_000] {
  for manual in [true,false] {
  let b=MemoryStore::builder().max_keys(mk); let b= if manual {b.clock(ManualClock::new())} else {b};
  let l=Limiter::new(b.build().unwrap(), "2/minute burst=100_000_000".parse().unwrap());
  for k in &keys { let _=black_box(&l.check(k).now()); }
  print!("max_keys {mk} manual {manual} evictions {}:", l.store().stats().evictions);
  let mut best=f64::MAX; for _ in 0..5 { let s=Instant::now(); for k in &order { let _=black_box(&l.check(k).now()); } best=best.min(s.elapsed().as_nanos() as f64/order.len() as f64);} 
  let mut d=vec![]; let mut bb=f64::MAX; for _ in 0..5 { let s=Instant::now(); for c in order.chunks(32) { let r:[(&[u8;11],Cost);32]=std::array::from_fn(|i|(&c[i],Cost::ONE)); d.clear(); l.check_many(&r).now_into(&mut d).unwrap(); black_box(&d);} bb=bb.min(s.elapsed().as_nanos() as f64/order.len() as f64);} 
  println!(" single {best:.1} batch {bb:.1}"); }}
}
