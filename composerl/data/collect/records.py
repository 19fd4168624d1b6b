"""Records from TorchRL's own collector: an environment that shows them, and how to take them."""

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

from composerl.data.collect.inside import apply, look_inside
from composerl.data.collect.live import Live, for_gym

__all__ = ["RecordEnv", "to_records"]


class RecordEnv(EnvBase):
    """Environments whose every step shows one record: after an episode's end, the next's start.

    This is gymnasium's NEXT_STEP layout: the step after an end ignores the action, its reward is
    0 and its observation is the first of the next episode, where ``is_init`` is true. So is the
    first step of all; what a reset shows is blank. The whole is never done, and TorchRL's own
    collector goes on and on; :func:`to_records` makes records of its batches::

        env = RecordEnv(make_env(cfg.env, cfg.num_envs), seed=cfg.seed)
        collector = Collector(
            env, actor, frames_per_batch=cfg.num_envs, postproc=to_records,
            auto_register_policy_transforms=True,
        )

    They are the records of a :class:`~composerl.data.RecordCollector`, which is faster, does not
    ask the actor where all episodes start, counts episodes, and whose state can be saved.

    Args:
        env: of :func:`composerl.envs.make_env`; its gymnasium environments are taken over.
        seed: of the episodes; None leaves them to the environments' own seeding.
    """

    def __init__(self, env: EnvBase, seed: int | None = None) -> None:
        inside = look_inside(env)
        if not inside.envs:
            raise ValueError(
                "env must be one of composerl.envs.make_env over gymnasium ones, with simple "
                f"transforms at most, got {env}; others can be put around the RecordEnv"
            )
        number = len(inside.envs)
        super().__init__(device=env.device, batch_size=[number])
        self._envs, self._inside, self._whole = inside.envs, inside, env
        seen = env.observation_spec["observation"]
        shape = (number, *seen.shape[len(env.batch_size) :])
        flag = Binary(1, shape=(number, 1), dtype=torch.bool)
        self.observation_spec = Composite(
            observation=Unbounded(shape=shape, dtype=seen.dtype),
            is_init=flag.clone(), terminal=flag.clone(), shape=[number],
        )  # fmt: skip
        action = env.action_spec_unbatched
        self.action_spec = action.expand(number, *action.shape)
        self.reward_spec = Unbounded(shape=(number, 1))
        self._set_seed(seed)

    def _set_seed(self, seed: int | None) -> None:
        self._seed, self._live = seed, Live(np.zeros(len(self._envs)))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDict:
        if tensordict is not None and "_reset" in tensordict:
            raise ValueError("a RecordEnv starts episodes in all environments, not in some")
        self._over = [True] * len(self._envs)  # whose next step starts an episode
        blank = self.full_observation_spec.zero()
        return blank.set("is_init", torch.ones_like(blank["is_init"]))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        moves = for_gym(tensordict.get("action").cpu(), self._envs[0].action_space)
        out = {**self.full_observation_spec.zero(), **self.full_reward_spec.zero(),
               **self.full_done_spec.zero()}  # fmt: skip
        for i, env in enumerate(self._envs):
            if self._over[i]:
                seen, self._over[i] = self._live.start(env, i, self._seed), False
                out["is_init"][i] = True
            else:
                seen, gained, ended, cut, info = env.step(moves[i])
                out["reward"][i] = apply(self._inside.reward, torch.tensor(float(gained)))
                out["terminal"][i] = ended or info.get("life_loss", False)
                self._over[i] = ended or cut
            out["observation"][i] = torch.as_tensor(self._inside.see(seen))
        return TensorDict(out, self.batch_size, device=self.device)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environments."""
        super().close(raise_if_closed=raise_if_closed)
        self._whole.close(raise_if_closed=raise_if_closed)


def to_records(batch: TensorDictBase) -> TensorDict:
    """Records ``(environments, time)`` of a collector's batch of steps in a :class:`RecordEnv`."""
    shown, first = batch["next"], batch["next", "is_init"].squeeze(-1)
    action = batch["action"]
    records = {
        "observation": shown["observation"],
        "action": action.masked_fill(first.reshape(first.shape + (1,) * (action.ndim - 2)), 0),
        "reward": shown["reward"].squeeze(-1),
        "first": first,
        "terminal": shown["terminal"].squeeze(-1),
    }
    for key in ("deter", "stoch"):  # of a policy that has them, as its primer leaves them
        if shown.get(key, None) is not None:
            records |= {key: shown[key], "known": torch.ones_like(first)}
    return TensorDict(records, batch.batch_size)
