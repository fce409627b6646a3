"""Draws the log of a run, in the model's folder: `loss.svg` of a model, `hits.svg` of a draft head.

Neighbours: `train.py` and `heads.py` write the logs. Of a model, training loss is a line and held-out Python loss dots; of a
head, a line for each step of a draft: how often its guess is the target's.

Surprising decision: the two lines are not expected to meet. Training loss is over the whole mix and, for the draft,
a divergence from the target on its own text; held-out loss is always cross-entropy on unseen Python files.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

LABELS = {"tiny": "training, cross-entropy", "tiny-draft": "distillation, KL to sharpened tiny"}


def draw(name: str, log: Path, out: Path) -> None:
    """One SVG, a few kilobytes; at most 400 points of the training curve."""
    rows = list(csv.DictReader(log.read_text().splitlines()))
    kept = rows[:: max(len(rows) // 400, 1)]
    heldout = [row for row in rows if row["heldout"]]
    matplotlib.rcParams["svg.hashsalt"] = name
    figure, axes = plt.subplots(figsize=(7, 4))
    tokens, losses = [int(row["tokens"]) / 1e6 for row in kept], [float(row["loss"]) for row in kept]
    axes.plot(tokens, losses, lw=1, label=LABELS[name])
    axes.plot(
        [int(row["tokens"]) / 1e6 for row in heldout],
        [float(row["heldout"]) for row in heldout],
        "o-",
        ms=3,
        lw=0.8,
        label="held-out Python files, cross-entropy",
    )
    axes.set(xlabel="million tokens", ylabel="nats per token", title=name)
    top = max((float(row["heldout"]) for row in heldout), default=6.0)
    axes.set_ylim(0, 1.1 * top)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)


def draw_hits(name: str, log: Path, out: Path) -> None:
    """One SVG: the share of guesses that are the target's, by step of the draft, as training goes."""
    rows = list(csv.DictReader(log.read_text().splitlines()))
    tokens = [int(row["tokens"]) / 1e6 for row in rows]
    hits = [[float(share) for share in row["hits"].split()] for row in rows]
    matplotlib.rcParams["svg.hashsalt"] = name
    figure, axes = plt.subplots(figsize=(7, 4))
    for step, shares in enumerate(zip(*hits), 1):
        axes.plot(tokens, shares, lw=1, label=f"step {step} of a draft")
    axes.set(xlabel="million tokens", ylabel="guesses that are the target's", title=name, ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the curves of the runs in a work folder.")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "foretoken-train")
    parser.add_argument("--out", type=Path, default=Path("examples/models"))
    args = parser.parse_args()
    for name in LABELS:
        log = args.work / name / "log.csv"
        if log.exists():
            draw(name, log, args.out / name / "loss.svg")
            print(args.out / name / "loss.svg")
    for log in sorted(args.work.glob("*/log.csv")):
        if log.read_text().startswith("step,tokens,seconds,loss,hits"):
            name = log.parent.name
            draw_hits(name, log, args.out / name / "hits.svg")
            print(args.out / name / "hits.svg")


if __name__ == "__main__":
    main()
