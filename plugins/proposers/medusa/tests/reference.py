"""Writes `checkpoints/`: small random heads in each published form, and what PyTorch makes of them.

Run with the requirements of `examples/train`: `python plugins/proposers/medusa/tests/reference.py`.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import nn

HERE = Path(__file__).parent
WIDTH, VOCAB, ROWS = 32, 48, 3


class ResBlock(nn.Module):
    """x + silu(W x + b), as the repository of Medusa has it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + F.silu(self.linear(x))


def medusa(heads: int, blocks: int) -> nn.ModuleList:
    head = lambda: nn.Sequential(*[ResBlock() for _ in range(blocks)], nn.Linear(WIDTH, VOCAB, bias=False))
    return nn.ModuleList([head() for _ in range(heads)])


def plain(heads: int) -> nn.ModuleList:
    return nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 24), nn.SiLU(), nn.Linear(24, VOCAB)) for _ in range(heads)])


@torch.no_grad()
def write(name: str, heads: nn.ModuleList, file: str, prefix: str, config: dict) -> None:
    folder = HERE / "checkpoints" / name
    folder.mkdir(parents=True, exist_ok=True)
    for weight in heads.parameters():
        nn.init.normal_(weight, std=0.2)
    weights = {prefix + key: value.contiguous() for key, value in heads.state_dict().items()}
    if file.endswith(".pt"):
        torch.save(weights, folder / file)
    else:
        (folder / file).write_bytes(save(weights))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    hidden = torch.randn(ROWS, WIDTH)
    listed = lambda matrix: [round(value, 6) for value in matrix.flatten().tolist()]
    logits = torch.stack([head(hidden) for head in heads])
    expected = {"heads": len(heads), "hidden": listed(hidden), "logits": listed(logits)}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def main() -> None:
    torch.manual_seed(4)
    # Published configs say 2 heads where the file has 5.
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    write("pickled", medusa(5, 1), "medusa_lm_head.pt", "", config)
    write("merged", medusa(3, 2), "model.safetensors", "medusa_head.", {**config, "medusa_num_layers": 2})
    write("plain", plain(4), "model.safetensors", "", {})


if __name__ == "__main__":
    main()
