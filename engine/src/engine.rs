//! The engine: what persists between steps, and how requests come and go.
//!
//! Neighbours: `build` makes it from a config, [`step`] drives it, the program and the tests submit
//! requests. One thread calls it; only kernels run in parallel. A queue in arrival order (ids rise) replaces the usual
//! waiting and running lists: a sequence's state says which it is, and preemption moves nothing.

use std::sync::Arc;
use std::time::Instant;

use foretoken_kernels::blocks::KvStore;
use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::abi::sampler::LoadedSampler;
use foretoken_plugin_api::abi::scheduler::LoadedScheduler;
use foretoken_plugin_api::{ForwardSequence, KvStats, LogitRows, RequestId, SeqId, Slot, Token};

use crate::config::{Config, Sampling};
use crate::drafts::DraftStore;
use crate::metrics::SequenceStats;
use crate::model::rows::Rows;
use crate::model::{Decoder, ForwardOut};
use crate::plugins::host::Shared;
use crate::plugins::proposers::ProposerSlot;
use crate::request::{Completion, Event, Request, RequestError};
use crate::self_test::FirstGuesses;
use crate::sequence::{self, Branch, Sequence, Sharing, TextSide};
use crate::step::{self, StepBuffers};
use crate::step_costs::Costs;
use crate::text::{ChatTemplate, StopFilter, StreamDecoder, Tokenizer};

/// The target: weights, keys and values, and the buffers of a pass.
pub struct Target {
    /// The model.
    pub decoder: Arc<Decoder>,
    /// Keys and values of all slots.
    pub kv: KvStore,
    /// The buffers of a pass.
    pub rows: Rows,
}

/// The prompt of a request with several completions: a sequence of the KV manager that nobody runs, from which the
/// siblings are forked.
#[derive(Debug)]
pub struct Template {
    /// Whose prompt.
    pub key: (RequestId, Branch),
    /// The KV manager's sequence.
    pub id: SeqId,
    /// Siblings that have not forked yet.
    pub remaining: usize,
}

/// Everything but the KV manager, which a reservation borrows for most of a step.
pub struct Core {
    pub(crate) config: Config,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) target: Target,
    pub(crate) proposers: Vec<ProposerSlot>,
    pub(crate) sampler: LoadedSampler,
    pub(crate) scheduler: LoadedScheduler,
    /// Whether the scheduler plans pairs.
    pub(crate) plans_pairs: bool,
    pub(crate) drafts: DraftStore,
    pub(crate) queue: Vec<Sequence>,
    pub(crate) templates: Vec<Template>,
    pub(crate) buffers: StepBuffers,
    pub(crate) next_id: u64,
    pub(crate) num_slots: usize,
    /// Steps in a row that ran no row though there was work.
    pub(crate) idle_steps: u32,
    pub(crate) totals: Totals,
    pub(crate) first_guesses: Vec<FirstGuesses>,
    pub(crate) step_costs: Costs,
}

/// What the engine has done since it was built.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Steps that ran rows.
    pub steps: u64,
    /// Rows of all passes.
    pub rows: u64,
    /// Sequences whose slots were taken back, to be recomputed.
    pub preemptions: u64,
}

/// Requests, sequences, the model and the loaded parts.
pub struct Engine {
    pub(crate) core: Core,
    pub(crate) kv: LoadedKv,
}

impl Engine {
    /// Whether a request could run.
    ///
    /// # Errors
    /// What [`submit`](Self::submit) would say.
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        self.core.prompts(request).map(drop)
    }

    /// Takes a request in; its completions start with the next step.
    ///
    /// # Errors
    /// If it could never run: see [`RequestError`].
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
        let prompts = self.core.prompts(&request)?;
        let id = RequestId(self.core.fresh_id());
        let sampling = Arc::new(request.sampling);
        let longest = prompts.iter().map(|(_, prompt)| prompt.len()).max().unwrap_or(0);
        let room = sampling.max_tokens.min(self.core.target.decoder.architecture().max_positions - longest);
        for index in 0..sampling.n {
            for (branch, prompt) in &prompts {
                let sharing = match (sampling.n > 1 && prompt.len() > 1, index) {
                    (false, _) => Sharing::None,
                    (true, 0) => Sharing::Leader,
                    (true, _) => Sharing::Sibling,
                };
                let text = request.text && *branch != Branch::Unconditional;
                let sequence = self.core.sequence(id, (index, *branch), sharing, (prompt, room), &sampling, text);
                self.core.queue.push(sequence);
            }
        }
        Ok(id)
    }

    /// Ends a request at any time; what it has so far comes with the next step's events.
    pub fn abort(&mut self, request: RequestId) {
        for sequence in self.core.queue.iter_mut().filter(|sequence| sequence.request == request) {
            sequence.fail("aborted");
        }
    }

    /// Asks the system now for the memory that `requests` take when `most` of them are in flight: the first touch of a page
    /// takes as long as many rows, and would count as the time of whoever comes first.
    pub fn populate(&self, requests: &[Request], most: usize) {
        let slots = |request: &Request| {
            let Sampling { n, max_tokens, .. } = request.sampling;
            let sequences = if request.sampling.runs_pairs() { 2 * n as usize } else { n as usize };
            sequences * (request.prompt.len() + max_tokens)
        };
        let slots = most * requests.iter().map(slots).max().unwrap_or(0);
        self.core.target.kv.populate(slots);
        self.core.proposers.iter().for_each(|proposer| proposer.lanes.populate(slots));
    }

    /// Whether there is anything to do.
    pub fn has_work(&self) -> bool {
        !self.core.queue.is_empty()
    }

    /// One step over all requests; tells `sink` every new token and every end.
    pub fn step(&mut self, sink: &mut dyn FnMut(Event<'_>)) {
        step::step(self, sink);
    }

    /// Steps until every request has ended.
    pub fn run(&mut self, sink: &mut dyn FnMut(Event<'_>)) {
        while self.has_work() {
            self.step(sink);
        }
    }

    /// Submits `requests`, steps until all have ended, and returns their completions in order.
    ///
    /// # Errors
    /// If one cannot be served; those before it stay submitted.
    pub fn complete(&mut self, requests: impl IntoIterator<Item = Request>) -> Result<Vec<Completion>, RequestError> {
        for request in requests {
            self.submit(request)?;
        }
        let mut done = Vec::new();
        self.run(&mut |event| {
            if let Event::Finished(completion) = event {
                done.push(completion);
            }
        });
        done.sort_by_key(|completion| (completion.request, completion.index));
        Ok(done)
    }

    /// The median cost of one pass with a single row after `context` tokens, in milliseconds: what a step of plain
    /// decoding costs here. `None` without proposers, where nothing is to be compared.
    ///
    /// Runs before any request, on slots that nobody holds.
    pub fn measure_plain_step(&mut self, context: Option<usize>) -> Option<f64> {
        if self.core.proposers.is_empty() || self.has_work() {
            return None;
        }
        let context = context?.min(self.core.num_slots - 1);
        let slots: Vec<Slot> = (0..=context as u32).map(Slot).collect();
        let (context, own) = slots.split_at(context);
        let mut logits = vec![0.0; self.core.target.decoder.architecture().vocab_size];
        let mut times = [0.0; 5];
        for time in &mut times {
            let start = Instant::now();
            let row = ForwardSequence::chain(&[0], context, own, LogitRows::Last);
            let out = ForwardOut { logits: &mut logits, hidden: &mut () };
            let Target { decoder, kv, rows } = &mut self.core.target;
            rows.forward(decoder, &[row], &mut kv.view_mut(), out);
            *time = start.elapsed().as_secs_f64() * 1e3;
        }
        times.sort_by(f64::total_cmp);
        Some(times[times.len() / 2])
    }

    /// The KV manager's balance.
    ///
    /// # Errors
    /// The plugin's.
    pub fn kv_stats(&mut self) -> foretoken_plugin_api::Result<KvStats> {
        self.kv.stats()
    }

    /// The resolved config it was made from.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.core.tokenizer
    }

    /// The model.
    pub fn decoder(&self) -> &Decoder {
        &self.core.target.decoder
    }

    /// The model's chat template, rendered for one user message.
    ///
    /// # Errors
    /// If the model has none, or it refuses the message.
    pub fn chat_tokens(&self, message: &str) -> anyhow::Result<Vec<u32>> {
        let template = ChatTemplate::open(&self.core.config.model)?;
        let text = template.render(&[crate::text::ChatMessage::new("user", message)], true)?;
        Ok(self.core.tokenizer.encode_rendered(&text)?)
    }

    /// What it has done so far.
    pub fn totals(&self) -> Totals {
        self.core.totals
    }

    /// Nanoseconds of passes, by rows, as timed when the engine was built; nothing without proposers.
    pub fn step_costs(&self) -> &[(u32, u64)] {
        &self.core.step_costs
    }

    /// Each proposer's name, faults and last fault.
    pub fn faults(&self) -> impl Iterator<Item = (&str, u32, Option<&str>)> {
        self.core.proposers.iter().map(|proposer| {
            let (faults, last) = proposer.faults();
            (proposer.name.as_str(), faults, last)
        })
    }

    /// How the proposers with a network did on a short text when the engine was built.
    pub fn first_guesses(&self) -> &[FirstGuesses] {
        &self.core.first_guesses
    }

    /// The plugins' own counters.
    pub fn counters(&self) -> crate::plugins::host::Counters {
        self.core.shared.counters.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The queue's index of a sequence.
    pub(crate) fn index_of(queue: &[Sequence], id: SeqId) -> Option<usize> {
        queue.binary_search_by_key(&id, |sequence| sequence.id).ok()
    }
}

impl Core {
    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// What the sequences of one completion start from, if the request could run.
    fn prompts(&self, request: &Request) -> Result<Vec<(Branch, Vec<Token>)>, RequestError> {
        let sampling = &request.sampling;
        let negative = || self.tokenizer.encode(sampling.negative_prompt.as_deref().unwrap_or(""));
        let prompts = if sampling.guidance_scale == 0.0 {
            vec![(Branch::Alone, negative()?)]
        } else if sampling.runs_pairs() {
            if !self.plans_pairs {
                return Err(RequestError::no_pairs(sampling, &self.config.scheduler.name));
            }
            vec![(Branch::Conditional, request.prompt.clone()), (Branch::Unconditional, negative()?)]
        } else {
            vec![(Branch::Alone, request.prompt.clone())]
        };
        self.check_sampling(request)?;
        let slots = self.num_slots;
        for (_, prompt) in &prompts {
            self.check_prompt(prompt)?;
        }
        match &prompts[..] {
            [(_, prompt), (_, negative)] if prompt.len() + negative.len() > slots => {
                Err(RequestError::PairNeverFits { prompt: prompt.len(), negative: negative.len(), slots })
            }
            _ => Ok(prompts),
        }
    }

    fn check_prompt(&self, prompt: &[Token]) -> Result<(), RequestError> {
        let tokens = prompt.len();
        let architecture = self.target.decoder.architecture();
        let (context, vocab) = (architecture.max_positions, architecture.vocab_size);
        if tokens == 0 {
            return Err(RequestError::Empty);
        }
        if tokens >= context {
            return Err(RequestError::TooLong { tokens, context });
        }
        if tokens > self.num_slots {
            return Err(RequestError::NeverFits { tokens, slots: self.num_slots });
        }
        match prompt.iter().find(|token| **token as usize >= vocab) {
            Some(&token) => Err(RequestError::NoSuchToken { token, vocab }),
            None => Ok(()),
        }
    }

    fn check_sampling(&self, request: &Request) -> Result<(), RequestError> {
        if !request.text && !request.sampling.stop.is_empty() {
            return Err(RequestError::StopNeedsText);
        }
        match &request.sampling.proposer {
            Some(name) if !self.proposers.iter().any(|proposer| proposer.name == *name) => {
                let known: Vec<&str> = self.proposers.iter().map(|proposer| proposer.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(RequestError::NoSuchProposer { name: name.clone(), known })
            }
            _ => Ok(()),
        }
    }

    fn sequence(
        &mut self,
        request: RequestId,
        (index, branch): (u32, Branch),
        sharing: Sharing,
        (prompt, room): (&[Token], usize),
        sampling: &Arc<Sampling>,
        text: bool,
    ) -> Sequence {
        let max_len = prompt.len() + room;
        let mut tokens = Vec::with_capacity(max_len);
        tokens.extend_from_slice(prompt);
        let text = text.then(|| StreamDecoder::new(Arc::clone(&self.tokenizer), prompt).ok()).flatten();
        Sequence {
            id: SeqId(self.fresh_id()),
            request,
            index,
            branch,
            tokens,
            prompt_len: prompt.len(),
            computed: 0,
            admitted: false,
            sharing,
            sampling: Arc::clone(sampling),
            lane_valid: self.proposers.iter().map(|proposer| vec![0; proposer.needs.lanes.len()]).collect(),
            text: text.map(|decoder| TextSide::new(decoder, StopFilter::new(&sampling.stop))),
            stats: SequenceStats::default(),
            finished: None,
            max_len,
            started: None,
        }
    }

    /// Fails everything in the queue.
    pub(crate) fn fail_all(&mut self, error: &str) {
        self.queue.iter_mut().for_each(|sequence| sequence.fail(error));
    }

    /// Two steps in a row that ran nothing though there was work: whatever holds slots without running gives way, then
    /// the oldest request does.
    pub(crate) fn watch_progress(&mut self, kv: &mut LoadedKv) {
        let idle = self.buffers.entries.is_empty() && !self.buffers.preempted && !self.queue.is_empty();
        self.idle_steps = if idle { self.idle_steps + 1 } else { 0 };
        if self.idle_steps < 2 {
            return;
        }
        self.idle_steps = 0;
        if !self.templates.is_empty() {
            for template in std::mem::take(&mut self.templates) {
                step::commit::drop_template(self, kv, &template);
            }
            return;
        }
        if let Some(index) = self.queue.iter().position(|sequence| sequence.finished.is_none()) {
            let (rows, slots) = (self.queue[index].tokens.len(), self.num_slots);
            let negative = sequence::companion(&self.queue, index).map(|other| self.queue[other].tokens.len());
            let beside =
                negative.map_or_else(String::new, |negative| format!(" beside {negative} of the negative prompt"));
            let scheduler = &self.config.scheduler.name;
            let error = format!(
                "the scheduler `{scheduler}` cannot run it: it has {rows} tokens{beside}, the KV {slots} slots; fix: raise kv.num_slots"
            );
            sequence::fail(&mut self.queue, index, error);
        }
    }

    /// Removes ended sequences and delivers them.
    pub(crate) fn deliver(&mut self, kv: &mut LoadedKv, sink: &mut dyn FnMut(Event<'_>)) {
        if !self.queue.iter().any(|sequence| sequence.finished.is_some()) {
            return;
        }
        for index in 0..self.queue.len() {
            if self.queue[index].finished.is_none() {
                continue;
            }
            self.release(kv, index);
            if self.queue[index].branch != Branch::Unconditional {
                let completion = self.queue[index].complete();
                sink(Event::Finished(completion));
            }
        }
        self.queue.retain(|sequence| sequence.finished.is_none());
    }

    /// Gives the slots and the plugins' state of an ended sequence back.
    fn release(&mut self, kv: &mut LoadedKv, index: usize) {
        let (id, admitted) = (self.queue[index].id, self.queue[index].admitted);
        if admitted {
            if let Err(error) = kv.free(id) {
                tracing::error!("kv manager `{}`: free: {error}", self.config.kv.name);
            }
            self.proposers.iter_mut().for_each(|proposer| proposer.finish(id));
        }
        match self.queue[index].sharing {
            Sharing::Sibling => step::commit::template_used(self, kv, self.queue[index].prompt_key()),
            Sharing::Leader => self.promote_sibling(index),
            Sharing::None => {}
        }
    }

    /// A leader ended before the prompt was computed: the next sibling leads.
    fn promote_sibling(&mut self, index: usize) {
        let key = self.queue[index].prompt_key();
        let waiting = |sequence: &&mut Sequence| {
            sequence.prompt_key() == key && sequence.sharing == Sharing::Sibling && sequence.finished.is_none()
        };
        if let Some(next) = self.queue.iter_mut().find(waiting) {
            next.sharing = Sharing::Leader;
        }
    }

    /// Ends all requests that a failing plugin touches.
    pub(crate) fn fail_entries(&mut self, error: &str) {
        let entries = std::mem::take(&mut self.buffers.entries);
        for entry in &entries {
            sequence::fail(&mut self.queue, entry.index, error);
        }
        self.buffers.entries = entries;
    }
}
