//! The head's network: rows of embeddings and features in, rows of new features and logits out.
//!
//! Row s stands for token s of a sequence. It reads the embedding of that token and the feature of the position before:
//! the target's where the target has been there, else the head's own from its last pass. What it gives is a feature of
//! position s, and logits of token s + 1.
//!
//! A head may have several modules, each with keys and values of its own (DeepSeek-V3, 2412.19437, section 2.2): module j
//! reads at row s what module j - 1 gave at row s - 1, and guesses the token after j guessed ones. Past the last module the
//! first follows. Module j has no use for the first j rows, since nothing came so many rows before.

use foretoken_kernels::blocks::{DecoderLayer, ForwardRows, KvDtype, KvShape, KvViewMut, Linear, Workspace};
use foretoken_kernels::ops::{AttentionSeq, RopeRows, RopeTable, rmsnorm};
use foretoken_kernels::{Exec, WeightDtype};
use foretoken_plugin_api::{Host, Result, Token};

/// How a module joins embedding and feature.
pub(crate) enum Join {
    /// A projection of both side by side becomes the residual stream (EAGLE-1 and 2, multi-token prediction).
    Residual {
        /// `[hidden_size, 2 * hidden_size]`.
        fc: Linear,
        /// Norms of the embedding and the feature.
        norms: Option<[Vec<f32>; 2]>,
        /// Whether the feature comes first.
        feature_first: bool,
        /// Whether the first row's embedding, normed, counts as zero.
        first_is_zero: bool,
    },
    /// Attention reads both side by side, normed; the residual stream is the feature (EAGLE-3).
    Attention {
        /// Norms of the embedding and the feature.
        norms: [Vec<f32>; 2],
        /// Whether the residual is the normed feature.
        norm_before_residual: bool,
    },
}

/// One layer between joined rows and features.
pub(crate) struct Module {
    /// What it reads.
    pub join: Join,
    /// The layer.
    pub layer: DecoderLayer,
    /// Norm of the features it gives, where the next row reads them normed.
    pub feature_norm: Option<Vec<f32>>,
    /// Norm between features and logits.
    pub norm: Option<Vec<f32>>,
    /// Its projection; the target's where it has none.
    pub head: Option<Linear>,
}

/// Sizes of a head, and what it reads.
pub(crate) struct Sizes {
    /// Width of a feature.
    pub width: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Key heads of a layer.
    pub kv_heads: usize,
    /// Dimensions of one.
    pub head_dim: usize,
    /// Width of a row of logits.
    pub vocab_size: usize,
    /// Layers of the target whose hidden rows it reads.
    pub hidden_layers: Vec<usize>,
}

/// The rows of a pass.
pub struct HeadRows<'a> {
    /// Embeddings, `[rows, hidden_size]`.
    pub embeddings: &'a [f32],
    /// Features that the modules read, `[modules, rows, hidden_size]`; what they gave when the pass is done.
    pub features: &'a mut Vec<f32>,
    /// Whether a sequence's rows follow each other; then of what modules from the second on read only each sequence's
    /// first row is given.
    pub are_chained: bool,
    /// Rotary position of each row.
    pub positions: &'a [u32],
    /// Lane row of each row.
    pub slots: &'a [u32],
    /// The sequences whose rows these are.
    pub seqs: &'a [AttentionSeq<'a>],
}

/// A loaded head.
pub struct Network {
    modules: Vec<Module>,
    fuse: Option<Linear>,
    sizes: Sizes,
    rope: RopeTable,
    kv: KvShape,
    targets: Vec<Token>,
    exec: Exec,
    workspace: Workspace,
    rope_rows: RopeRows,
    joined: Vec<f32>,
    normed: Vec<f32>,
}

impl Network {
    /// `fuse` makes one feature of the target's hidden rows, where there are several; `targets` is the target's token for
    /// each of the head's, empty where they are the same.
    pub(crate) fn new(
        modules: Vec<Module>,
        fuse: Option<Linear>,
        sizes: Sizes,
        (rope, targets): (RopeTable, Vec<Token>),
        exec: Exec,
    ) -> Self {
        let weights = modules.first().map(|module| module.layer.linears()[0].weight().dtype());
        let kv = KvShape {
            layers: modules.len(),
            heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
            dtype: if weights == Some(WeightDtype::F32) { KvDtype::F32 } else { KvDtype::Bf16 },
        };
        let (workspace, rope_rows) = (Workspace::new(), RopeRows::new());
        let (joined, normed) = Default::default();
        Self { modules, fuse, sizes, rope, kv, targets, exec, workspace, rope_rows, joined, normed }
    }

    /// Layers of the target whose hidden rows it reads.
    pub fn hidden_layers(&self) -> &[usize] {
        &self.sizes.hidden_layers
    }

    /// Modules.
    pub fn modules(&self) -> usize {
        self.modules.len()
    }

    /// The keys and values of a row.
    pub fn kv(&self) -> KvShape {
        self.kv
    }

    /// Width of a feature.
    pub fn width(&self) -> usize {
        self.sizes.width
    }

    /// Width of a row of logits.
    pub fn vocab_size(&self) -> usize {
        self.sizes.vocab_size
    }

    /// The target's token for each of the head's; empty where they are the same.
    pub fn targets(&self) -> &[Token] {
        &self.targets
    }

    /// The target's hidden rows (`[rows, hidden layers * hidden_size]`) as features, `[rows, hidden_size]`.
    pub fn fuse(&mut self, hidden: &[f32], features: &mut [f32]) {
        match &self.fuse {
            None => features.copy_from_slice(hidden),
            Some(fuse) => fuse.forward(&self.exec, hidden, &mut self.workspace.packed, features),
        }
    }

    /// One pass.
    pub fn forward(&mut self, rows: HeadRows<'_>, kv: &mut KvViewMut<'_>) {
        let HeadRows { embeddings, features, are_chained, positions, slots, seqs } = rows;
        let Self { modules, exec, workspace, joined, normed, sizes, .. } = self;
        self.rope_rows.fill(&self.rope, positions);
        for (index, module) in modules.iter().enumerate() {
            let (before, features) = features.split_at_mut(index * embeddings.len());
            let features = &mut features[..embeddings.len()];
            if are_chained && index > 0 {
                follow(&before[(index - 1) * embeddings.len()..], features, seqs, sizes.width);
            }
            let seqs: Vec<AttentionSeq<'_>> = seqs.iter().map(|seq| without_first(seq, index)).collect();
            let forward = ForwardRows { rope: &self.rope_rows, slots, seqs: &seqs };
            match &module.join {
                Join::Residual { fc, norms, feature_first, first_is_zero } => {
                    normed.resize(2 * features.len(), 0.0);
                    let (embedded, read) = normed.split_at_mut(features.len());
                    let (embedded, read) = match norms {
                        None => (embeddings, &*features),
                        Some([embedding_norm, feature_norm]) => {
                            rmsnorm(exec, embeddings, embedding_norm, sizes.eps, embedded);
                            rmsnorm(exec, features, feature_norm, sizes.eps, read);
                            let rows = embedded.chunks_exact_mut(sizes.width).zip(positions);
                            rows.filter(|(_, position)| *first_is_zero && **position == 0)
                                .for_each(|(row, _)| row.fill(0.0));
                            (&*embedded, &*read)
                        }
                    };
                    let (left, right) = if *feature_first { (read, embedded) } else { (embedded, read) };
                    join(left, right, sizes.width, joined);
                    fc.forward(exec, joined, &mut workspace.packed, features);
                    module.layer.forward(exec, &forward, features, (kv, index), workspace);
                }
                Join::Attention { norms: [embedding_norm, feature_norm], norm_before_residual } => {
                    normed.resize(2 * features.len(), 0.0);
                    let (embedded, read) = normed.split_at_mut(features.len());
                    rmsnorm(exec, embeddings, embedding_norm, sizes.eps, embedded);
                    rmsnorm(exec, features, feature_norm, sizes.eps, read);
                    join(embedded, read, sizes.width, joined);
                    if *norm_before_residual {
                        features.copy_from_slice(read);
                    }
                    module.layer.attend(exec, &forward, joined, features, (kv, index), workspace);
                    module.layer.feed_forward(exec, features, workspace);
                }
            }
            if let Some(norm) = &module.feature_norm {
                let normed = &mut normed[..features.len()];
                rmsnorm(exec, features, norm, sizes.eps, normed);
                features.copy_from_slice(normed);
            }
        }
    }

    /// Logits of `features` (`[rows, hidden_size]`) that `module` gave, into `out`, `[rows, vocab_size]`.
    ///
    /// # Errors
    /// The host's, where the target's projection is used.
    pub fn logits(&mut self, module: usize, features: &[f32], host: &Host, out: &mut [f32]) -> Result<()> {
        let Module { norm, head, .. } = &self.modules[module];
        let features = match norm {
            None => features,
            Some(norm) => {
                self.normed.resize(features.len(), 0.0);
                rmsnorm(&self.exec, features, norm, self.sizes.eps, &mut self.normed);
                &self.normed
            }
        };
        match head {
            Some(head) => head.forward(&self.exec, features, &mut self.workspace.packed, out),
            None => host.lm_head(features, out)?,
        }
        Ok(())
    }
}

/// The rows of a sequence that module `index` has a use for.
fn without_first<'a>(seq: &AttentionSeq<'a>, index: usize) -> AttentionSeq<'a> {
    let in_context = index.min(seq.context.len());
    let in_rows = (index - in_context).min(seq.rows.len());
    AttentionSeq {
        context: &seq.context[in_context..],
        rows: seq.rows.start + in_rows..seq.rows.end,
        new_slots: &seq.new_slots[in_rows..],
        tree: seq.tree,
    }
}

/// Each row reads what the module before gave one row earlier; a sequence's first row has its own.
fn follow(given: &[f32], read: &mut [f32], seqs: &[AttentionSeq<'_>], width: usize) {
    for rows in seqs.iter().map(|seq| seq.rows.clone()).filter(|rows| rows.len() > 1) {
        let earlier = rows.start * width..(rows.end - 1) * width;
        read[(rows.start + 1) * width..rows.end * width].copy_from_slice(&given[earlier]);
    }
}

/// Rows of `left` and `right` (`[rows, width]` each) side by side.
fn join(left: &[f32], right: &[f32], width: usize, out: &mut Vec<f32>) {
    out.clear();
    for (left, right) in left.chunks_exact(width).zip(right.chunks_exact(width)) {
        out.extend_from_slice(left);
        out.extend_from_slice(right);
    }
}
