//! What a step's bookkeeping costs: printed with `--nocapture`.

use std::time::Instant;

use foretoken_paged::{Paged, PagedOptions};
use foretoken_plugin_api::{KvManager, SeqId};

#[test]
fn reserve_and_commit_of_256_sequences_cost_microseconds() {
    const STEPS: u32 = 200;
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        let mut kv = Paged::with_slots(&PagedOptions::default(), 256 * 1024).unwrap();
        (0..256).for_each(|id| drop(kv.admit(SeqId(id), &[])));
        let start = Instant::now();
        for step in 0..STEPS {
            for id in (0..256).map(SeqId) {
                kv.reserve(id, 6).unwrap();
                let kept = [&[0, 1, 2][..], &[0], &[0, 2, 4, 5]][step as usize % 3];
                kv.commit(id, kept, &[0; 4][..kept.len()]).unwrap();
            }
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(STEPS));
        kv.check().unwrap();
    }
    println!("paged: {:.2} us to reserve and commit 6 rows each of 256 sequences", best * 1e6);
    assert!(best < 500e-6, "{best} s");
}
