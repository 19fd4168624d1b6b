"""The collector: environments stepped in this process, or by workers in others."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import RandomPolicy

from composerl._private import unchecked_tensordict
from composerl.data.collect.live import Live, warn_of_other
from composerl.data.collect.local import LocalCollector
from composerl.data.collect.share import Answer, Contract
from composerl.data.collect.workers import Workers
from composerl.envs.make import maker_of

__all__ = ["VectorCollector"]


class VectorCollector(LocalCollector):
    """TorchRL's ``Collector``, stepping gymnasium environments with preallocated buffers.

    Iteration, arguments and batches (``(environments, time)``, TorchRL's layout) are those of
    ``torchrl.collectors.Collector``, and the transitions are the same for the same seeds and
    actions. Where the environment is one made by :func:`composerl.envs.make_env` (a gymnasium
    environment, or a ``SyncVectorEnv`` of them), a rollout writes numpy buffers and builds one
    TensorDict per batch, which is faster (recipes/SPEED.md); :attr:`fast` says so. It then applies
    the transforms that take each number by itself (``DoubleToFloat``, ``RewardClipping``,
    ``RewardScaling``, ``ObservationNorm`` with a ``loc`` and ``scale`` of its own). Any other
    environment or transform, options that need a TensorDict at each step, and policies with memory
    (``recurrent``), whose state TorchRL carries as keys, take TorchRL's own way.

    A policy that has ``explore(observation) -> action`` on plain tensors, as those of
    :mod:`composerl.modules` do, is called by that, and only its action is stored. Others are called
    with a TensorDict and all that they write is stored (zeros, while actions are random).

    The state of an environment cannot be saved. With a ``seed``, every episode has a seed of its
    own, and a checkpoint (``state_dict``) holds, for the episodes under way, that seed and the
    actions so far: loading it plays them again, which leads to the same state. An environment
    that does not lead there is noticed by its observation, and starts a new episode. In TorchRL's
    way every checkpoint starts new episodes, seeded by the number of frames so far, whether the run
    goes on or is resumed.

    With ``workers``, so many processes of `Ray <https://docs.ray.io>`_ (extra ``ray``; at
    ``RAY_ADDRESS``, or started on this machine) step the environments, an equal share each, by the
    weights that the policy has when a batch is asked for. Each asks the policy about all
    environments, those of others being blank, and so draws and rounds as one process would: **the
    batches, and all that follows, are those of one process, bit for bit, with any number of
    workers**, and a state may be loaded with another number. A worker that dies is started again
    and plays its episodes again; a line is logged. Workers divide the cost of the environments,
    not that of the policy. They need a seed and the fast way; and the numbers are those of one
    process only where that asks the policy on the CPU, with one thread, and the policy draws as
    often whatever it sees. TorchRL's ``RayCollector`` has no such thing: what its workers draw,
    and settings of a policy that are no weights (``epsilon``), are in no state and not sent, a
    dead worker is an error, ``total_frames=-1`` ends at once.

    ``collect="async"`` asks for the next batch as soon as one has come, so that environments and
    updates take their time together, and each worker asks the policy about its own environments.
    The policy that acts is then one batch old, and the numbers are those of so many workers, the
    same each time; every checkpoint (``state_dict``) throws the batch under way away, whether the
    run goes on or is resumed.

    Args:
        create_env_fn: the environment, or a function that makes it.
        policy: what acts; None acts at random.

    Keyword Args:
        frames_per_batch: environment steps of a batch, over all environments together.
        seed: of the episodes; None leaves them to the environment's own seeding.
        workers: processes that step the environments; 0, this one does.
        collect: ``"sync"``, or ``"async"`` for speed, with workers.
        kwargs: of TorchRL's ``Collector``, among them ``init_random_frames`` (so many steps at the
            start act at random) and ``total_frames`` (end of the iteration; -1, none).
    """

    _workers: Workers | None = None
    _options: Mapping[str, Any] = {}  # of a subclass, which its workers are to have, too

    def __init__(
        self,
        create_env_fn: EnvBase | Callable[[], EnvBase],
        policy: nn.Module | Callable[[TensorDictBase], TensorDictBase] | None = None,
        *,
        frames_per_batch: int,
        seed: int | None = None,
        workers: int = 0,
        collect: Literal["sync", "async"] = "sync",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            create_env_fn, policy, frames_per_batch=frames_per_batch, seed=seed, **kwargs
        )
        if workers:
            self._workers = self._hire(workers, ahead=collect == "async")

    def _hire(self, number: int, *, ahead: bool) -> Workers:
        if self._seed is None or not self.fast:
            raise ValueError(
                "workers need a seed, environments of composerl.envs.make_env over gymnasium ones "
                "with simple transforms at most, and a policy of observations alone"
            )
        make = partial(
            type(self),
            seed=self._seed,
            set_truncated=self.set_truncated,
            track_traj_ids=False,
            trust_policy=self.trust_policy,
            use_buffers=False,
            **self._options,
        )
        policy = None if isinstance(self.policy, RandomPolicy) else self.policy
        contract = Contract(make, maker_of(self.env), policy, self.frames_per_batch)
        return Workers(number, contract, len(self._envs), ahead=ahead)

    def state_dict(self) -> dict[str, Any]:
        """TorchRL's, the episodes finished lately, and what leads to where those under way are."""
        if self._workers is not None and self._workers.ahead:
            self._workers.lose()
        return super().state_dict()

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End the workers, and close the environments here."""
        self._workers = None  # Ray ends a process that nobody can ask any more
        super().shutdown(*args, **kwargs)

    def _lead_to(self, saved: dict[str, Any]) -> list[int]:
        if self._workers is None:
            return super()._lead_to(saved)
        self._live = Live.from_state_dict(saved, self._carried_masks())
        self._workers.lose()
        return []

    def _begin(self, live: Live, i: int) -> None:
        super()._begin(live, i)
        if self._workers is not None:
            self._workers.lose()

    def _one_batch(self) -> TensorDictBase:
        workers = self._workers
        if workers is None:
            return super()._one_batch()
        self._ask(workers)
        batch = self._follow(workers.answer(self._place))
        if workers.ahead:
            self._ask(workers)
        return batch

    def _ask(self, workers: Workers) -> None:
        workers.ask(
            self._place,
            at_random=isinstance(self.policy, RandomPolicy) or self._should_use_random_frames(),
            exploration=self.exploration_type,
            unseen=self._unseen,
        )

    def _place(self) -> dict[str, Any]:
        """Where the environments are."""
        assert self._live is not None
        return {"seed": self._seed, "live": self._live.state_dict(), "memory": self._memory()}

    def _follow(self, answer: Answer) -> TensorDict:
        """Be where the workers' environments are after a batch; returns the batch."""
        live = self._live
        assert live is not None
        for i in answer.failed:
            warn_of_other(i)
            self._name_episode(live, i)
        ids = np.repeat(live.ids[:, None], self.frames_per_batch, 1)
        for t, i, gained, length, told in answer.ended:
            self._finished.note(gained, length)
            self._finished.judge(told)
            self._name_episode(live, i)
            ids[i, t + 1 :] = live.ids[i]
        live.follow(answer.place["live"])
        self._recall(answer.place["memory"])
        size, names = torch.Size(ids.shape), answer.names

        def node(values: dict[str, Any]) -> TensorDict:
            parts = {k: node(v) if isinstance(v, dict) else v for k, v in values.items()}
            return unchecked_tensordict(parts, size, names=names)

        if self.track_traj_ids and not self._remembers:
            answer.batch["collector"] = {"traj_ids": torch.from_numpy(ids)}
        batch = node(answer.batch)
        return batch if self.env.batch_size or self._remembers else batch[0]
