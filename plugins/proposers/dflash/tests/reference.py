"""Writes `checkpoints/`: small random networks in each published form, and what PyTorch makes of them.

Run with the requirements of `examples/train`: `python plugins/proposers/dflash/tests/reference.py`. The network is that of
`examples/train/heads_model.py`, which shares nothing with the plugin.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[3] / "examples" / "train"))

from export import config_of
from heads_model import BlockAttention, DFlash, target_rows
from model import Llama, Shape

SHAPE = Shape(hidden=32, heads=4, kv_heads=2, layers=7, intermediate=48, vocab=64, head_dim=8, context=64)
TOKENS = [3, 61, 17, 5, 5, 40, 22, 9, 63, 0, 31, 12, 12, 30]
WINDOW = 5


class SlidingAttention(BlockAttention):
    """A row sees itself and the `WINDOW - 1` places before it, and nothing of its block behind it."""

    def seen(self, everywhere, anchors, block):
        place = (anchors[:, None] + torch.arange(block)).flatten()
        before, _ = super().seen(everywhere, anchors, block)
        near = everywhere[None, :] > place[:, None] - WINDOW
        rows = torch.arange(block)
        own = (rows[None, :] <= rows[:, None]) & (rows[None, :] > rows[:, None] - WINDOW)
        return before & near, own


class Evenly(DFlash):
    """The reference's layers, which old configs do not name: spread from 1 to L - 3."""

    def ids(self):
        return [1, 4]


def write(name: str, weights: dict, config: dict, expected: dict | None = None) -> None:
    folder = HERE / "checkpoints" / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.detach().contiguous() for key, value in weights.items()}
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if expected is not None:
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def expected_of(head: DFlash, target: Llama) -> dict:
    """Hidden rows of the context, and the logits behind two anchors."""
    tokens, anchors = torch.tensor([TOKENS]), torch.tensor([4, len(TOKENS) - 1])
    rows, _ = target_rows(target, tokens)
    hidden = torch.cat([rows[layer] for layer in head.ids()], dim=-1)[0]
    logits = head.fill(target, tokens, rows, anchors)[0]
    listed = lambda matrix: [round(value, 6) for value in matrix.flatten().tolist()]
    return {"tokens": TOKENS, "anchors": anchors.tolist(), "hidden": listed(hidden), "logits": listed(logits)}


@torch.no_grad()
def main() -> None:
    torch.manual_seed(5)
    DFlash.BLOCK, DFlash.MASK = 6, 63
    target, old, nested, sliding = Llama(SHAPE), Evenly(SHAPE), DFlash(SHAPE), DFlash(SHAPE)
    sliding.layers[1].self_attn = SlidingAttention(SHAPE)
    for module in (target, old, nested, sliding):
        for name, weight in module.named_parameters():
            torch.nn.init.normal_(weight, mean=1.0 if "norm" in name else 0.0, std=0.2)
    write("base", dict(target.named_parameters()), {**config_of(SHAPE, 0), "torch_dtype": "float32"})
    write("nested", nested.published(), nested.config(), expected_of(nested, target))

    # The first form: everything at the top, no layers named.
    config = old.config()
    del config["dflash_config"], config["layer_types"]
    write("old", old.published(), {**config, "mask_token_id": 63}, expected_of(old, target))

    config = sliding.llama_config()
    config |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": WINDOW, "num_hidden_layers": 2}
    own = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [layer + 1 for layer in sliding.ids()],
        "block_size": 6,
        "mask_token_id": 63,
        "transformer_layer_config": config,
    }
    write("speculators", sliding.published(), own, expected_of(sliding, target))


if __name__ == "__main__":
    main()
