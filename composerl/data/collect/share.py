"""A worker: what it is asked, what it answers, and its share of a collector's environments."""

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType

from composerl.data.collect.finished import Finished
from composerl.data.collect.live import Live
from composerl.data.collect.local import LocalCollector

__all__ = ["Answer", "Ask", "Contract", "Ended", "Share", "array_of", "map_tree", "numbers_of",
           "tensor_of", "tensors_of"]  # fmt: skip


class Ask(NamedTuple):
    """What a batch depends on, besides the policy's weights and where the environments are."""

    turn: int
    """The number of the batch. A worker that is not there has lost its environments' place."""
    numbers: list[dict[str, float]]
    """The plain numbers of the policy's modules, such as a share of random actions."""
    generator: np.ndarray
    """The state of torch's generator at the start."""
    at_random: bool
    exploration: ExplorationType
    rest_unseen: bool = True
    """Whether no environment of another worker has shown its episode in a record yet."""


class Ended(NamedTuple):
    """An episode that ended in a batch."""

    step: int
    environment: int
    gained: float
    length: int
    told: dict[str, Any]
    """What its last step's info says of achievements."""


class Answer(NamedTuple):
    """A batch, and what it changed."""

    batch: dict[str, Any]
    names: list[str | None]
    place: dict[str, Any]
    """Where the environments are now: that of ``Live`` (its new actions) and of the policy."""
    ended: list[Ended]
    failed: list[int]
    """Environments that were not where they should have been, and began a new episode."""
    generator: np.ndarray


def tensors_of(policy: Any) -> list[Tensor]:
    """All tensors of a policy, in order."""
    return [*policy.parameters(), *policy.buffers()] if isinstance(policy, nn.Module) else []


def numbers_of(policy: Any) -> list[dict[str, float]]:
    """The numbers that the modules of a policy have besides, in order."""
    modules: Iterable[nn.Module] = policy.modules() if isinstance(policy, nn.Module) else ()
    return [{k: v for k, v in vars(m).items() if isinstance(v, (int, float))} for m in modules]


def map_tree(change: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with all that is no dictionary or list changed."""
    if isinstance(tree, dict):
        return {key: map_tree(change, value) for key, value in tree.items()}
    return [map_tree(change, value) for value in tree] if isinstance(tree, list) else change(tree)


class _Noting(Finished):
    """Also notes when and where the episodes of a batch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Ended] = []

    def add(self, live: Live, i: int, t: int, info: Mapping[str, Any] | None = None) -> None:
        told = {key: dict(info[key]) for key in ("achievements",) if info and key in info}
        self.ended.append(Ended(t, live.first + i, live.returns[i], live.lengths[i], told))
        super().add(live, i, t, info)


class Contract(NamedTuple):
    """What a worker needs to know once."""

    make: Callable[..., LocalCollector]
    """Makes the collector from environments, policy and ``frames_per_batch``."""
    make_env: Callable[[int], EnvBase]
    policy: Any
    steps: int
    """Of each environment in a batch."""


class Share:
    """Some of a collector's environments: the object in a worker's process.

    A new one has none, and its answer is None until it is led somewhere.
    """

    turn: int | None = None

    def lead_to(
        self,
        place: dict[str, Any],
        turn: int,
        rows: slice,
        elsewhere: tuple[int, int],
        contract: bytes,
        path: list[str],
    ) -> None:
        """Bring the environments to where they were before a batch.

        Args:
            place: seed, episodes and the policy's memory.
            turn: the number of the batch.
            rows: which of all environments they are.
            elsewhere: how many the policy is asked about besides, before and after these.
            contract: how to make them, pickled.
            path: where the learner finds modules, which the contract may need.
        """
        if self.turn is None:
            sys.path += [entry for entry in path if entry not in sys.path]
            make, make_env, policy, steps = pickle.loads(contract)  # the learner's: no file is read
            torch.set_num_threads(1)
            number = rows.stop - rows.start
            self.collector = make(make_env(number), policy, frames_per_batch=steps * number)
            self.collector._first = rows.start
            self.collector._asking.elsewhere = elsewhere
            self.finished = self.collector._finished = _Noting()
        collector, place = self.collector, map_tree(tensor_of, place)
        collector._seed, collector._restart = place["seed"], False
        collector._recall(place["memory"])
        self.failed = [rows.start + i for i in collector._lead_to(place["live"])]
        self.finished.ended = []
        self.turn = turn

    def answer(self, ask: Ask, weights: list[np.ndarray]) -> Answer | None:
        """A batch; nothing, if the environments are not where it starts."""
        if ask.turn != self.turn:
            return None
        self.turn = -1  # nowhere, if an error ends the batch
        collector, policy = self.collector, self.collector.policy
        for tensor, array in zip(tensors_of(policy) if weights else (), weights, strict=True):
            tensor.detach().numpy()[...] = array
        if ask.numbers:
            for module, numbers in zip(policy.modules(), ask.numbers, strict=True):
                vars(module).update(numbers)
        torch.set_rng_state(tensor_of(ask.generator))
        collector.exploration_type = ask.exploration
        collector._rest_unseen = ask.rest_unseen
        collector._should_use_random_frames = lambda: ask.at_random
        batch = collector.rollout()
        live = collector._live
        assert live is not None
        place = {"live": live.state_dict(collector.frames_per_batch), "memory": collector._memory()}
        answer = Answer(
            batch=map_tree(array_of, batch.to_dict()),
            names=batch.names,
            place=map_tree(array_of, place),
            ended=self.finished.ended,
            failed=self.failed,
            generator=torch.get_rng_state().numpy(),
        )
        self.turn, self.failed, self.finished.ended = ask.turn + 1, [], []
        return answer


def array_of(value: Any) -> Any:
    """Arrays travel faster than tensors."""
    return value.numpy() if isinstance(value, Tensor) else value


def tensor_of(value: Any) -> Any:
    """A copy, as what has travelled cannot be written to."""
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
