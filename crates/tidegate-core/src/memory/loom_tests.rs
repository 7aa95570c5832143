//! Two threads on one line in every order, by loom. `cargo xtask test` runs this with `--cfg
//! tidegate_loom`.

use loom::sync::Arc;
use loom::thread;

use super::cache_line::{CacheLine, Kind, Slot};
use super::fingerprint::Fingerprint;

const KEY: Fingerprint = Fingerprint {
    low: 7,
    high: 9,
    tag: 5,
};

fn slot(time: u64, amount: u64) -> Slot {
    Slot {
        kind: Kind::Plain,
        time,
        amount,
    }
}

/// Explores all orders with at most three preemptions.
fn explore(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

/// Increments the slot in the way that a check does.
fn add_one(line: &CacheLine) {
    let (mut line, at) = line.lock_and_guess(KEY);
    line.visit();
    let at = at.unwrap();
    assert!(line.is_at_tagged(at, KEY));
    let Slot { time, amount, .. } = line.slot(at);
    assert_eq!(time, amount, "half of a write was seen");
    line.write(at, slot(time + 1, amount + 1));
}

#[test]
fn no_addition_is_lost_and_no_half_is_seen() {
    explore(|| {
        let line = Arc::new(CacheLine::new());
        line.lock().insert(2, KEY, slot(1, 1), 0);
        let other = Arc::clone(&line);
        let thread = thread::spawn(move || add_one(&other));
        add_one(&line);
        thread.join().unwrap();
        assert_eq!(line.lock().slot(2), slot(3, 3));
    });
}

#[test]
fn try_lock_fails_while_the_line_is_locked() {
    explore(|| {
        let line = Arc::new(CacheLine::new());
        line.lock().insert(0, KEY, slot(1, 1), 0);
        let other = Arc::clone(&line);
        let thread = thread::spawn(move || match other.try_lock() {
            Some(mut line) => {
                let Slot { time, amount, .. } = line.slot(0);
                line.write(0, slot(time + 1, amount + 1));
                1
            }
            None => 0,
        });
        add_one(&line);
        let added = thread.join().unwrap();
        assert_eq!(line.lock().slot(0), slot(2 + added, 2 + added));
    });
}

#[test]
fn the_second_of_two_inserts_finds_the_first() {
    explore(|| {
        let line = Arc::new(CacheLine::new());
        let insert = |line: &CacheLine| {
            let mut line = line.lock();
            match line.find(KEY) {
                Some(at) => {
                    let Slot { time, amount, .. } = line.slot(at);
                    line.write(at, slot(time + 1, amount + 1));
                }
                None => {
                    let at = line.vacancy().unwrap();
                    line.insert(at, KEY, slot(1, 1), 0);
                }
            }
        };
        let other = Arc::clone(&line);
        let thread = thread::spawn(move || insert(&other));
        insert(&line);
        thread.join().unwrap();
        let line = line.lock();
        assert_eq!(
            line.slots().map(|(_, slot)| slot).collect::<Vec<_>>(),
            [slot(2, 2)]
        );
    });
}
