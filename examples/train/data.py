"""The texts the shipped models are trained and measured on, and the split between the two.

Neighbours: `tokenizer.py` learns from the training split, `train.py` samples windows of it, `evaluate.py` and
`heldout.py` read the held-out split. Three categories: the Python standard library of the running interpreter,
gsm8k word problems, and tinyshakespeare.

Surprising decision: Python is held out by whole file, chosen by a hash of its relative path, instead of by a random
share of lines. Files repeat themselves, so a line-wise split would measure memory; a hash needs no list to be kept.
"""

import hashlib
import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CATEGORIES = ("python", "gsm8k", "shakespeare")
# Share of training sequences per category. Python is what the models are measured on.
MIX = {"python": 0.74, "gsm8k": 0.18, "shakespeare": 0.08}
HELDOUT_PER_MILLE = 25
SHAKESPEARE_HELDOUT = 0.05

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
# Tables and generated text, not code; the sysconfig dump also holds paths of the machine Python was built on.
SKIPPED_PREFIXES = ("encodings/", "pydoc_data/", "_sysconfigdata", "config-")


@dataclass(frozen=True)
class Document:
    """One text with the name it was found under (`python/json/decoder.py`, `gsm8k/17`, `shakespeare`)."""

    name: str
    text: str


def is_held_out(key: str) -> bool:
    """Whether the document called `key` belongs to the held-out split; the same on every machine."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % 1000 < HELDOUT_PER_MILLE


def gsm8k_text(question: str, answer: str) -> str:
    """The training form of a word problem; the tokenizer's chat template writes the same words."""
    return f"Question: {question.strip()}\nAnswer: {answer.strip()}\n"


def python_documents(held_out: bool) -> list[Document]:
    """Files of the standard library, tests and tables left out, sorted by path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if SKIPPED_FOLDERS & set(relative.split("/")) or relative.startswith(SKIPPED_PREFIXES):
            continue
        if is_held_out(relative) != held_out:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if len(text) >= 64:
            documents.append(Document(f"python/{relative}", text))
    return documents


def gsm8k_documents(data_dir: Path, held_out: bool) -> list[Document]:
    """Word problems with their worked answers, in file order."""
    documents = []
    with open(data_dir / "gsm8k_train.jsonl", encoding="utf-8") as lines:
        for index, line in enumerate(lines):
            row = json.loads(line)
            if is_held_out(row["question"]) == held_out:
                documents.append(Document(f"gsm8k/{index}", gsm8k_text(row["question"], row["answer"])))
    return documents


def shakespeare_documents(data_dir: Path, held_out: bool) -> list[Document]:
    """One document: the plays up to the held-out end, or that end, cut between two speeches."""
    text = (data_dir / "tinyshakespeare.txt").read_text(encoding="utf-8")
    cut = text.index("\n\n", int(len(text) * (1 - SHAKESPEARE_HELDOUT))) + 2
    return [Document("shakespeare", text[cut:] if held_out else text[:cut])]


def documents(data_dir: Path, held_out: bool) -> dict[str, list[Document]]:
    """All documents of one split, by category."""
    return {
        "python": python_documents(held_out),
        "gsm8k": gsm8k_documents(data_dir, held_out),
        "shakespeare": shakespeare_documents(data_dir, held_out),
    }


class Sampler:
    """Draws training windows `[rows, length + 1]`; every window starts with BOS, as every prompt does.

    A batch is a function of `(seed, step)` alone, so a resumed run sees what the uninterrupted one would have seen.
    """

    def __init__(self, streams: dict[str, np.ndarray], mix: dict[str, float], bos_id: int, seed: int):
        self.streams = streams
        self.mix = mix
        self.bos_id = bos_id
        self.seed = seed

    def batch(self, step: int, rows: int, length: int) -> np.ndarray:
        """Windows for one step: BOS, then `length` consecutive tokens of one category's stream."""
        # Negative steps are free for other uses; the generator wants unsigned numbers.
        rng = np.random.default_rng([self.seed, step % 2**32])
        names = rng.choice(list(self.mix), size=rows, p=list(self.mix.values()))
        windows = np.full((rows, length + 1), self.bos_id, dtype=np.int64)
        for row, name in enumerate(names):
            stream = self.streams[name]
            start = int(rng.integers(len(stream) - length))
            # A window that starts on a document's own BOS keeps a single one.
            start += int(stream[start] == self.bos_id)
            piece = stream[start : start + length]
            windows[row, 1 : 1 + len(piece)] = piece
        return windows


def encode_streams(tokenizer, split: dict[str, list[Document]]) -> dict[str, np.ndarray]:
    """Each category's documents as one token stream, every document preceded by BOS."""
    streams = {}
    for name, docs in split.items():
        encoded = tokenizer.encode_batch([doc.text for doc in docs])
        streams[name] = np.concatenate([np.array(item.ids, dtype=np.uint16) for item in encoded])
    return streams


def load_streams(tokenizer, data_dir: Path, work: Path) -> dict[str, np.ndarray]:
    """Training streams, from the cache in `work` where it was made by this tokenizer."""
    stamp = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:12]
    cache = work / f"tokens-{stamp}.npz"
    if not cache.exists():
        np.savez(cache, **encode_streams(tokenizer, documents(data_dir, held_out=False)))
    with np.load(cache) as arrays:
        return {name: arrays[name] for name in CATEGORIES}
