"""Held-out bits per byte of a model, per category; also a command over exported model folders.

Neighbours: `data.py` gives the held-out documents, `train.py` calls `windows` and `mean_loss` for its loss curve,
`export.py` loads the folders. The command also prints the overlap of two models, sum over tokens of
min(target_prob, draft_prob), which is the acceptance rate of speculative sampling at temperature 1 (arXiv 2211.17192).

Surprising decision: bits per byte, not perplexity per token. It does not depend on the tokenizer, so the figures can be
set beside those of other models.
"""

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F

from data import Document, documents
from optim import autocast

IGNORED = -100
STRIDE_SHARE = 2


def windows(tokenizer, docs: list[Document], context: int) -> list[tuple[list[int], int]]:
    """Cuts documents into `(tokens, first scored target)`; later windows see half a context before they are scored."""
    cut = []
    for doc in docs:
        tokens = tokenizer.encode(doc.text).ids
        stride = context // STRIDE_SHARE
        scored = 0
        for start in range(0, max(len(tokens) - 1, 1), stride):
            # Every training window begins with BOS, so a later window's unscored first token gives way to it.
            piece = tokens[:1] + tokens[start + 1 : start + context + 1]
            if len(piece) - 1 <= scored - start:
                break
            cut.append((piece, scored - start))
            scored = start + len(piece) - 1
    return sorted(cut, key=lambda item: len(item[0]))


def batches(cut: list[tuple[list[int], int]], rows: int, device: str):
    """Right-padded `(inputs, targets)`, both `[rows, length]`; targets not to be scored are `IGNORED`."""
    for first in range(0, len(cut), rows):
        group = cut[first : first + rows]
        length = max(len(tokens) for tokens, _ in group) - 1
        inputs = torch.zeros(len(group), length, dtype=torch.long)
        targets = torch.full((len(group), length), IGNORED, dtype=torch.long)
        for row, (tokens, scored_from) in enumerate(group):
            inputs[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
            targets[row, scored_from : len(tokens) - 1] = torch.tensor(tokens[1 + scored_from :])
        yield inputs.to(device), targets.to(device)


@torch.no_grad()
def total_loss(model, cut, device: str, rows: int = 8) -> tuple[float, int]:
    """Summed negative log-likelihood in nats, and the number of scored tokens."""
    total, count = 0.0, 0
    for inputs, targets in batches(cut, rows, device):
        with autocast(torch.device(device)):
            logits = model(inputs)
        total += F.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        ).item()
        count += int((targets != IGNORED).sum())
    return total, count


def mean_loss(model, cut, device: str) -> float:
    """Nats per token."""
    total, count = total_loss(model, cut, device)
    return total / count


def bits_per_byte(model, tokenizer, data_dir: Path, device: str) -> dict[str, float]:
    """Held-out bits per byte by category."""
    result = {}
    for name, docs in documents(data_dir, held_out=True).items():
        total, _ = total_loss(model, windows(tokenizer, docs, model.shape.context), device)
        result[name] = total / math.log(2) / sum(len(doc.text.encode()) for doc in docs)
    return result


@torch.no_grad()
def overlap(target, draft, tokenizer, data_dir: Path, device: str) -> dict[str, float]:
    """Mean over held-out positions of the overlap of the two next-token distributions, by category."""
    result = {}
    for name, docs in documents(data_dir, held_out=True).items():
        total, count = 0.0, 0
        for inputs, targets in batches(windows(tokenizer, docs, target.shape.context), 8, device):
            with autocast(torch.device(device)):
                target_prob = target(inputs).float().softmax(-1)
                draft_prob = draft(inputs).float().softmax(-1)
            shared = torch.minimum(target_prob, draft_prob).sum(-1)[targets != IGNORED]
            total += shared.sum().item()
            count += shared.numel()
        result[name] = total / count
    return result


def main() -> None:
    from export import load

    parser = argparse.ArgumentParser(description="Held-out bits per byte, and the overlap of target and draft.")
    parser.add_argument("--data", type=Path, required=True, help="folder of gsm8k_train.jsonl, tinyshakespeare.txt")
    parser.add_argument("--target", type=Path, default=Path("examples/models/tiny"))
    parser.add_argument("--draft", type=Path, default=Path("examples/models/tiny-draft"))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    target, tokenizer = load(args.target, args.device)
    draft, _ = load(args.draft, args.device)
    report = {
        "target_bits_per_byte": bits_per_byte(target, tokenizer, args.data, args.device),
        "draft_bits_per_byte": bits_per_byte(draft, tokenizer, args.data, args.device),
        "overlap": overlap(target, draft, tokenizer, args.data, args.device),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
