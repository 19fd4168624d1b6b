"""Workers: processes of Ray that step the environments of a collector, and may die."""

import gc
import itertools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib.machinery import PathFinder
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType

from composerl._ray import connect
from composerl.data.collect.share import (
    Answer,
    Ask,
    Contract,
    Share,
    array_of,
    map_tree,
    numbers_of,
    tensor_of,
    tensors_of,
)

_log = logging.getLogger(__name__)

__all__ = ["Workers"]

#: Bytes up to which Ray sends an argument with the call, and not by its object store.
_INLINE = 100_000
#: Seconds after which workers that do not start are told of.
_PATIENCE = 60
#: How often a batch is asked for, when the worker dies each time.
_TRIES = 4


class Workers:
    """So many processes, each with a share of a collector's environments.

    Ray starts a process that died again, and sends it what it was asked; it answers that it does
    not know where its environments are, and is led there by their seeds and actions, which the
    learner has.

    Args:
        number: of processes.
        contract: what each must know; of its policy they get the weights for each batch.
        envs: how many environments there are.
        ahead: they act by themselves, and the next batch is asked for when one has come.
    """

    def __init__(self, number: int, contract: Contract, envs: int, *, ahead: bool) -> None:
        if number > envs:
            raise ValueError(f"workers must be at most the environments ({envs}), got {number}")
        address = os.environ.get("RAY_ADDRESS")
        purpose = f"workers at RAY_ADDRESS={address}" if address else "workers"
        self._ray = ray = connect(purpose, address)
        cores = int(ray.cluster_resources().get("CPU", 0))
        if number > cores:
            raise ValueError(f"workers must be at most the cores of Ray ({cores}), got {number}")
        gc.collect()  # a collector that nobody has any more keeps its cores until it is noticed
        self._policy, self.ahead = contract.policy, ahead
        _send_by_value(ray, type(contract.policy), contract.make, contract.make_env)
        if isinstance(contract.policy, nn.Module):
            contract = contract._replace(policy=deepcopy(contract.policy).to("cpu"))
        self._contract = ray.put(ray.cloudpickle.dumps(contract))
        actor = ray.remote(Share).options(num_cpus=1, max_restarts=-1, max_task_retries=_TRIES - 1)
        self._shares = [actor.remote() for _ in range(number)]
        bounds = [k * envs // number for k in range(number + 1)]
        self._rows = [slice(*pair) for pair in itertools.pairwise(bounds)]
        self._elsewhere = [(0, 0) if ahead else (r.start, envs - r.stop) for r in self._rows]
        self._turn = 0
        self._led: list[Any] = [None] * number  # whether each has come where it was led to
        self._asked: list[tuple[Ask, Any, Any]] = []  # with its weights, and what will come of it
        self._started = False
        self.lose()

    def lose(self) -> None:
        """The environments are elsewhere than the learner says now; what was asked is void."""
        self._asked, self._lost = [], True

    def ask(
        self,
        place: Callable[[], dict[str, Any]],
        *,
        at_random: bool,
        exploration: ExplorationType,
        unseen: Sequence[bool],
    ) -> None:
        """Ask each worker for its part of the next batch, unless that has been done.

        Args:
            place: gives where all environments are: ``seed``, ``live`` and ``memory``.
            at_random: actions are random.
            exploration: how the policy acts.
            unseen: environments that have not shown their episode in a record.
        """
        if self._asked:
            return
        self._turn += 1
        used = [] if at_random else tensors_of(self._policy)
        weights: Any = [tensor.detach().cpu().numpy() for tensor in used]
        if sum(array.nbytes for array in weights) > _INLINE:
            weights = self._ray.put(weights)
        numbers, drawn = numbers_of(self._policy), torch.get_rng_state().numpy()
        ask = Ask(self._turn, numbers, drawn, at_random, exploration)
        chance = int(torch.randint(2**62, ())) if self.ahead else 0
        for k, (share, rows) in enumerate(zip(self._shares, self._rows, strict=True)):
            if self._lost:
                self._lead(k, place)
            if self.ahead:  # the learner goes on drawing meanwhile
                own = torch.Generator().manual_seed(chance + k).get_state().numpy()
                ask = ask._replace(generator=own)
            rest = [*unseen[: rows.start], *unseen[rows.stop :]]
            mine = ask._replace(rest_unseen=all(rest))
            self._asked.append((mine, weights, share.answer.remote(mine, weights)))
        self._lost = False

    def answer(self, place: Callable[[], dict[str, Any]]) -> Answer:
        """The batch that was asked for, of all environments."""
        self._see_them_start()
        found = [self._answer_of(k, place) for k in range(len(self._shares))]
        self._asked = []
        if not self.ahead:
            torch.set_rng_state(torch.from_numpy(found[0].generator.copy()))
        batch, _, at, *lists, _ = zip(*found, strict=True)
        ended, failed = (sorted(itertools.chain(*parts)) for parts in lists)
        return Answer(_join(batch), found[0].names, _join(at), ended, failed, found[0].generator)

    def _see_them_start(self) -> None:
        if self._started:
            return
        ready = [share.__ray_ready__.remote() for share in self._shares]
        late = self._ray.wait(ready, num_returns=len(ready), timeout=_PATIENCE)[1]
        if late:
            _log.warning(
                f"{len(late)} of {len(ready)} workers have not started in {_PATIENCE} s, and are "
                "waited for: does the Ray cluster have a free core for each?"
            )
        self._started = True

    def _answer_of(self, k: int, place: Callable[[], dict[str, Any]]) -> Answer:
        ask, weights, coming = self._asked[k]
        name = f"worker {k + 1} of {len(self._shares)}"
        for tries in range(_TRIES):
            if tries:
                _log.warning(f"{name} has died; another plays its episodes again")
                self._lead(k, place)
                coming = self._shares[k].answer.remote(ask, weights)
            try:
                found = self._ray.get(coming)
                if found is not None:
                    return found
                self._ray.get(self._led[k])  # an error on the way is no death
            except self._ray.exceptions.RayActorError as error:
                raise RuntimeError(f"{name} cannot be started: {error}") from error
        raise RuntimeError(
            f"{name} died {_TRIES} times in the same batch: is its memory too small, or does the "
            "environment end its process?"
        )

    def _lead(self, k: int, place: Callable[[], dict[str, Any]]) -> None:
        rows = self._rows[k]
        self._led[k] = self._shares[k].lead_to.remote(
            _cut(place(), rows), self._turn, rows, self._elsewhere[k], self._contract, sys.path
        )


def _cut(tree: Any, rows: slice) -> Any:
    """The rows of all that has some, as arrays."""
    if isinstance(tree, dict):
        return {key: _cut(value, rows) for key, value in tree.items()}
    if isinstance(tree, Tensor):
        return tree[rows].numpy()
    return map_tree(array_of, tree[rows]) if isinstance(tree, list) else tree


def _join(parts: Sequence[Any]) -> Any:
    """What :func:`_cut` has taken apart, as tensors."""
    if isinstance(parts[0], dict):
        return {key: _join([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], np.ndarray):
        return torch.from_numpy(np.concatenate(parts))
    return None if parts[0] is None else map_tree(tensor_of, [x for part in parts for x in part])


def _send_by_value(ray: Any, *things: Any) -> None:
    """Let Ray send the code of files that a worker cannot import by name, such as a recipe."""
    for thing in things:
        module = sys.modules[getattr(thing, "func", thing).__module__]
        top = module.__name__.partition(".")[0]
        if hasattr(module, "__file__") and not PathFinder.find_spec(top):
            ray.cloudpickle.register_pickle_by_value(module)
