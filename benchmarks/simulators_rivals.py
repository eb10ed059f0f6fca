"""The other sides of `simulators.py`, run by the Python of an environment that has PyTorch, Flower and pfl.

    python simulators_rivals.py flower|pfl mlp|cnn CLIENTS ROUNDS ROWS.npz

Prints a line of JSON per round: [round, seconds since the last, accuracy on the test rows]. Nothing of the
project is imported: these environments do not have it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch

BATCH, ROWS_EACH, LEARNING_RATE = 32, 64, 0.1
TEST_ROWS = 360


def net(kind: str) -> torch.nn.Module:
    """The same layers as `training_nets.small_mlp` and `digits_cnn`."""
    nn = torch.nn
    if kind == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    convolutions = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
    dense = (nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*convolutions, *dense)


class Told:
    """Says when each round has ended, and how good the model is then."""

    def __init__(self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        self._model, self._x, self._y = model, x[:TEST_ROWS], y[:TEST_ROWS]
        self._last = time.perf_counter()

    def round(self, number: int) -> float:
        with torch.no_grad():
            accuracy = float((self._model(self._x).argmax(1) == self._y).float().mean())
        now = time.perf_counter()
        print(json.dumps([number, now - self._last, accuracy]), flush=True)
        self._last = time.perf_counter()
        return accuracy


def read(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


def drawn(x: torch.Tensor, y: torch.Tensor, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of one client, with replacement."""
    rows = torch.from_numpy(np.random.default_rng(client).integers(0, len(x), ROWS_EACH))
    return x[rows], y[rows]


def fit(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """An epoch of plain gradient descent over the client's rows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for start in range(0, len(x), BATCH):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[start : start + BATCH]), y[start : start + BATCH])
        loss.backward()
        optimizer.step()


def flower(kind: str, clients: int, rounds: int, path: str) -> None:
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    def arrays(model: torch.nn.Module) -> list[Any]:
        return [value.detach().numpy().copy() for value in model.state_dict().values()]

    def take(model: torch.nn.Module, values: list[Any]) -> None:
        names = model.state_dict()
        model.load_state_dict({n: torch.from_numpy(v) for n, v in zip(names, values, strict=True)})

    class Client(NumPyClient):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            self.x, self.y = drawn(*read(path), number)

        def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
            torch.set_num_threads(1)
            model = net(kind)
            take(model, parameters)
            fit(model, self.x, self.y)
            return arrays(model), len(self.x), {}

    def client_of(context: Context) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    torch.manual_seed(0)
    model = net(kind)
    told = Told(model, *read(path))

    def evaluated(number: int, values: list[Any], config: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        take(model, values)
        return 0.0, {"accuracy": told.round(number)}

    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(arrays(model)),
        evaluate_fn=evaluated,
    )

    def server_of(context: Context) -> Any:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    run_simulation(
        ServerApp(server_fn=server_of),
        ClientApp(client_fn=client_of),
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}},
    )


def pfl(kind: str, clients: int, rounds: int, path: str) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net(kind)

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.nn.functional.cross_entropy(self.net(x), y)
            return found

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            return {}

    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = read(path)
    model = Net()
    told = Told(model.net, x, y)

    class Tell(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            told.round(central_iteration + 1)
            return False, Metrics()

    def dataset_of(client: int) -> Any:
        return Dataset(raw_data=list(drawn(x, y, client)), user_id=str(client))

    data = FederatedDataset(dataset_of, get_user_sampler("minimize_reuse", list(range(clients))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LEARNING_RATE),
        callbacks=[Tell()],
    )


if __name__ == "__main__":
    _, side, kind, clients, rounds, path = sys.argv
    {"flower": flower, "pfl": pfl}[side](kind, int(clients), int(rounds), path)
