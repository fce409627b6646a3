//! A two-layer stack: chunked prefill equals whole prefill, tree rows equal chain rows, batches equal lone sequences.
//!
//! This is the invariant that makes verification exact, tested where all ops meet: `==` on the residual stream.

use crate::support::{bits, levels, levels_and_threads, values};
use foretoken_kernels::blocks::{
    DecoderLayer, DecoderLayerTensors, ForwardRows, KvDtype, KvShape, KvStore, LayerShape, Linear, Workspace,
};
use foretoken_kernels::ops::{AttentionSeq, AttentionShape, RopeRows, RopeScaling, RopeTable, TreePaths};
use foretoken_kernels::{Exec, KernelError, Weight, WeightDtype};
use std::ops::Range;

const WIDTH: usize = 72;
const MLP: usize = 150;

fn shape() -> LayerShape {
    let attention = AttentionShape::new(6, 2, 20).unwrap();
    LayerShape { width: WIDTH, attention_input: WIDTH, attention, mlp_width: MLP, eps: 1e-6 }
}

fn tensors(dtype: WeightDtype, seed: u64) -> DecoderLayerTensors {
    let linear = |i: u64, outs: usize, ins: usize, has_bias: bool| {
        let scaled: Vec<f32> = values(seed + i, outs * ins).iter().map(|v| v * 0.2).collect();
        let bias = has_bias.then(|| values(seed + i + 50, outs));
        Linear::new("test", Weight::from_f32(dtype, [outs, ins], &scaled), bias).unwrap()
    };
    let norm = |i: u64, len: usize| values(seed + i, len).iter().map(|v| v + 1.5).collect::<Vec<f32>>();
    DecoderLayerTensors {
        input_norm: Some(norm(1, WIDTH)),
        q: linear(2, 120, WIDTH, true),
        k: linear(3, 40, WIDTH, true),
        v: linear(4, 40, WIDTH, true),
        q_norm: Some(norm(5, 20)),
        k_norm: Some(norm(6, 20)),
        o: linear(7, WIDTH, 120, false),
        post_attention_norm: norm(8, WIDTH),
        gate: linear(9, MLP, WIDTH, false),
        up: linear(10, MLP, WIDTH, false),
        down: linear(11, WIDTH, MLP, false),
    }
}

pub struct Model {
    layers: [DecoderLayer; 2],
    table: RopeTable,
}

impl Model {
    pub fn new(dtype: WeightDtype) -> Self {
        let layer = |seed| DecoderLayer::new("test", shape(), tensors(dtype, seed)).unwrap();
        Self { layers: [layer(100), layer(200)], table: RopeTable::new(20, 10_000.0, RopeScaling::None) }
    }
}

/// The hidden row of a token at a position, made up.
fn embedded(position: usize, variant: u64) -> Vec<f32> {
    values(1000 + position as u64 * 10 + variant, WIDTH)
}

/// A pass whose inputs are laid out, to be run.
pub struct Step<'a> {
    sequence: &'a mut Sequence,
    positions: Range<usize>,
    rope: RopeRows,
    slots: Vec<u32>,
    inputs: Vec<f32>,
    tree: Option<(Vec<u32>, Vec<u32>)>,
    hidden: Vec<f32>,
}

impl Step<'_> {
    pub fn run(&mut self, exec: &Exec, model: &Model) {
        let Sequence { kv, list, workspace } = &mut *self.sequence;
        self.hidden.copy_from_slice(&self.inputs);
        let tree = self.tree.as_ref().map(|(offsets, rows)| TreePaths { offsets, rows });
        let (context, rows) = (&list[..self.positions.start], 0..self.slots.len());
        let seqs = [AttentionSeq { context, rows, new_slots: &self.slots, tree }];
        let rows = ForwardRows { rope: &self.rope, slots: &self.slots, seqs: &seqs };
        let mut view = kv.view_mut();
        for (index, layer) in model.layers.iter().enumerate() {
            layer.forward(exec, &rows, &mut self.hidden, (&mut view, index), workspace);
        }
    }
}

pub struct Sequence {
    kv: KvStore,
    /// Slot of each position: scattered on purpose.
    list: Vec<u32>,
    workspace: Workspace,
}

impl Sequence {
    pub fn new(model: &Model, len: usize) -> Self {
        let attention = model.layers[0].shape().attention;
        let (heads, head_dim) = (attention.kv_heads(), attention.head_dim());
        let kv = KvStore::new(KvShape { layers: 2, heads, head_dim, dtype: KvDtype::Bf16 }, 2 * len);
        let list = crate::support::shuffled(8, 2 * len).into_iter().map(|slot| slot as u32).collect();
        Self { kv, list, workspace: Workspace::new() }
    }

    pub fn prepared_chain(&mut self, model: &Model, positions: Range<usize>) -> Step<'_> {
        let rows: Vec<(usize, u64)> = positions.clone().map(|position| (position, 0)).collect();
        self.prepared(model, positions.start, &rows, None)
    }

    /// Rows of (position, variant) after `start` committed tokens.
    fn prepared(
        &mut self,
        model: &Model,
        start: usize,
        rows: &[(usize, u64)],
        tree: Option<(Vec<u32>, Vec<u32>)>,
    ) -> Step<'_> {
        let positions: Vec<u32> = rows.iter().map(|(position, _)| *position as u32).collect();
        let mut rope = RopeRows::new();
        rope.fill(&model.table, &positions);
        let inputs: Vec<f32> = rows.iter().flat_map(|(position, variant)| embedded(*position, *variant)).collect();
        let slots = self.list[start..start + rows.len()].to_vec();
        let hidden = vec![0.0; inputs.len()];
        Step { sequence: self, positions: start..start + rows.len(), rope, slots, inputs, tree, hidden }
    }

    pub fn chain(&mut self, exec: &Exec, model: &Model, positions: Range<usize>) -> Vec<f32> {
        let mut step = self.prepared_chain(model, positions);
        step.run(exec, model);
        step.hidden
    }
}

#[test]
fn chunked_prefill_equals_whole_prefill() {
    for exec in levels_and_threads() {
        for dtype in [WeightDtype::F32, WeightDtype::Bf16] {
            let model = Model::new(dtype);
            // 300 rows do not go through the MLP at once.
            for (len, chunks) in [(40, [1, 3, 17]), (300, [64, 255, 257])] {
                let whole = Sequence::new(&model, len).chain(&exec, &model, 0..len);
                for chunk in chunks {
                    let mut sequence = Sequence::new(&model, len);
                    let starts = (0..len).step_by(chunk);
                    let parts: Vec<f32> =
                        starts.flat_map(|s| sequence.chain(&exec, &model, s..(s + chunk).min(len))).collect();
                    assert_eq!(bits(&parts), bits(&whole), "{exec:?} {dtype} in chunks of {chunk}");
                }
            }
        }
    }
}

#[test]
fn tree_rows_equal_the_chain_of_their_path() {
    for exec in levels() {
        let model = Model::new(WeightDtype::Bf16);
        let mut sequence = Sequence::new(&model, 40);
        sequence.chain(&exec, &model, 0..30);
        // Anchor 30, two guesses at 31, a second guess after the second of them.
        let rows = [(30, 0), (31, 1), (31, 0), (32, 2), (32, 0)];
        let paths = (vec![0, 1, 3, 5, 8, 11], vec![0, 0, 1, 0, 2, 0, 1, 3, 0, 2, 4]);
        let mut step = sequence.prepared(&model, 30, &rows, Some(paths));
        step.run(&exec, &model);
        let tree = step.hidden;
        let chain = Sequence::new(&model, 40).chain(&exec, &model, 0..33);
        for (row, position) in [(0, 30), (2, 31), (4, 32)] {
            let (got, want) = (&tree[row * WIDTH..][..WIDTH], &chain[position * WIDTH..][..WIDTH]);
            assert_eq!(bits(got), bits(want), "{exec:?} row {row}");
        }
        assert_ne!(bits(&tree[3 * WIDTH..4 * WIDTH]), bits(&tree[4 * WIDTH..5 * WIDTH]), "siblings differ");
    }
}

#[test]
fn wrong_shapes_name_the_tensor() {
    let good = tensors(WeightDtype::F32, 1);
    let mut bad = good.clone();
    bad.down = good.gate.clone();
    let error = DecoderLayer::new("model.layers.3", shape(), bad).unwrap_err();
    let tensor = "model.layers.3.mlp.down_proj.weight".to_owned();
    assert_eq!(error, KernelError::Shape { tensor, expected: vec![WIDTH, MLP], got: vec![MLP, WIDTH] });
    let bad = DecoderLayerTensors { q_norm: Some(vec![0.0; 3]), ..good };
    let error = DecoderLayer::new("model.layers.3", shape(), bad).unwrap_err();
    assert!(error.to_string().contains("model.layers.3.self_attn.q_norm.weight"), "{error}");
}
