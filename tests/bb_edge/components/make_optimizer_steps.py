"""Writes optimizer_steps.json: what PyTorch's optimizers and schedules make of the same gradients.

PyTorch is not a dependency, also not of the tests: python tests/bb_edge/components/make_optimizer_steps.py,
in an environment that has it (written with torch 2.13.0, CPU).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

STEPS, SIZE = 6, 5
CASES = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}, {}),
    "sgd with weight decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.05}, {}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, {}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {}),
    "adam": (torch.optim.Adam, {"lr": 0.05}, {}),
    "adam, other settings": (
        torch.optim.Adam,
        {"lr": 0.05, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1},
        {},
    ),
    "adamw": (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}, {}),
    "clipped": (torch.optim.SGD, {"lr": 0.1}, {"clip": 0.5}),
    "adam, clipped": (torch.optim.Adam, {"lr": 0.05}, {"clip": 0.5}),
    "step decay": (torch.optim.SGD, {"lr": 0.1}, {"step": [2, 0.5]}),
    "cosine": (torch.optim.SGD, {"lr": 0.1}, {"cosine": [4, 0.01]}),
    "warm-up, then cosine": (
        torch.optim.AdamW,
        {"lr": 0.05, "weight_decay": 0.1},
        {"warm_up": 3, "cosine": [3, 0.0]},
    ),
}


def steps(kind: type, settings: dict, more: dict, start: torch.Tensor, gradients: torch.Tensor) -> list:
    parameter = torch.nn.Parameter(start.clone())
    optimizer = kind([parameter], **settings)
    schedulers = []
    if "warm_up" in more:
        count = more["warm_up"]
        schedulers.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1, (t + 1) / count)))
    if "step" in more:
        length, decay = more["step"]
        schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, length, decay))
    if "cosine" in more:
        length, lowest = more["cosine"]
        schedulers.append(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length, lowest))
    schedule = None
    if len(schedulers) == 2:
        schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, [more["warm_up"]])
    elif schedulers:
        schedule = schedulers[0]
    found = []
    for gradient in gradients[: 4 if "cosine" in more and "warm_up" not in more else STEPS]:
        parameter.grad = gradient.clone()
        if "clip" in more:
            torch.nn.utils.clip_grad_norm_([parameter], more["clip"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
        found.append(parameter.detach().tolist())
    return found


def main() -> None:
    torch.manual_seed(7)
    start, gradients = torch.randn(SIZE), torch.randn(STEPS, SIZE)
    cases = {name: steps(*case, start, gradients) for name, case in CASES.items()}
    made = {
        "torch": torch.__version__,
        "start": start.tolist(),
        "gradients": gradients.tolist(),
        "cases": cases,
    }
    text = json.dumps(made, indent=1)
    Path(__file__).with_name("optimizer_steps.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
