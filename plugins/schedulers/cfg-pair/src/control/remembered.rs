//! What a policy remembers of each sequence in the queue, at the sequence's place there.
//!
//! A plan reads and a report writes all of them in every step, so they stand in the queue's order instead of in a map.

use foretoken_plugin_api::{QueueSequence, SeqId};

/// One `T` for each sequence of the last queue.
#[derive(Debug)]
pub struct Remembered<T> {
    entries: Vec<(SeqId, T)>,
    spare: Vec<(SeqId, T)>,
    /// Where the last one asked for stands: reports come nearly in the queue's order.
    last: usize,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), spare: Vec::new(), last: 0 }
    }
}

impl<T: Copy> Remembered<T> {
    /// Takes the places of `sequences`: who is gone is forgotten, who is new gets what `fresh` makes.
    pub fn follow(&mut self, sequences: &[QueueSequence], mut fresh: impl FnMut(&QueueSequence) -> T) {
        let same = |(sequence, entry): (&QueueSequence, &(SeqId, T))| sequence.id == entry.0;
        if sequences.len() == self.entries.len() && sequences.iter().zip(&self.entries).all(same) {
            return;
        }
        std::mem::swap(&mut self.entries, &mut self.spare);
        self.entries.clear();
        let mut next = 0;
        for sequence in sequences {
            let known = position(&self.spare, next, sequence.id);
            next = known.map_or(next, |place| place + 1);
            let value = known.map_or_else(|| fresh(sequence), |place| self.spare[place].1);
            self.entries.push((sequence.id, value));
        }
    }

    /// What is remembered of the sequence at a place of the queue.
    pub fn at(&self, place: usize) -> &T {
        &self.entries[place].1
    }

    /// The same, to be changed.
    pub fn at_mut(&mut self, place: usize) -> &mut T {
        &mut self.entries[place].1
    }

    /// What is remembered of a sequence, if it was in the queue.
    pub fn of(&mut self, id: SeqId) -> Option<&mut T> {
        self.last = position(&self.entries, self.last + 1, id)?;
        Some(&mut self.entries[self.last].1)
    }
}

/// Where `id` stands, looked for from `start` on and then before it.
fn position<T>(entries: &[(SeqId, T)], start: usize, id: SeqId) -> Option<usize> {
    let (before, behind) = entries.split_at(start.min(entries.len()));
    let is_it = |entry: &(SeqId, T)| entry.0 == id;
    behind.iter().position(is_it).map(|place| before.len() + place).or_else(|| before.iter().position(is_it))
}

#[cfg(test)]
mod tests {
    use foretoken_plugin_api::RequestId;
    use foretoken_plugin_api::types::plan::Companion;

    use super::*;

    fn queue(ids: &[u64]) -> Vec<QueueSequence> {
        let sequence = |id: &u64| QueueSequence {
            id: SeqId(*id),
            request: RequestId(*id),
            companion: Companion::NONE,
            priority: 0,
            uncomputed: 1,
            max_draft: 4,
            slots_held: 0,
            running: true,
        };
        ids.iter().map(sequence).collect()
    }

    #[test]
    fn values_stay_with_their_sequences() {
        let mut remembered = Remembered::default();
        let fresh = |sequence: &QueueSequence| sequence.id.0 * 10;
        remembered.follow(&queue(&[1, 2, 3]), fresh);
        *remembered.at_mut(1) = 7;
        // One gone, one new in front of one that stays: forks stand beside their parents.
        remembered.follow(&queue(&[2, 9, 3]), fresh);
        assert_eq!([0, 1, 2].map(|place| *remembered.at(place)), [7, 90, 30]);
        assert_eq!([3, 2, 9].map(|id| remembered.of(SeqId(id)).copied()), [Some(30), Some(7), Some(90)]);
        assert_eq!(remembered.of(SeqId(1)), None);
        remembered.follow(&queue(&[]), fresh);
        assert_eq!(remembered.of(SeqId(2)), None);
    }
}
