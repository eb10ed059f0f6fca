"""Central training in PyTorch, for `accuracy.py`; run by the Python of an environment that has PyTorch.

`central(FILE.npz)` prints the share of the test rows that the trained model names right. The file has `kind`
(mlp, cnn or cnn-bn), `rate`, `passes` and `batch`, rows `x`, `y`, `test_x`, `test_y`, the order's `seed`, and
`w0`, `w1`, …: what the model begins with, in PyTorch's layout and order. Nothing of the project is imported:
such environments do not have it.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def net(kind: str) -> Any:
    """The same layers as `mlp([64, 32, 10])`, `training_nets.digits_cnn` and `digits_cnn_bn`."""
    from torch import nn

    if kind == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    parts: list[Any] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        parts.append(nn.Conv2d(inputs, outputs, 3, padding=1))
        if kind == "cnn-bn":
            parts.append(nn.BatchNorm2d(outputs))
        parts.append(nn.ReLU())
    dense = (nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*parts, *dense)


def central(path: str) -> None:
    """As a PyTorch user writes it: each pass in a new order, plain SGD, `train()` and `eval()`."""
    import torch

    torch.set_num_threads(1)
    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    torch.manual_seed(int(data["seed"]))
    model = net(str(data["kind"]))
    own = model.state_dict()
    names = [name for name in own if not name.endswith("num_batches_tracked")]
    model.load_state_dict({**own, **{n: torch.from_numpy(data[f"w{i}"]) for i, n in enumerate(names)}})
    x, y, test_x, test_y = (torch.from_numpy(data[name]) for name in ("x", "y", "test_x", "test_y"))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(data["rate"]))
    model.train()
    for _ in range(int(data["passes"])):
        for rows in torch.randperm(len(x)).split(int(data["batch"])):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        print(float((model(test_x).argmax(1) == test_y).float().mean()))
