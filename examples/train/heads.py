"""Trains a draft head for a Llama-style target: `python examples/train/heads.py --data DIR --head eagle3`.

Neighbours: `heads_model.py` computes, `continuations.py` writes the text, `optim.py` updates, `export.py` reads the
target. The target is frozen: a head learns to foretell what the target writes next from the target's own hidden rows.

The target foretells what follows a token of any text, so training text serves too, and there is more of it than a
target writes in an hour.

Surprising decision: every step of a batch runs the head several times over the same text, each time on its own last
guesses instead of the target's hidden rows (training-time test, EAGLE-3, arXiv 2503.01840, section 3.1). A head that
has only ever seen the target's rows drafts one good token and then none.
"""

import argparse
import csv
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from safetensors.torch import save
from tqdm import tqdm

import continuations
import optim
from data import MIX, Sampler, load_streams
from export import load
from heads_model import HEADS, target_rows

LOG_STEPS = 20
CHECKPOINT_SECONDS = 240
# Later steps of a draft are reached less often, so they weigh less.
STEP_DECAY = 0.8
# Below 1 the head spends itself on what the target is likeliest to write.
TEACHER_TEMPERATURE = 0.5
PROMPT_WEIGHT = 0.3
WARMUP_STEPS = 30


def head_loss(head, target, batch: torch.Tensor, steps: int) -> tuple[torch.Tensor, list[float]]:
    """KL from the target's sharpened distribution, summed over `steps` unrolled steps, and the share of first guesses
    that are the target's, by step; `batch` is `[rows, length]`, prompts marked."""
    learned = batch < continuations.PROMPT_MARK
    tokens = batch % continuations.PROMPT_MARK
    with torch.no_grad():
        rows, logits = target_rows(target, tokens)
        wanted = (logits / TEACHER_TEMPERATURE).softmax(-1)
    total, hits = torch.zeros((), device=batch.device), []
    for step, (guess, places) in enumerate(head.unroll(target, tokens, rows, steps)):
        teacher = wanted[:, places]
        # The target foretells what follows a prompt's tokens too, but is asked about its own.
        weight = torch.where(learned, 1.0, PROMPT_WEIGHT)[:, places]
        counts = learned[:, places].float()
        log = guess.float().log_softmax(-1)
        loss = -(head.restrict(teacher) * log).sum(-1)
        total = total + STEP_DECAY**step * (loss * weight).sum() / weight.sum()
        with torch.no_grad():
            same = head.widen(guess.argmax(-1)) == teacher.argmax(-1)
            hits.append(((same * counts).sum() / counts.sum()).item())
    return total, hits


def fit(head, target, sampler: Sampler, args, folder: Path, device: torch.device) -> None:
    """Trains by the clock; resumes from a checkpoint in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    optimisers = optim.build(head)
    path, step, before = folder / "checkpoint.pt", 0, 0.0
    if path.exists():
        saved = torch.load(path, map_location=device, weights_only=True)
        head.load_state_dict(saved["head"])
        for optimiser, state in zip(optimisers, saved["optimisers"]):
            optimiser.load_state_dict(state)
        step, before = saved["step"], saved["elapsed"]
    else:
        (folder / "log.csv").write_text("step,tokens,seconds,loss,hits\n")
    started = saved_at = time.monotonic()
    bar = tqdm(total=1.0, desc=args.head, disable=None, bar_format="{l_bar}{bar}| {postfix}")
    elapsed, window = before, []

    def keep() -> None:
        states = [optimiser.state_dict() for optimiser in optimisers]
        torch.save({"head": head.state_dict(), "optimisers": states, "step": step, "elapsed": elapsed}, path)

    while elapsed < 60 * args.minutes:
        progress = elapsed / (60 * args.minutes)
        optim.set_rate(optimisers, step, progress, args.rate, WARMUP_STEPS)
        batch = torch.from_numpy(sampler.batch(step, args.rows, args.length)[:, :-1]).to(device)
        with optim.autocast(device):
            loss, hits = head_loss(head, target, batch, args.unroll)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step += 1
        elapsed = before + time.monotonic() - started
        window.append([loss.item(), *hits])
        if step % LOG_STEPS == 0:
            mean = np.mean(window, axis=0)
            window.clear()
            count = step * args.rows * args.length
            shares = " ".join(f"{share:.3f}" for share in mean[1:])
            with open(folder / "log.csv", "a", newline="") as file:
                csv.writer(file).writerow([step, count, f"{elapsed:.1f}", f"{mean[0]:.4f}", shares])
            line = f"step {step} loss {mean[0]:.3f} {count / 1e6:.2f}M tokens {elapsed / 60:.1f} min, hits {shares}"
            bar.update(progress - bar.n)
            bar.set_postfix_str(line)
            if bar.disable:
                print(f"{100 * progress:.1f}% {line}", flush=True)
        if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            keep()
            saved_at = time.monotonic()
    keep()


def export_head(head, folder: Path) -> None:
    """Writes the head's config and bf16 weights under the names that its published checkpoints have."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16) if weight.is_floating_point() else weight.cpu()
        for name, weight in head.published().items()
    }
    weights = {name: weight.contiguous() for name, weight in weights.items()}
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / "config.json").write_text(json.dumps(head.config(), indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a draft head for a Llama-style target.")
    parser.add_argument("--data", type=Path, required=True, help="folder of gsm8k_train.jsonl, tinyshakespeare.txt")
    parser.add_argument("--head", choices=list(HEADS), required=True)
    parser.add_argument("--target", type=Path, default=Path("examples/models/tiny"), help="the target's folder")
    parser.add_argument("--out", type=Path, default=Path("examples/models"), help="where the head's folder goes")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "foretoken-train")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--minutes", type=float, default=60, help="length of the training")
    parser.add_argument("--rows", type=int, default=8, help="sequences per step")
    parser.add_argument("--length", type=int, default=448, help="tokens per sequence")
    parser.add_argument("--unroll", type=int, default=5, help="steps that the head is run on its own guesses")
    parser.add_argument("--continuations", type=int, default=24, help="batches of the target's own text")
    parser.add_argument("--text", type=float, default=0.5, help="share of training text, beside the target's own")
    parser.add_argument("--rate", type=float, default=0.6, help="share of the recipe's peak learning rates")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for PyTorch's own choice")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    target, tokenizer = load(args.target)
    target.to(device).requires_grad_(False)
    text = Sampler(load_streams(tokenizer, args.data, args.work), MIX, 0, args.seed)
    stamp = args.target.name
    written = continuations.load_or_write(target, text, args.continuations, args.work / f"continuations-{stamp}.npy")
    streams = {**text.streams, "continuations": continuations.mark_prompts(written)}
    mix = {name: share * args.text for name, share in MIX.items()}
    sampler = Sampler(streams, {**mix, "continuations": 1 - args.text}, 0, args.seed)
    head = HEADS[args.head](target.shape)
    print(f"{args.head}: {sum(weight.numel() for weight in head.parameters()):,} parameters", flush=True)
    head.begin(torch.bincount(torch.from_numpy(written.astype(np.int64)), minlength=target.shape.vocab), target)
    head.to(device)
    name = f"{args.target.name}-{args.head}"
    fit(head, target, sampler, args, args.work / name, device)
    export_head(head, args.out / name)
    print(f"{name}: written to {args.out / name}", flush=True)


if __name__ == "__main__":
    main()
