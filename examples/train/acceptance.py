"""Measures chain drafting on held-out prompts: tokens per target pass, for the draft model and for prompt lookup.

Neighbours: `heldout.py` writes the prompts, `decode.py` generates, `export.py` loads the folders. A slow twin of what
the engine does, kept so that the engine's figures can be checked against an independent count.

Surprising decision: no speculative loop is run. Greedy output is the target's own whatever is proposed, so it is
generated once, and each pass is then replayed: which of K proposals would have matched. This is exact for greedy
decoding, and a whole measurement takes a minute.
"""

import argparse
import json
from pathlib import Path

from decode import Decoder
from export import load
from model import Llama

LONGEST_NGRAM = 5


def ngram_proposal(context: list[int], count: int) -> list[int]:
    """What followed the latest earlier occurrence of the longest suffix, at most `LONGEST_NGRAM` tokens long."""
    for size in range(min(LONGEST_NGRAM, len(context) - 1), 0, -1):
        suffix = context[-size:]
        for start in range(len(context) - size - 1, -1, -1):
            if context[start : start + size] == suffix:
                return context[start + size : start + size + count]
    return []


def matched(proposal: list[int], wanted: list[int]) -> int:
    """Length of the common prefix."""
    for index, (left, right) in enumerate(zip(proposal, wanted)):
        if left != right:
            return index
    return min(len(proposal), len(wanted))


def replay(propose, prompt: list[int], output: list[int], depth: int) -> list[int]:
    """Accepted proposals of each target pass while `output` is produced; its first token is the prompt pass's own."""
    accepted, done = [], 1
    while done < len(output):
        proposal = propose(prompt + output[:done], depth)
        count = matched(proposal, output[done:])
        accepted.append(count)
        done += count + 1
    return accepted


class DraftProposer:
    """Greedy chains of the draft model, its cache cut back to what was confirmed."""

    def __init__(self, model: Llama):
        self.decoder = Decoder(model, rows=1)
        self.fed: list[int] = []

    def __call__(self, context: list[int], depth: int) -> list[int]:
        keep = min(matched(self.fed, context), len(context) - 1)
        self.decoder.length = keep
        proposal = self.decoder.greedy([context[keep:]], depth)[0]
        self.fed = context + proposal[:-1]
        return proposal


def distinct_share(tokens: list[int], size: int = 4) -> float:
    """Share of distinct n-grams among all n-grams; 1 means that nothing repeats."""
    grams = [tuple(tokens[index : index + size]) for index in range(len(tokens) - size + 1)]
    return len(set(grams)) / len(grams)


def summary(accepted: list[int], depth: int) -> dict:
    """Tokens per pass, and the share of passes that reached each position."""
    passes = len(accepted)
    return {
        "tokens_per_pass": round(sum(accepted) / passes + 1, 3),
        "accepted_by_position": [round(sum(count > at for count in accepted) / passes, 3) for at in range(depth)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens per target pass on held-out prompts, greedy.")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines written by heldout.py")
    parser.add_argument("--target", type=Path, default=Path("examples/models/tiny"))
    parser.add_argument("--draft", type=Path, default=Path("examples/models/tiny-draft"))
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--depth", type=int, default=5, help="proposals per pass (K)")
    parser.add_argument("--show", action="store_true", help="print what the target wrote")
    args = parser.parse_args()
    target, tokenizer = load(args.target)
    draft, _ = load(args.draft)
    by_draft, by_ngram, shares = [], [], []
    for line in args.prompts.read_text(encoding="utf-8").splitlines():
        prompt = tokenizer.encode(json.loads(line)["prompt"]).ids
        output = Decoder(target, rows=1).greedy([prompt], args.new_tokens)[0]
        by_draft += replay(DraftProposer(draft), prompt, output, args.depth)
        by_ngram += replay(ngram_proposal, prompt, output, args.depth)
        shares.append(distinct_share(output))
        if args.show:
            print(f"--- distinct 4-grams {shares[-1]:.2f}\n{tokenizer.decode(output)}")
    report = {
        "prompts": len(shares),
        "draft": summary(by_draft, args.depth),
        "prompt_lookup": summary(by_ngram, args.depth),
        "distinct_4grams": round(sum(shares) / len(shares), 3),
        "distinct_4grams_lowest": round(min(shares), 3),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
