"""A short tuning of tiny against its own repetitions, after training on text.

Neighbours: `train.py` runs it as the stage `tiny-tuned`, whose result is what is shipped and what teaches the draft;
`continuations.py` writes the greedy text it works on; `optim.py` gives the optimisers, at a tenth of their rates.

Surprising decision: a model this small falls into loops under greedy decoding, and in a loop every proposer looks
brilliant. So each token of tiny's own text that completes a 4-gram already written is made less likely, by
-log(1 - prob) (Welleck et al., arXiv 1908.04319, section 4.2), beside cross-entropy on ordinary text. The result is
averaged with the untuned weights (arXiv 2109.01903), which keeps much of the effect at half of the cost in loss.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import continuations
import optim
from data import Sampler
from model import Llama

GRAM = 4
TEXT_ROWS = 4
WRITTEN_ROWS = 6
RATE_SHARE = 0.1
BATCHES = 5
# Share of the tuned weights in the average.
TUNED_SHARE = 0.58
LOG_STEPS = 10


def repeats(document: np.ndarray, start: int) -> np.ndarray:
    """Which tokens from `start` on complete a `GRAM`-gram that occurred earlier, also from `start` on."""
    marked = np.zeros(len(document), dtype=bool)
    seen = set()
    for end in range(start + GRAM, len(document) + 1):
        gram = tuple(document[end - GRAM : end].tolist())
        marked[end - 1] = gram in seen
        seen.add(gram)
    return marked


def tuning_loss(model: Llama, batch: torch.Tensor, marked: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the first `TEXT_ROWS` rows plus unlikelihood of the marked tokens, both per token."""
    log = model(batch[:, :-1]).float().log_softmax(-1)
    log = log.gather(-1, batch[:, 1:, None])[..., 0]
    # Away from 1, where the logarithm's slope has no bound.
    unlikely = -torch.log1p(-log.exp().clamp(max=0.999)) * marked[:, 1:]
    return -log[:TEXT_ROWS].mean() + unlikely.sum() / marked.sum().clamp(min=1)


def unlearn(model: Llama, sampler: Sampler, written: np.ndarray, steps: int, compiled: bool) -> None:
    """Tunes `model` in place on its continuations, `written`."""
    device = model.model.embed_tokens.weight.device
    length = continuations.PROMPT_TOKENS + 1 + continuations.NEW_TOKENS
    rows = written.reshape(-1, length).astype(np.int64)
    marks = np.stack([repeats(row, continuations.PROMPT_TOKENS + 1) for row in rows])
    print(f"repeated 4-grams: {100 * marks.sum() / (len(rows) * continuations.NEW_TOKENS):.0f}% of tokens", flush=True)
    # Documents without a repetition teach nothing here.
    rows, marks = rows[marks.any(1)], marks[marks.any(1)]
    loss_of = torch.compile(tuning_loss, dynamic=False) if compiled else tuning_loss
    optimisers = optim.build(model)
    for step in range(steps):
        optim.set_rate(optimisers, optim.WARMUP_STEPS, step / steps, peak_share=RATE_SHARE)
        picked = np.random.default_rng([sampler.seed, step]).choice(len(rows), WRITTEN_ROWS, replace=False)
        text = sampler.batch(-10_000 - step, TEXT_ROWS, length - 1)
        batch = torch.from_numpy(np.concatenate([text, rows[picked]])).to(device)
        marked = torch.from_numpy(np.concatenate([np.zeros_like(text, dtype=bool), marks[picked]])).to(device)
        with optim.autocast(device):
            loss = loss_of(model, batch, marked.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        if step % LOG_STEPS == 0:
            print(f"tiny-tuned step {step} of {steps} loss {loss.item():.3f}", flush=True)


def tune(model: Llama, sampler: Sampler, steps: int, work: Path, compiled: bool) -> None:
    """Unlearns repetitions in place, then goes part of the way back."""
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    written = continuations.load_or_write(model, sampler, BATCHES, work / "continuations.npy")
    unlearn(model, sampler, written, steps, compiled)
    model.load_state_dict({name: before[name].lerp(weight, TUNED_SHARE) for name, weight in model.state_dict().items()})
