//! What the border costs: one propose call for 8 sequences x 4 pushes, through the ABI and made directly on the same sink.
//!
//! The bar is 200 ns for the whole call, a thousandth of the cheapest forward pass. Criterion shows both; the difference
//! is measured on its own, rounds interleaved, because the two benches run seconds apart on a machine that drifts.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use foretoken_plugin_api::abi::proposer::{LoadedProposer, export};
use foretoken_plugin_api::author::DraftSink;
use foretoken_plugin_api::testkit::{FakeHost, ProposeInput, ToyModel, with_propose_batch};
use foretoken_plugin_api::{
    DraftError, Drafts, Host, NoOptions, NodeId, ProposeBatch, Proposer, Result as PluginResult, Token,
};

const SEQUENCES: usize = 8;
const PUSHES: usize = 4;
const ROUNDS: usize = 400;
const CALLS: usize = 2_000;
const BAR_NS: f64 = 200.0;

/// The engine's shape of sink: flat buffers with a budget per sequence.
struct Sink {
    tokens: [[Token; PUSHES]; SEQUENCES],
    parents: [[NodeId; PUSHES]; SEQUENCES],
    lens: [usize; SEQUENCES],
}

impl DraftSink for Sink {
    #[inline]
    fn push(&mut self, sequence: usize, parent: Option<NodeId>, token: Token) -> Result<NodeId, DraftError> {
        let len = *self.lens.get(sequence).ok_or(DraftError::NoSuchSequence)?;
        if len == PUSHES {
            return Err(DraftError::BudgetExhausted);
        }
        if token >= 32_000 {
            return Err(DraftError::TokenOutOfVocabulary);
        }
        if parent.is_some_and(|parent| parent as usize >= len) {
            return Err(DraftError::NoSuchParent);
        }
        self.tokens[sequence][len] = token;
        self.parents[sequence][len] = parent.unwrap_or(NodeId::MAX);
        self.lens[sequence] = len + 1;
        Ok(len as NodeId)
    }

    fn draw(&mut self, _: usize, _: Option<NodeId>, _: &[f32]) -> Result<(NodeId, Token), DraftError> {
        Err(DraftError::BadLogits)
    }

    fn draw_n(
        &mut self,
        _: usize,
        _: Option<NodeId>,
        _: &[f32],
        _: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError> {
        Err(DraftError::BadLogits)
    }

    fn remaining(&self, sequence: usize) -> usize {
        PUSHES - self.lens[sequence]
    }
}

#[inline]
fn chain(
    batch: &ProposeBatch<'_>,
    mut push: impl FnMut(usize, Option<NodeId>, Token) -> Result<NodeId, DraftError>,
) -> Result<(), DraftError> {
    for (index, sequence) in batch.sequences().iter().enumerate() {
        let (mut parent, anchor) = (None, sequence.tokens().last().copied().unwrap_or(0));
        for step in 0..PUSHES as Token {
            parent = Some(push(index, parent, anchor + step)?);
        }
    }
    Ok(())
}

struct Chain;

impl Proposer for Chain {
    type Options = NoOptions;

    fn new(_: NoOptions, _: Host) -> PluginResult<Self> {
        Ok(Self)
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> PluginResult<()> {
        Ok(chain(batch, |sequence, parent, token| drafts.push(sequence, parent, token))?)
    }
}

#[inline(never)]
fn directly(batch: ProposeBatch<'_>, sink: &mut Sink) {
    sink.lens = [0; SEQUENCES];
    chain(&batch, |sequence, parent, token| sink.push(sequence, parent, token)).expect("within the budget");
}

#[inline(never)]
fn through_abi(loaded: &mut LoadedProposer, batch: ProposeBatch<'_>, sink: &mut Sink) {
    sink.lens = [0; SEQUENCES];
    loaded.propose(batch, &mut Drafts::new(sink)).expect("within the budget");
}

fn per_call(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..CALLS).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / CALLS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let host = FakeHost::new(ToyModel::new(64, 1)).shared().handle();
    let mut loaded = LoadedProposer::new(export::<Chain>, "", &host).expect("no options, nothing to refuse");
    let inputs: Vec<ProposeInput> = (0..SEQUENCES as u64).map(|id| ProposeInput::new(id, &[1, 2, 3], 4)).collect();
    let mut sink = Sink { tokens: Default::default(), parents: Default::default(), lens: Default::default() };
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    with_propose_batch(&inputs, |batch| {
        criterion.bench_function("propose 8x4, direct", |bench| bench.iter(|| directly(black_box(batch), &mut sink)));
        criterion.bench_function("propose 8x4, abi", |bench| {
            bench.iter(|| through_abi(&mut loaded, black_box(batch), &mut sink));
        });
        let mut times = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            times.0.push(per_call(|| directly(black_box(batch), &mut sink)));
            times.1.push(per_call(|| through_abi(&mut loaded, black_box(batch), &mut sink)));
        }
        let (direct, abi) = (median(times.0), median(times.1));
        let verdict = if abi - direct <= BAR_NS { "within" } else { "OVER" };
        let cost = abi - direct;
        println!("border: {cost:.1} ns a call (abi {abi:.1}, direct {direct:.1}), {verdict} the bar of {BAR_NS} ns");
    });
    criterion.final_summary();
}
