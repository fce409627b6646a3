"""Writes held-out prompts for measuring: `python examples/train/heldout.py --data DIR --kind python --out FILE`.

Neighbours: `data.py` gives the held-out documents; `acceptance.py` and the engine's `compare` read the lines, each
`{"prompt": .., "source": ..}`. Lengths are counted with the shipped tokenizer, BOS included.

Surprising decision: a prompt is the opening of a file, cut where a block opens, and not a random window. What a code
model is given begins at a beginning and stops where code is due; places within files are used only where there are too
few files for the count asked for.
"""

import argparse
import json
import re
from pathlib import Path

from tokenizers import Tokenizer

from data import CATEGORIES, Document, documents

# Prompts are cut at a line end at most this many tokens past the minimum.
SLACK_TOKENS = 200
BLOCK_OPENER = re.compile(r"\s*(async |def |class |if |elif |else|for |while |with |try|except|finally).*:\s*$")


def prompt_from(tokenizer: Tokenizer, text: str, min_tokens: int) -> str | None:
    """Whole lines from the start of `text`, `min_tokens` to `min_tokens + SLACK_TOKENS` long; None if too short.

    Of the line ends in that range, the last that opens a block (`def f():`) is taken, else the last one.
    """
    kept, best, opens_block = "", None, False
    for line in text[: 16 * (min_tokens + SLACK_TOKENS)].splitlines(keepends=True):
        kept += line
        length = len(tokenizer.encode(kept).ids)
        if length > min_tokens + SLACK_TOKENS:
            break
        block = bool(BLOCK_OPENER.match(line))
        if length >= min_tokens and line.strip() and (block or not opens_block):
            best, opens_block = kept, block
    return best


def openings(tokenizer: Tokenizer, docs: list[Document], min_tokens: int) -> list[dict]:
    """One prompt per document that is long enough and goes on after it."""
    prompts = []
    for doc in docs:
        prompt = prompt_from(tokenizer, doc.text, min_tokens)
        if prompt and len(prompt) < len(doc.text) * 0.9:
            prompts.append({"prompt": prompt, "source": doc.name})
    return prompts


def inner_places(tokenizer: Tokenizer, docs: list[Document], min_tokens: int, count: int) -> list[dict]:
    """Prompts from within documents, starting at top-level definitions, spread over the files in turn."""
    per_doc = []
    for doc in docs:
        lines = doc.text.splitlines(keepends=True)
        starts = [index for index, line in enumerate(lines) if line.startswith(("def ", "class ")) and index > 60]
        found, free_from = [], 0
        for start in starts:
            if start < free_from:
                continue
            prompt = prompt_from(tokenizer, "".join(lines[start:]), min_tokens)
            if prompt:
                found.append({"prompt": prompt, "source": f"{doc.name}:{start + 1}"})
                free_from = start + prompt.count("\n")
        per_doc.append(found)
    prompts = []
    for turn in range(max((len(found) for found in per_doc), default=0)):
        prompts += [found[turn] for found in per_doc if turn < len(found)]
    return prompts[:count]


def word_problems(tokenizer: Tokenizer, docs: list[Document], min_tokens: int, count: int) -> list[dict]:
    """Solved problems as examples, as many as the length asks for, then a question left open."""
    prompts, pending = [], ""
    for doc in docs:
        question = doc.text[: doc.text.index("\nAnswer:") + len("\nAnswer:")]
        if len(tokenizer.encode(pending + question).ids) >= min_tokens:
            prompts.append({"prompt": pending + question, "source": doc.name})
            pending = ""
        else:
            pending += doc.text
    return prompts[:count]


def prompts_of(kind: str, tokenizer: Tokenizer, data_dir: Path, min_tokens: int, count: int) -> list[dict]:
    """`count` prompts of one category, or as many as there are."""
    docs = documents(data_dir, held_out=True)[kind]
    if kind == "gsm8k":
        return word_problems(tokenizer, docs, min_tokens, count)
    if kind == "shakespeare":
        speeches = docs[0].text.split("\n\n")
        docs = [Document(f"shakespeare:{at}", "\n\n".join(speeches[at:])) for at in range(0, len(speeches), 10)]
        return openings(tokenizer, docs, min_tokens)[:count]
    prompts = openings(tokenizer, docs, min_tokens)[:count]
    return prompts + inner_places(tokenizer, docs, min_tokens, count - len(prompts))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write held-out prompts as JSON lines.")
    parser.add_argument("--data", type=Path, required=True, help="folder of gsm8k_train.jsonl, tinyshakespeare.txt")
    parser.add_argument("--kind", choices=CATEGORIES, default="python")
    parser.add_argument("--min-tokens", type=int, default=256)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--tokenizer", type=Path, default=Path("examples/models/tiny/tokenizer.json"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    prompts = prompts_of(args.kind, tokenizer, args.data, args.min_tokens, args.count)
    args.out.write_text("".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8")
    lengths = [len(tokenizer.encode(row["prompt"]).ids) for row in prompts]
    if not lengths:
        raise SystemExit(f"no {args.kind} prompt of at least {args.min_tokens} tokens")
    print(f"{args.out}: {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens")


if __name__ == "__main__":
    main()
