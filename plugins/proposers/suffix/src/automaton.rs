//! The suffix automaton of a text: all its substrings, and how often which token followed them.
//!
//! Built online (Blumer et al., *The smallest automaton recognizing the subwords of a text*, 1985): amortised constant
//! time a token, at most two states and three edges. A state is the set of substrings that end at the same places; its
//! link is the longest suffix that also ends elsewhere. So the link of the last state *is* the longest suffix that has
//! occurred before, and its edges are what followed: no lookup, no rescan. The alternative, a trie of all substrings up to
//! a depth (as SuffixDecoding's own implementation has), costs that depth in time and memory for each token.

use std::collections::HashMap;

use foretoken_plugin_api::Token;

/// A state of an [`Automaton`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State(u32);

/// The state of the empty string.
pub const ROOT: State = State(0);

const NONE: u32 = u32::MAX;
/// Edges of a state that are looked through one by one; beyond, they are hashed.
const LISTED: u32 = 8;
/// Suffixes, longest first, whose counts a token raises. A loop has as many suffixes as tokens, and none but the longest
/// decide a draft.
const COUNTED: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Node {
    /// Length of the longest substring.
    len: u32,
    link: u32,
    /// Latest edge, first of a list.
    first: u32,
    /// Edge with the highest count, the latest one of several.
    best: u32,
    edges: u32,
    /// Sum of the edges' counts.
    total: u32,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    token: Token,
    target: u32,
    count: u32,
    next: u32,
}

/// What followed a substring, and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Continuation {
    /// The token.
    pub token: Token,
    /// Share of the times.
    pub probability: f64,
    /// The substring and the token.
    pub state: State,
}

/// The automaton of a text that grows at its end.
#[derive(Debug, Clone)]
pub struct Automaton {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// (state, token) -> edge, of states with more than `LISTED` edges.
    hashed: HashMap<(u32, Token), u32>,
    last: u32,
}

impl Default for Automaton {
    fn default() -> Self {
        let root = Node { len: 0, link: NONE, first: NONE, best: NONE, edges: 0, total: 0 };
        Self { nodes: vec![root], edges: Vec::new(), hashed: HashMap::default(), last: 0 }
    }
}

impl Automaton {
    /// Appends a token to the text. Returns how many states it visited: amortised constant.
    pub fn push(&mut self, token: Token) -> usize {
        let new =
            self.add(Node { len: self.node(self.last).len + 1, link: 0, first: NONE, best: NONE, edges: 0, total: 0 });
        let (mut at, mut visited) = (self.last, 1);
        self.last = new;
        // Suffixes that this token never followed.
        let known = loop {
            if at == NONE {
                return visited;
            }
            if let Some(edge) = self.edge(at, token) {
                break edge;
            }
            self.add_edge(at, Edge { token, target: new, count: 1, next: NONE });
            (at, visited) = (self.node(at).link, visited + 1);
        };
        let shared = self.edges[known as usize].target;
        self.nodes[new as usize].link = if self.node(shared).len == self.node(at).len + 1 {
            shared
        } else {
            let (split, moved) = self.split(shared, at, token);
            visited += moved;
            split
        };
        for _ in 0..COUNTED {
            let Some(edge) = (at != NONE).then(|| self.edge(at, token)).flatten() else { break };
            self.edges[edge as usize].count += 1;
            self.count(at, edge, 1);
            (at, visited) = (self.node(at).link, visited + 1);
        }
        visited
    }

    /// Tokens of the text.
    pub fn text_len(&self) -> usize {
        self.node(self.last).len as usize
    }

    /// The longest suffix of the text that has occurred before; the root if there is none.
    pub fn matched(&self) -> State {
        self.shorter(State(self.last)).unwrap_or(ROOT)
    }

    /// Length of a state's longest substring.
    pub fn len(&self, state: State) -> usize {
        self.node(state.0).len as usize
    }

    /// The longest suffix that has occurred at other places too; none of the root.
    pub fn shorter(&self, state: State) -> Option<State> {
        let link = self.node(state.0).link;
        (link != NONE).then_some(State(link))
    }

    /// What followed a state's substrings most often, the latest of several; none at the end of the text.
    pub fn best(&self, state: State) -> Option<Continuation> {
        let best = self.node(state.0).best;
        (best != NONE).then(|| self.continuation(state, best))
    }

    /// Everything that followed a state's substrings, latest first.
    pub fn continuations(&self, state: State) -> impl Iterator<Item = Continuation> {
        let first = self.node(state.0).first;
        let edges = std::iter::successors((first != NONE).then_some(first), |&edge| {
            let next = self.edges[edge as usize].next;
            (next != NONE).then_some(next)
        });
        edges.map(move |edge| self.continuation(state, edge))
    }

    /// Where a token leads, if it followed.
    pub fn follow(&self, state: State, token: Token) -> Option<State> {
        self.edge(state.0, token).map(|edge| State(self.edges[edge as usize].target))
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let hashed = self.hashed.capacity() * (size_of::<((u32, Token), u32)>() + 1);
        self.nodes.capacity() * size_of::<Node>() + self.edges.capacity() * size_of::<Edge>() + hashed
    }

    fn node(&self, state: u32) -> &Node {
        &self.nodes[state as usize]
    }

    fn continuation(&self, state: State, edge: u32) -> Continuation {
        let Edge { token, target, count, .. } = self.edges[edge as usize];
        let probability = f64::from(count) / f64::from(self.node(state.0).total);
        Continuation { token, probability, state: State(target) }
    }

    fn add(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("a text of fewer than 2 billion tokens")
    }

    /// The edge of a state by a token.
    fn edge(&self, state: u32, token: Token) -> Option<u32> {
        if self.node(state).edges > LISTED {
            return self.hashed.get(&(state, token)).copied();
        }
        let mut at = self.node(state).first;
        while at != NONE && self.edges[at as usize].token != token {
            at = self.edges[at as usize].next;
        }
        (at != NONE).then_some(at)
    }

    fn add_edge(&mut self, state: u32, edge: Edge) {
        let at = u32::try_from(self.edges.len()).expect("a text of fewer than 2 billion tokens");
        let node = &mut self.nodes[state as usize];
        self.edges.push(Edge { next: node.first, ..edge });
        (node.first, node.edges) = (at, node.edges + 1);
        if node.edges == LISTED + 1 {
            let mut listed = at;
            while listed != NONE {
                let Edge { token, next, .. } = self.edges[listed as usize];
                self.hashed.insert((state, token), listed);
                listed = next;
            }
        } else if node.edges > LISTED {
            self.hashed.insert((state, edge.token), at);
        }
        self.count(state, at, edge.count);
    }

    /// Counts `more` of an edge whose own count has been raised by as much.
    fn count(&mut self, state: u32, edge: u32, more: u32) {
        let best = self.node(state).best;
        let is_best = best == NONE || self.edges[edge as usize].count >= self.edges[best as usize].count;
        let node = &mut self.nodes[state as usize];
        node.total += more;
        if is_best {
            node.best = edge;
        }
    }

    /// Gives the suffixes of `shared` that `at` and `token` make a state of their own, since from now on they end at one
    /// place more than the others. Returns it, and how many edges lead to it.
    fn split(&mut self, shared: u32, mut at: u32, token: Token) -> (u32, usize) {
        let (len, link) = (self.node(at).len + 1, self.node(shared).link);
        let split = self.add(Node { len, link, first: NONE, best: NONE, edges: 0, total: 0 });
        // Oldest first, so that the copy is in the same order.
        let mut copied = Vec::with_capacity(self.node(shared).edges as usize);
        let mut edge = self.node(shared).first;
        while edge != NONE {
            copied.push(self.edges[edge as usize]);
            edge = self.edges[edge as usize].next;
        }
        let best = self.best(State(shared)).map(|best| best.token);
        let moved = copied.len();
        for edge in copied.into_iter().rev() {
            self.add_edge(split, edge);
        }
        if let Some(best) = best {
            self.nodes[split as usize].best = self.edge(split, best).expect("copied");
        }
        self.nodes[shared as usize].link = split;
        let mut visited = moved;
        while at != NONE {
            let Some(edge) = self.edge(at, token).filter(|&edge| self.edges[edge as usize].target == shared) else {
                break;
            };
            self.edges[edge as usize].target = split;
            (at, visited) = (self.node(at).link, visited + 1);
        }
        (split, visited)
    }
}
