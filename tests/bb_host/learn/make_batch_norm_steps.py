"""Writes batch_norm_steps.json: what PyTorch makes of a small net with BatchNorm2d and 1d in training mode.

PyTorch is not a dependency, also not of the tests: python tests/bb_host/learn/make_batch_norm_steps.py, in an
environment that has it (written with torch 2.13.0, CPU).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

SIZES = (6, 5, 8)
"""Rows of the batches."""


def main() -> None:
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2, momentum=0.3), nn.ReLU(), nn.Flatten(),
        nn.Linear(32, 3), nn.BatchNorm1d(3, eps=1e-3),
    )  # fmt: skip
    names = [*dict(net.named_parameters()), *(n for n in dict(net.named_buffers()) if "running" in n)]
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for name in ("1.weight", "5.weight", "1.bias", "5.bias"):  # as if they had learned
        nn.init.uniform_(tensors[name], 0.5, 1.5)

    def state() -> dict[str, list]:
        return {name: tensors[name].tolist() for name in names}

    start, optimizer = state(), torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    batches = []
    for rows in SIZES:
        x, y = torch.randn(rows, 1, 4, 4), torch.randint(0, 3, (rows,))
        net.train()
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            output = net(x)
        batches.append(
            {
                "x": x.tolist(),
                "y": y.tolist(),
                "loss": loss.item(),
                "state": state(),
                "output": output.tolist(),
            }
        )
    made = {"torch": torch.__version__, "start": start, "batches": batches}
    Path(__file__).with_name("batch_norm_steps.json").write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
