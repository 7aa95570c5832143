use std::hint::black_box; use std::time::Instant;
use tidegate_core::*;
fn t(name:&str, per: f64, mut f: impl FnMut()){ for _ in 0..(3e6/per) as u64 {f()} let mut best=f64::MAX; for _ in 0..9 { let n=(1e6/per) as u64; let s=Instant::now(); for _ in 0..n {f()} best=best.min(s.elapsed().as_nanos() as f64/n as f64/per);} println!("{name}: {best:.2} ns"); }

fn main(){
  let c=Clock::system(); t("clock", 1., ||{black_box(c.now());});
  let p=std::env::args().nth(1).unwrap_or("2/minute burst=100_000_000".into());
  let l=Limiter::memory(p.parse().unwrap());
  let k=String::from("user:000042");
  t("check", 1., ||{let _ = black_box(&l.check(black_box(&k)).now());});
  let mc=ManualClock::new(); let l2=Limiter::new(MemoryStore::builder().clock(mc).build().unwrap(), p.parse().unwrap());
  t("check manual clock",1., ||{let _ = black_box(&l2.check(black_box(&k)).now());});
  let reqs:Vec<(String,Cost)>=(0..32).map(|i|(format!("user:{i:06}"),Cost::ONE)).collect(); let mut d=vec![]; t("batch",32., ||{d.clear(); l.check_many(black_box(&reqs)).now_into(&mut d).unwrap(); black_box(&d);});
}
