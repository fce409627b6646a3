//! The keys and values of 32 attended tokens, for vectors and all queries that share them.
//!
//! Tokens behind a list's end are its last one again; what is not attended to gets no weight. Keys of floats are laid with
//! their tokens in the lanes, so that scores need no horizontal sum and one loaded vector serves several queries; values stay
//! token by token, or pair by pair. f32 and bf16 values are read where they lie: 8 queries and 520 cached f32 tokens take
//! two thirds of the time on a Xeon, 16 queries and 1,040 bf16 ones three quarters. Pairs and quads are made where they are
//! used for one group of queries, and once for more.
//!
//! Tiles are asked for two ahead, into the second-level cache: on Zen 4 requests for the first level, which can wait for
//! few lines at a time, brought 8,192 tokens at 18 GB/s instead of 31, and scattered ones at 13; unasked, 13 and 10. Where
//! `Words::ASKS_NEAR` says so, they are asked for again one ahead, into the first-level cache. Where `Simd::ASKS_TWICE` is
//! false they are asked for in the first-level cache alone, since asks are spread by now: on Zen 5 one thread takes 0.73 of the
//! time for 8 rows over 8,192 bf16 tokens. Zen 4, of the same level, was not measured again.
//!
//! Where slots lie one behind the other, as most do, what is asked for is the lines from the first to the last, with nothing to
//! look up: half as many requests for q8_0, whose rows of 68 bytes share lines. On Zen 5 one thread takes 0.91 to 0.96 of the
//! time for 8 rows over 8,192 tokens since this is so and a head's rows are found once a block.
//!
//! Requests are spread over all of a tile's work, since a core holds only so many: a key or a value at a time, between
//! words. Four or eight tokens between pieces of work kept the next loads waiting: on Emerald Rapids computing and reading
//! added up, and 8 rows over 8,192 bf16 tokens took 1.35 times as long; two f32 tokens at a time, 1.15 times.

use super::words::{Factors, Words};
use super::{AttendBlock, MOST_LINES, Scratch};
use crate::blocks::kv_store::{HeadLines, HeadRows};
use crate::bytes::Plain;
use crate::simd::{LANES, Line, Simd, Square};
use std::ops::Range;

/// Attended tokens of a tile.
pub(super) const TILE: usize = 2 * LANES;

/// Room for a tile.
pub(super) struct Tile<'a, E> {
    /// The head that has it.
    rows: HeadRows<'a, E>,
    head_dim: usize,
    /// Bytes from the first slot's key to those of its tokens.
    offsets: [usize; TILE],
    keys: Scratch<{ TILE * MOST_LINES }>,
    values: Scratch<{ TILE * MOST_LINES }>,
    /// Lines of a word of values.
    lines: usize,
    /// Whether values are made into words, or else left as they are stored.
    keeps: bool,
}

/// A part of a list.
pub(super) struct Gathered<'t, 'a, E> {
    /// Where they are laid, word by word: the first 16 tokens, and the last 16. Where there are fewer tokens, anything finite.
    pub keys: [&'t [Line]; 2],
    /// Keys and values as they are stored.
    pub key_rows: TokenRows<'t, E>,
    pub value_rows: TokenRows<'t, E>,
    pub values: Values<'t, E>,
    /// Whether no queries have taken it in.
    pub fresh: bool,
    pub next: Next<'a, E>,
}

/// Tiles that come, asked for bit by bit between other work: the processor takes only so many requests at a time.
pub(super) struct Next<'a, E> {
    /// The tile two ahead, as `Simd::prefetch_far` asks for it.
    far: Asked<'a, E>,
    /// The next one, which should be there, for the first-level cache, where it is asked for twice.
    near: Option<Asked<'a, E>>,
}

/// What is left to ask for of a tile.
struct Asked<'a, E> {
    /// Its slots in the context, as far as it goes.
    slots: std::slice::Iter<'a, u32>,
    /// The head that has them.
    rows: HeadRows<'a, E>,
    /// The slot whose key was asked for and whose value was not yet.
    half: Option<u32>,
    /// The cache lines of the slots, if they lie one behind the other: then there is nothing to look up.
    lines: Option<HeadLines>,
}

/// Slots in the context of the tile at `first`, as far as it goes, and the head that has them. Behind the context's end, which
/// was just written, it is one of the next head's, whose task is the thread's next.
#[inline(always)]
pub(super) fn tile_ahead<'a, E: Plain>(
    block: &AttendBlock<'a>,
    rows: HeadRows<'a, E>,
    first: usize,
) -> (&'a [u32], HeadRows<'a, E>) {
    let (context, head) = (block.seq.context, block.kv_head + 1);
    let part = |first: usize| &context[first.min(context.len())..context.len().min(first + TILE)];
    if first < context.len() || head == block.kv.shape().heads {
        return (part(first), rows);
    }
    let behind = (first - context.len()) / TILE * TILE;
    (part(block.first_tile() + behind), block.kv.rows(head))
}

impl<'a, E: Plain> Asked<'a, E> {
    /// The tile at `first`.
    #[inline(always)]
    fn new(block: &AttendBlock<'a>, rows: HeadRows<'a, E>, first: usize) -> Self {
        let (slots, rows) = tile_ahead(block, rows, first);
        let lines = slots.as_array::<TILE>().and_then(|slots| rows.lines(slots));
        Self { slots: slots.iter(), rows, half: None, lines }
    }

    /// Asks for `rows` more, keys and values in turn, or all that are left.
    #[inline(always)]
    fn ask(&mut self, rows: usize, ask: impl Fn(*const u8)) {
        if let Some(lines) = &mut self.lines {
            return lines.advance(rows, ask);
        }
        for _ in 0..rows {
            if let Some(slot) = self.half.take() {
                self.rows.for_lines(true, slot, &ask);
            } else if let Some(slot) = self.slots.next() {
                self.rows.for_lines(false, *slot, &ask);
                self.half = Some(*slot);
            } else {
                return;
            }
        }
    }
}

impl<'a, E: Plain> Next<'a, E> {
    /// The tiles behind the one at `first`.
    #[inline(always)]
    pub fn new(block: &AttendBlock<'a>, rows: HeadRows<'a, E>, first: usize, near: bool) -> Self {
        let asked = |tiles| Asked::new(block, rows, first + tiles * TILE);
        Self { far: asked(2), near: near.then(|| asked(1)) }
    }

    /// Asks for `rows` more of the tile two ahead, keys and values in turn, or all that are left.
    #[inline(always)]
    pub fn ask_far<S: Simd>(&mut self, rows: usize) {
        self.far.ask(rows, |address| S::prefetch_far(address));
    }

    /// Asks for the key and the value of one more token of the next tile.
    #[inline(always)]
    pub fn ask_near<S: Simd>(&mut self) {
        if let Some(near) = &mut self.near {
            near.ask(2, |address| S::prefetch(address));
        }
    }
}

/// The values of a tile's tokens.
pub(super) enum Values<'a, E> {
    Kept(Kept<'a>),
    Stored(TokenRows<'a, E>),
}

/// Values in one of the forms that they are read from.
pub(super) trait Source<S: Simd, W: Words<S>> {
    /// Panics unless line `line` of the values of all words below `words` is there.
    fn check(&self, words: usize, line: usize);
    /// Part `part` of line `lines.0 + lines.1` of a word, where `lines.0` is a multiple of the numbers of a word.
    ///
    /// # Safety
    /// `check` must have passed for the word and the line.
    unsafe fn part(&self, word: usize, lines: (usize, usize), part: usize) -> <W::Values as Factors<S>>::Word;
}

/// The lines of the first word, then those of the next; zeros behind the last word.
pub(super) struct Kept<'a> {
    lines: &'a [Line],
    /// Lines of a word.
    stride: usize,
}

impl<S: Simd, W: Words<S>> Source<S, W> for Kept<'_> {
    #[inline(always)]
    fn check(&self, words: usize, line: usize) {
        assert!(self.lines.len() >= words * self.stride && line < self.stride);
    }

    #[inline(always)]
    unsafe fn part(&self, word: usize, lines: (usize, usize), part: usize) -> <W::Values as Factors<S>>::Word {
        // SAFETY: by this function's contract.
        W::Values::load(unsafe { self.lines.get_unchecked(word * self.stride + lines.0 + lines.1) }, part)
    }
}

/// Keys or values as they are stored.
#[derive(Clone, Copy)]
pub(super) struct TokenRows<'t, E> {
    /// The first slot's.
    first: *const E,
    /// Bytes from there to those of the tokens.
    offsets: &'t [usize; TILE],
    /// Elements of a row.
    len: usize,
    pub head_dim: usize,
}

impl<'t, E: Plain> TokenRows<'t, E> {
    /// Elements of a row.
    #[inline(always)]
    pub fn row_len(&self) -> usize {
        self.len
    }

    /// The row of a token.
    #[inline(always)]
    pub fn get(&self, token: usize) -> &'t [E] {
        // SAFETY: there is a row of `len` elements for each token: `Tile::gather` sees to it.
        unsafe { std::slice::from_raw_parts(self.first.byte_add(self.offsets[token]), self.len) }
    }

    /// N elements of each of M tokens from `first` on. Panics unless they are there.
    #[inline(always)]
    pub fn of<const N: usize, const M: usize>(&self, first: usize, at: usize) -> [&'t [E; N]; M] {
        assert!(first + M <= TILE && at + N <= self.len);
        // SAFETY (both): by the assertion.
        let mut found = [unsafe { self.chunk(first, at) }; M];
        for (i, found) in found.iter_mut().enumerate().skip(1) {
            *found = unsafe { self.chunk(first + i, at) };
        }
        found
    }

    /// N elements of a token.
    ///
    /// # Safety
    /// The token must be among the 32, and the elements must be among those of a row.
    #[inline(always)]
    pub unsafe fn chunk<const N: usize>(&self, token: usize, at: usize) -> &'t [E; N] {
        // SAFETY: by this function's contract, and as above.
        unsafe { &*self.first.add(at).byte_add(*self.offsets.get_unchecked(token)).cast() }
    }
}

impl<S: Simd, W: Words<S>> Source<S, W> for TokenRows<'_, W::Element> {
    #[inline(always)]
    fn check(&self, words: usize, line: usize) {
        assert!(words * W::Values::NUMBERS <= TILE && line < W::lines(self.head_dim) && W::fills(self.head_dim));
    }

    #[inline(always)]
    unsafe fn part(&self, word: usize, lines: (usize, usize), part: usize) -> <W::Values as Factors<S>>::Word {
        // SAFETY: by this function's contract.
        unsafe { W::stored(self, word, lines, part) }
    }
}

impl<'a, E: Plain> Tile<'a, E> {
    /// For a block of `queries` queries.
    #[inline(always)]
    pub fn new<S: Simd, W: Words<S, Element = E>>(block: &AttendBlock<'a>, queries: usize) -> Self {
        let (rows, head_dim) = (block.kv.rows::<E>(block.kv_head), block.shape.head_dim);
        assert!(head_dim <= rows.row_len());
        let (lines, words) = (W::lines(head_dim), TILE / W::Values::NUMBERS);
        let squares = if W::LAID { head_dim.div_ceil(W::SQUARE_DIMS).next_multiple_of(W::SQUARES) } else { 0 };
        let (keys, values) = (Scratch::new(TILE * squares), Scratch::new(words * lines));
        let keeps = queries > W::FEW || !W::fills(head_dim);
        Self { rows, head_dim, offsets: [0; TILE], keys, values, lines, keeps }
    }

    /// Takes in a part of `row`'s list: makes words of the keys, and of the values if they are kept.
    #[inline(always)]
    pub fn gather<S: Simd, W: Words<S, Element = E>>(
        &mut self,
        block: &AttendBlock<'a>,
        row: usize,
        part: Range<usize>,
    ) -> Gathered<'_, 'a, E> {
        let &mut Self { rows, head_dim, lines, keeps, .. } = self;
        let Self { offsets, keys, values, .. } = self;
        let mut next = Next::new(block, rows, part.start, W::ASKS_NEAR);
        rows.offsets(&block.slots(row, part.start), offsets);
        let key_rows = TokenRows { first: rows.first_key(), offsets, len: rows.row_len(), head_dim };
        let value_rows = TokenRows { first: key_rows.first.wrapping_add(rows.key_to_value()), ..key_rows };
        if part.len() <= LANES {
            keys.zeroed();
        }
        let squares = keys.used / TILE;
        let columns = keys.lines().as_chunks_mut::<LANES>().0;
        let halves = if W::LAID { part.len().div_ceil(LANES) } else { 0 };
        for (half, columns) in columns.chunks_exact_mut(squares.max(1)).enumerate().take(halves) {
            for (at, to) in columns.chunks_exact_mut(W::SQUARES).enumerate() {
                // SAFETY: a `Line` is 16 f32 without padding, so 16 are a square; `columns` writes all of them.
                let to = unsafe { &mut *(std::ptr::from_mut(to) as *mut [Square]) };
                W::columns(&key_rows, half * LANES, at * W::SQUARES, to);
                next.ask_far::<S>(2 * W::SQUARE_DIMS / LANES * W::SQUARES);
            }
        }
        // SAFETY: with 32 tokens every line was just written; what is left out with fewer, `zeroed` wrote.
        let (low, high) = unsafe { keys.written() }.split_at(TILE / 2 * squares);
        let keys = [low, high];
        if !keeps {
            return Gathered { keys, key_rows, value_rows, values: Values::Stored(value_rows), fresh: true, next };
        }
        if part.len() < TILE {
            values.zeroed();
        }
        for (word, to) in values.lines().chunks_exact_mut(lines).enumerate() {
            if word * W::Values::NUMBERS < part.len() {
                // SAFETY: `values` writes all of the lines and reads nothing of them.
                W::values(&value_rows, word, unsafe { &mut *(std::ptr::from_mut(to) as *mut [Line]) });
            }
            next.ask_far::<S>(W::Values::NUMBERS);
        }
        // SAFETY: as for the keys.
        let kept = Kept { lines: unsafe { values.written() }, stride: lines };
        Gathered { keys, key_rows, value_rows, values: Values::Kept(kept), fresh: true, next }
    }
}
