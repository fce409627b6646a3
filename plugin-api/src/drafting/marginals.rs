//! Drafts from one row of logits a position, none of which knows what the one before chose (Medusa's heads, a block of
//! masks).

use super::DraftShape;
use crate::author::Drafts;
use crate::error::DraftError;
use crate::guess::most_probable;
use crate::tree::TreeGrower;
use crate::types::{NodeId, Token};

/// Makes drafts of one shape; buffers that are reused.
pub struct Marginals {
    shape: DraftShape,
    grower: Option<TreeGrower>,
    top: Vec<(Token, f32)>,
}

impl Marginals {
    /// For drafts of this shape.
    pub fn new(shape: DraftShape) -> Self {
        let grower = match shape {
            DraftShape::Grown(shape) => Some(TreeGrower::new(shape)),
            _ => None,
        };
        Self { shape, grower, top: Vec::new() }
    }

    /// The shape.
    pub fn shape(&self) -> &DraftShape {
        &self.shape
    }

    /// Drafts for the batch's sequence `number`; `logits(position)`, `[vocabulary]`, is asked from 0 to the shape's depth.
    ///
    /// # Errors
    /// A refused guess.
    pub fn draft<'a>(
        &mut self,
        number: usize,
        logits: impl Fn(usize) -> &'a [f32],
        drafts: &mut Drafts<'_>,
    ) -> Result<(), DraftError> {
        let Self { shape, grower, top } = self;
        let width = match shape {
            DraftShape::Chain { len, sampling } => {
                let mut last = None;
                for position in 0..(*len).min(drafts.remaining(number)) {
                    last = Some(sampling.guess(drafts, number, last, logits(position))?.0);
                }
                return Ok(());
            }
            DraftShape::Grown(shape) => shape.branch.min(logits(0).len()),
            DraftShape::Fixed { tree, .. } => tree.width(),
        };
        top.clear();
        for position in 0..shape.depth() {
            top.extend(most_probable(logits(position), width));
        }
        if let Some(grower) = grower {
            grower.grow_marginals(top, width);
            return grower.emit(number, drafts);
        }
        let DraftShape::Fixed { tree, .. } = shape else { return Ok(()) };
        let mut pushed: Vec<NodeId> = Vec::with_capacity(tree.len());
        // A small budget takes the first ones, which are the upper levels.
        for (parent, position, rank) in tree.nodes().take(drafts.remaining(number)) {
            let token = top[position * width + rank].0;
            pushed.push(drafts.push(number, parent.map(|parent| pushed[parent]), token)?);
        }
        Ok(())
    }
}
