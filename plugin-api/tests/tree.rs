//! The tree grower against exhaustive search: the best `nodes` of all paths there are.
//!
//! The oracle enumerates every path and sorts; it shares no code with the grower. Sums of log-probabilities are compared
//! rather than sets, so that ties may fall either way.

use foretoken_plugin_api::testkit::{DrawNoise, RecordingDrafts, SinkRules, SinkSequence};
use foretoken_plugin_api::tree::{CandidateId, TreeGrower, TreeShape};
use foretoken_plugin_api::{Drafts, NoiseKey, SamplingParams, Token};
use proptest::prelude::*;

type Path = Vec<Token>;

/// The probability of `token` after `path`; the children of a path sum to 1.
fn conditional(seed: u64, path: &[Token], token: Token, width: usize) -> f32 {
    let weight = |token: Token| {
        let hash = path.iter().chain([&token]).fold(seed | 1, |state, &token| {
            (state ^ u64::from(token) << 7).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
        });
        1.0 + (hash >> 44) as f32 % 97.0
    };
    weight(token) / (0..width as Token).map(weight).sum::<f32>()
}

fn log_prob(prob: &dyn Fn(&[Token], Token) -> f32, path: &[Token]) -> f64 {
    (0..path.len()).map(|index| f64::from(prob(&path[..index], path[index])).ln()).sum()
}

/// All paths up to `depth`, best first.
fn exhaustive(width: usize, depth: usize, prob: &dyn Fn(&[Token], Token) -> f32) -> Vec<(Path, f64)> {
    let mut paths: Vec<Path> = vec![Vec::new()];
    let mut all = Vec::new();
    for _ in 0..depth {
        let grow = |path: &Path| (0..width as Token).map(|token| [&path[..], &[token]].concat()).collect::<Vec<_>>();
        paths = paths.iter().flat_map(grow).collect();
        all.extend(paths.iter().map(|path| (path.clone(), log_prob(prob, path))));
    }
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

fn path_of(tree: &TreeGrower, candidate: CandidateId) -> Path {
    let up = std::iter::successors(Some(candidate), |&candidate| tree.parent(candidate));
    let mut path: Path = up.map(|candidate| tree.token(candidate)).collect();
    path.reverse();
    path
}

fn grow_levels(tree: &mut TreeGrower, width: usize, prob: &dyn Fn(&[Token], Token) -> f32) {
    tree.start();
    for token in 0..width as Token {
        tree.offer(None, token, prob(&[], token));
    }
    while tree.advance() {
        for candidate in tree.frontier().to_vec() {
            let path = path_of(tree, candidate);
            for token in 0..width as Token {
                tree.offer(Some(candidate), token, prob(&path, token));
            }
        }
    }
    tree.finish();
}

/// The kept paths, with the tree's own structure checked on the way.
fn kept_paths(tree: &TreeGrower) -> Vec<Path> {
    let mut paths: Vec<Path> = Vec::new();
    for (token, parent) in tree.kept() {
        let above = parent.map_or(Vec::new(), |parent| paths[parent as usize].clone());
        paths.push([&above[..], &[token]].concat());
    }
    let mut unique = paths.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), paths.len(), "a path twice: {paths:?}");
    for path in paths.iter().filter(|path| path.len() > 1) {
        assert!(unique.binary_search(&path[..path.len() - 1].to_vec()).is_ok(), "{path:?} without its parent");
    }
    paths
}

fn total(paths: &[Path], prob: &dyn Fn(&[Token], Token) -> f32) -> f64 {
    paths.iter().map(|path| log_prob(prob, path)).sum()
}

fn assert_best(paths: &[Path], all: &[(Path, f64)], nodes: usize, prob: &dyn Fn(&[Token], Token) -> f32) {
    assert_eq!(paths.len(), nodes.min(all.len()));
    let best: f64 = all.iter().take(nodes).map(|(_, log_prob)| log_prob).sum();
    let got = total(paths, prob);
    assert!((got - best).abs() < 1e-6 * (1.0 + best.abs()), "sum {got}, the best is {best}");
}

/// EAGLE-2's expansion, written the slow way: the frontier is the best `branch` of a level.
fn level_wise_oracle(shape: TreeShape, width: usize, prob: &dyn Fn(&[Token], Token) -> f32) -> Vec<(Path, f64)> {
    let (mut frontier, mut pool): (Vec<Path>, Vec<(Path, f64)>) = (vec![Vec::new()], Vec::new());
    for _ in 0..shape.depth {
        let mut level: Vec<(Path, f64)> = Vec::new();
        for path in &frontier {
            for token in 0..width as Token {
                let child = [&path[..], &[token]].concat();
                level.push((child.clone(), log_prob(prob, &child)));
            }
        }
        level.sort_by(|a, b| b.1.total_cmp(&a.1));
        frontier = level.iter().take(shape.branch).map(|(path, _)| path.clone()).collect();
        pool.extend(level);
    }
    pool.sort_by(|a, b| b.1.total_cmp(&a.1));
    pool
}

proptest! {
    #[test]
    fn levels_keep_what_the_slow_expansion_keeps(
        seed: u64, width in 1usize..5, depth in 1usize..5, branch in 1usize..6, nodes in 1usize..24,
    ) {
        let prob = |path: &[Token], token| conditional(seed, path, token, width);
        let shape = TreeShape { nodes, depth, branch };
        let mut tree = TreeGrower::new(shape);
        for _ in 0..2 {
            grow_levels(&mut tree, width, &prob);
            assert_best(&kept_paths(&tree), &level_wise_oracle(shape, width, &prob), nodes, &prob);
        }
    }

    #[test]
    fn levels_with_room_for_all_find_the_best_tree(seed: u64, width in 1usize..4, depth in 1usize..5, nodes in 1usize..30) {
        let prob = |path: &[Token], token| conditional(seed, path, token, width);
        let mut tree = TreeGrower::new(TreeShape { nodes, depth, branch: 1000 });
        grow_levels(&mut tree, width, &prob);
        assert_best(&kept_paths(&tree), &exhaustive(width, depth, &prob), nodes, &prob);
    }

    #[test]
    fn marginals_find_the_best_tree(seed: u64, width in 1usize..5, positions in 1usize..5, nodes in 1usize..40, depth in 1usize..6) {
        let marginal = |position: usize, token: Token| conditional(seed, &[position as Token], token, width);
        let mut top = Vec::new();
        for position in 0..positions {
            let mut row: Vec<_> = (0..width as Token).map(|token| (token, marginal(position, token))).collect();
            row.sort_by(|a, b| b.1.total_cmp(&a.1));
            top.extend(row);
        }
        let prob = |path: &[Token], token| marginal(path.len(), token);
        let mut tree = TreeGrower::new(TreeShape { nodes, depth, branch: 1 });
        tree.grow_marginals(&top, width);
        assert_best(&kept_paths(&tree), &exhaustive(width, depth.min(positions), &prob), nodes, &prob);
    }

    #[test]
    fn nothing_is_expanded_whose_children_cannot_be_kept(seed: u64, depth in 1usize..6, nodes in 1usize..12) {
        let prob = |path: &[Token], token| conditional(seed, path, token, 4);
        let mut tree = TreeGrower::new(TreeShape { nodes, depth, branch: 1000 });
        tree.start();
        for token in 0..4 {
            tree.offer(None, token, prob(&[], token));
        }
        let mut levels = 1;
        while tree.advance() {
            levels += 1;
            prop_assert!(tree.frontier().len() < nodes);
            for candidate in tree.frontier().to_vec() {
                // What is offered is never better than its parent, and here as good.
                tree.offer(Some(candidate), 0, 1.0);
            }
        }
        // Each level adds a kept node below the ones above it.
        prop_assert!(levels <= nodes, "{levels} levels");
    }

    #[test]
    fn emitted_drafts_are_the_kept_tree_cut_to_the_budget(seed: u64, nodes in 1usize..20, budget in 0usize..24) {
        let prob = |path: &[Token], token| conditional(seed, path, token, 3);
        let mut tree = TreeGrower::new(TreeShape { nodes, depth: 4, branch: 3 });
        grow_levels(&mut tree, 3, &prob);
        let expected = level_wise_oracle(tree.shape(), 3, &prob);
        let mut sink = sink(budget);
        tree.emit(0, &mut Drafts::new(&mut sink)).unwrap();
        prop_assert!(sink.refusals().is_empty());
        let draft = &sink.drafts()[0];
        let paths: Vec<Path> = (0..draft.len() as u32).map(|node| draft.path_tokens(Some(node))).collect();
        assert_best(&paths, &expected, nodes.min(budget), &prob);
    }
}

fn sink(budget: usize) -> RecordingDrafts {
    let sequence =
        SinkSequence { budget, output_index: 0, sampling: SamplingParams::GREEDY, noise: NoiseKey::new(0, 0) };
    RecordingDrafts::new(SinkRules { vocab_size: 64, tree: true, noise: DrawNoise::ByOutput }, vec![sequence])
}

#[test]
fn certain_chains_keep_parents_before_children() {
    let mut tree = TreeGrower::new(TreeShape { nodes: 3, depth: 8, branch: 2 });
    tree.start();
    let mut last = tree.offer(None, 20, 1.0);
    for token in 21.. {
        if !tree.advance() {
            break;
        }
        last = tree.offer(last, token, 1.0);
    }
    tree.finish();
    assert_eq!(tree.kept().collect::<Vec<_>>(), [(20, None), (21, Some(0)), (22, Some(1))]);
    tree.grow_marginals(&[(5, 1.0), (6, 1.0), (7, 1.0), (8, 1.0)], 1);
    assert_eq!(tree.kept().collect::<Vec<_>>(), [(5, None), (6, Some(0)), (7, Some(1))]);
}

#[test]
fn what_is_no_probability_is_not_offered() {
    let mut tree = TreeGrower::new(TreeShape::default());
    tree.start();
    assert!([f32::NAN, 0.0, -0.5, f32::NEG_INFINITY].iter().all(|&bad| tree.offer(None, 1, bad).is_none()));
    let above_one = tree.offer(None, 1, 1.000_001).unwrap();
    assert_eq!(tree.log_prob(above_one), 0.0);
    let mut none = TreeGrower::new(TreeShape { depth: 0, ..TreeShape::default() });
    none.start();
    assert!(none.offer(None, 1, 0.5).is_none() && !none.advance());
    none.finish();
    assert_eq!(none.kept().count(), 0);
}

#[test]
fn a_shape_refuses_unknown_keys_by_name() {
    let error = toml::from_str::<TreeShape>("nodes = 4\nwidth = 3").unwrap_err().to_string();
    assert!(error.contains("width"), "{error}");
    assert_eq!(toml::from_str::<TreeShape>("nodes = 4").unwrap(), TreeShape { nodes: 4, ..TreeShape::default() });
}
