"""Draws `loss.svg` from the log of a run, in the model's folder.

Neighbours: `train.py` writes the log. One picture per model: training loss as a line, held-out Python loss as dots.

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


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the loss curves of a run.")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "foretoken-train")
    parser.add_argument("--out", type=Path, default=Path("examples/models"))
    args = parser.parse_args()
    for name in LABELS:
        log = args.work / name / "log.csv"
        if log.exists():
            draw(name, log, args.out / name / "loss.svg")
            print(args.out / name / "loss.svg")


if __name__ == "__main__":
    main()
