"""The target's own greedy continuations of training text, for the draft to learn from.

Neighbours: `train.py` trains tiny-draft on them, `unlikelihood.py` tunes tiny on them; `decode.py` generates.

Surprising decision: in its last stage the draft learns no human text, only what the target wrote after it. While
decoding, it is asked about text of the target's, whose habits (above all its repetitions) are rare in any corpus; a
draft trained on text alone is accepted less (DistillSpec, arXiv 2310.08461; sequence-level distillation, arXiv
1606.07947). It takes a lot: of 98 thousand tokens the draft learns the very words, of a million the habits. Prompts are
training text only, so the held-out files stay unseen.
"""

from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from data import Sampler
from decode import Decoder
from model import Llama
from optim import autocast

ROWS = 128
PROMPT_TOKENS = 255
NEW_TOKENS = 192
# Added to the tokens of prompts, which the draft reads and does not learn; above every token of the vocabulary.
PROMPT_MARK = 1 << 15


def write(target: Llama, sampler: Sampler, batches: int) -> np.ndarray:
    """`batches * ROWS` documents of BOS, prompt and continuation, as one stream of tokens."""
    device = target.model.embed_tokens.weight.device
    pieces = []
    for index in tqdm(range(batches), desc="continuations", disable=None):
        prompts = sampler.batch(-1 - index, ROWS, PROMPT_TOKENS).tolist()
        with autocast(device):
            output = Decoder(target, ROWS).greedy(prompts, NEW_TOKENS)
        pieces += [prompt + written for prompt, written in zip(prompts, output)]
    return np.array(pieces, dtype=np.uint16).reshape(-1)


def load_or_write(target: Llama, sampler: Sampler, batches: int, path: Path) -> np.ndarray:
    """The stream kept at `path`, written first if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, write(target, sampler, batches))
    return np.load(path)


def mark_prompts(written: np.ndarray) -> np.ndarray:
    """The stream with `PROMPT_MARK` added to each document's BOS and prompt."""
    documents = written.reshape(-1, PROMPT_TOKENS + 1 + NEW_TOKENS).copy()
    documents[:, : PROMPT_TOKENS + 1] += PROMPT_MARK
    return documents.reshape(-1)
