//! Once tables have grown, keeping the books allocates nothing, sequences that come and go included.

#[path = "../../../counting.rs"]
mod counting;

use counting::allocations;
use foretoken_paged::{Paged, PagedOptions, Radix};
use foretoken_plugin_api::{KvManager, SeqId, Token};

const SLOTS: usize = 8192;
const SEQUENCES: u64 = 32;
/// Tokens at which a sequence ends.
const LONG: usize = 160;

/// Steps of sequences that draft, end and come back with other texts; `ids` grow, as in an engine.
fn steps(kv: &mut impl KvManager, ids: &mut [SeqId], count: u64) {
    for step in 0..count {
        for id in ids.iter_mut() {
            kv.reserve(*id, 6).unwrap();
            let kept = [&[0, 1, 2][..], &[0], &[0, 2, 4, 5]][(step + id.0) as usize % 3];
            let tokens = [step as Token, id.0 as Token, 7, 8];
            kv.commit(*id, kept, &tokens[..kept.len()]).unwrap();
            if kv.slots(*id).len() > LONG {
                kv.free(*id);
                *id = SeqId(id.0 + SEQUENCES);
                kv.admit(*id, &[1, 2, id.0 as Token]).unwrap();
            }
        }
    }
}

fn made_by(mut kv: impl KvManager) -> u64 {
    let mut ids: Vec<SeqId> = (0..SEQUENCES).map(SeqId).collect();
    for id in &ids {
        kv.admit(*id, &[1, 2, 3]).unwrap();
    }
    steps(&mut kv, &mut ids, 2000);
    let before = allocations();
    steps(&mut kv, &mut ids, 2000);
    let made = allocations() - before;
    kv.check().unwrap();
    made
}

#[test]
fn a_steady_step_allocates_nothing() {
    let options = PagedOptions::default();
    assert_eq!(made_by(Paged::with_slots(&options, SLOTS).unwrap()), 0, "paged");
    assert_eq!(made_by(Radix::with_slots(&options, SLOTS).unwrap()), 0, "radix");
    let before = allocations();
    drop(vec![0u8; 1000]);
    assert_eq!(allocations(), before + 1, "the counter counts");
}
