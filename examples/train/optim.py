"""The optimiser pair, the learning-rate schedule, and the precision to compute in.

Neighbours: `train.py` and `heads.py` build it once and call `step`. Hidden matrices get Muon (Jordan et al., 2024:
momentum made orthogonal by a Newton-Schulz iteration), what is as tall as a vocabulary and the norms AdamW.

Surprising decision: Muon and not AdamW for everything. At this size it needs clearly fewer tokens for the same loss,
and same-shaped matrices are orthogonalised in one batched product, so a step costs little more.
"""

import math

import torch

MUON_LR = 5e-3
ADAM_LR = 3e-3
WEIGHT_DECAY = 0.1
WARMUP_STEPS = 100


def emulates_bf16(device: torch.device) -> bool:
    """Whether bf16 is several times as slow as f32: on a processor without AVX-512."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")


def autocast(device: torch.device) -> torch.autocast:
    """bf16 where the device multiplies it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=not emulates_bf16(device))


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Nearest semi-orthogonal matrices of `[count, rows, cols]`, by five quintic Newton-Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    states = matrices.mT if tall else matrices
    states = states.float() if emulates_bf16(matrices.device) else states.bfloat16()
    states = states / (states.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = states @ states.mT
        states = a * states + (b * gram + c * gram @ gram) @ states
    return states.mT if tall else states


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised per matrix, scaled to the update size of AdamW (arXiv 2502.16982)."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for weight in group["params"]:
                by_shape.setdefault(weight.shape, []).append(weight)
            for shape, weights in by_shape.items():
                update = orthogonalise(torch.stack([self.momentum(weight, group["momentum"]) for weight in weights]))
                scale = -group["lr"] * 0.2 * max(shape) ** 0.5
                for weight, direction in zip(weights, update):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(direction.type_as(weight), alpha=scale)

    def momentum(self, weight: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        """Updates one weight's running gradient and returns its Nesterov look-ahead."""
        state = self.state[weight]
        if "running" not in state:
            state["running"] = torch.zeros_like(weight)
        state["running"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(state["running"], momentum)


def build(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest; only matrices decay."""
    named = list(model.named_parameters())
    is_vocabulary = lambda name: "embed" in name or "lm_head" in name
    hidden = [weight for name, weight in named if weight.dim() == 2 and not is_vocabulary(name)]
    embedding = [weight for name, weight in named if is_vocabulary(name)]
    norms = [weight for _, weight in named if weight.dim() == 1]
    groups = [{"params": embedding, "weight_decay": WEIGHT_DECAY}, {"params": norms, "weight_decay": 0.0}]
    return [
        Muon(hidden, lr=MUON_LR, weight_decay=WEIGHT_DECAY),
        torch.optim.AdamW(groups, lr=ADAM_LR, betas=(0.9, 0.95)),
    ]


def set_rate(
    optimisers: list[torch.optim.Optimizer],
    step: int,
    progress: float,
    peak_share: float = 1.0,
    warmup: int = WARMUP_STEPS,
) -> None:
    """Warm-up by steps, then a cosine down to 2% by `progress` in 0..1, from a share of the peak rates."""
    cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    factor = peak_share * min((step + 1) / warmup, 1.0) * cosine
    for optimiser, peak in zip(optimisers, (MUON_LR, ADAM_LR)):
        for group in optimiser.param_groups:
            group["lr"] = peak * factor
