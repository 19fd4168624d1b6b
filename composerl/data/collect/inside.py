"""What a collector works with: gymnasium environments, simple transforms, a policy to ask."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.collectors import RandomPolicy
from torchrl.data import Categorical
from torchrl.envs import Compose, DoubleToFloat, EnvBase, GymWrapper, Transform, TransformedEnv
from torchrl.envs.transforms import (
    ActionMask,
    CatTensors,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
)

from composerl.envs.masks import MASK, random_allowed

__all__ = ["Asking", "Inside", "apply", "asks_at_steps", "look_inside"]

#: Transforms that take each number by itself and remember nothing, and the entries they may change.
_SIMPLE: dict[type, set[str]] = {
    DoubleToFloat: {"observation", "reward"},
    CatTensors: {"observation"},  # of one entry: nothing happens
    ObservationNorm: {"observation"},
    RewardClipping: {"reward"},
    RewardScaling: {"reward"},
}


#: Options of TorchRL's collector that ask for nothing at a step; others do, unless off.
_HARMLESS = {
    "auto_register_policy_transforms", "create_env_kwargs", "device", "env_device",
    "exploration_type", "extend_buffer", "init_random_frames", "no_cuda_sync", "policy_device",
    "policy_factory", "post_collect_hook", "postproc", "pre_collect_hook", "replay_buffer",
    "reset_when_done", "return_same_td", "set_truncated", "split_trajs", "storing_device",
    "total_frames", "track_traj_ids", "traj_pool", "trust_policy", "use_buffers",
    "weight_recv_schemes", "weight_sync_schemes", "weight_updater", "worker_idx",
}  # fmt: skip


class Inside(NamedTuple):
    """Gymnasium environments, and the transforms of what they give, in order.

    ``observation`` is empty where no transform does more than a cast, which an array does itself.
    """

    envs: list[gym.Env]
    observation: list[Transform]
    reward: list[Transform]

    @property
    def raw_dtype(self) -> np.dtype:
        """Type of observations before the transforms."""
        return np.dtype(self.envs[0].observation_space.dtype)

    def see(self, raw: Any) -> Any:
        """What the transforms make of observations of the environments."""
        if not self.observation:
            return raw
        return apply(self.observation, torch.from_numpy(np.asarray(raw, self.raw_dtype)))


def look_inside(env: EnvBase) -> Inside:
    """What a TorchRL environment is made of: nothing, where it adds more than simple transforms."""
    layers: list[Transform] = []
    while isinstance(env, TransformedEnv):
        layers = _flat(env.transform) + layers
        env = env.base_env
    envs = _gym_environments(env)
    ndim = len(envs[0].observation_space.shape or ()) if envs else 0
    if not all(_is_simple(layer, ndim) for layer in layers):
        return Inside([], [], [])
    observation = [layer for layer in layers if "observation" in layer.in_keys]
    if not any(type(layer) is ObservationNorm for layer in observation):
        observation = []
    reward = [layer for layer in layers if type(layer) in (RewardClipping, RewardScaling)]
    return Inside(envs, observation, reward)


def apply(layers: list[Transform], data: Tensor) -> Tensor:
    """What the transforms make of one entry."""
    for layer in layers:
        if type(layer) is not CatTensors:
            data = layer._apply_transform(data)
    return data


def _flat(transform: Transform) -> list[Transform]:
    if isinstance(transform, Compose):
        return [layer for part in transform for layer in _flat(part)]
    return [transform]


def _is_simple(layer: Transform, ndim: int) -> bool:
    """Whether it does to a batch of steps what it does to one step."""
    if type(layer) is ActionMask:  # for random actions, which keep to the masks here too
        return list(layer.in_keys) == ["action", MASK]
    keys = _SIMPLE.get(type(layer))
    if keys is None or list(layer.in_keys) != list(layer.out_keys) or set(layer.in_keys) - keys:
        return False
    if type(layer) is DoubleToFloat:
        return list(layer.in_keys_inv) == list(layer.out_keys_inv)
    if layer.in_keys_inv:  # it would change actions
        return False
    ndim = ndim if layer.in_keys == ["observation"] else 1
    # Another type than float32 would change that of the entry.
    return all(
        x.device.type == "cpu" and x.ndim <= ndim and (not x.ndim or x.dtype == torch.float32)
        for x in layer.buffers()
    )


def _gym_environments(env: EnvBase) -> list[gym.Env]:
    if type(env) is not GymWrapper or env.wrapper_frame_skip != 1:
        return []
    if any(reader.keys != [MASK] for reader in env.info_dict_reader):
        return []
    envs = [env._env]
    if isinstance(env._env, gym.vector.VectorEnv):
        resets = env._env.metadata.get("autoreset_mode")
        if type(env._env) is not SyncVectorEnv or resets != AutoresetMode.DISABLED:
            return []
        envs = list(env._env.envs)
    space = envs[0].action_space
    simple = isinstance(envs[0].observation_space, gym.spaces.Box) and (
        isinstance(space, gym.spaces.Box)
        or (isinstance(space, gym.spaces.Discrete) and isinstance(env.action_spec, Categorical))
    )
    return envs if simple else []


def asks_at_steps(options: dict[str, Any]) -> bool:
    """Whether options of TorchRL's collector ask for something at each step."""
    if options.get("replay_buffer") is not None and not options.get("extend_buffer", True):
        return True  # each step is written to the buffer
    return any(
        name not in _HARMLESS and value not in (None, False) for name, value in options.items()
    )


class Asking:
    """Gives a policy the environments' observations, gives back what it writes, on the CPU.

    ``wrapped`` is the policy, made to take TensorDicts. One with ``explore(observation) ->
    action`` is called by that when it is to explore.

    Where other processes step the environments before and after these (``elsewhere``), it is asked
    about all of them, theirs being blank: it then draws the same random numbers, and rounds the
    same, as if all were here.
    """

    elsewhere = (0, 0)

    def __init__(
        self, policy: Any, wrapped: Callable[[TensorDictBase], TensorDictBase], env: EnvBase
    ) -> None:
        self.policy, self.wrapped, self.env = policy, wrapped, env
        self.explore: Callable[..., Tensor] | None = getattr(policy, "explore", None)
        self.single = not env.batch_size
        self.heeds_masks = MASK in (getattr(policy, "in_keys", None) or ())
        self._zeros: dict[str, Tensor] | None = {} if isinstance(policy, RandomPolicy) else None

    @property
    def needs_no_more(self) -> bool:
        """Whether observations are all that the policy looks at."""
        if self.explore is not None or isinstance(self.policy, RandomPolicy):
            return True
        keys = getattr(self.wrapped, "in_keys", None)
        return keys is not None and list(keys) in (["observation"], ["observation", MASK])

    @cached_property
    def device(self) -> torch.device:
        """Where the policy is; asked for late, as its weights may come after it was made."""
        parameters = self.policy.parameters() if isinstance(self.policy, nn.Module) else iter(())
        return next((p.device for p in parameters), torch.device("cpu"))

    def act(
        self,
        obs: np.ndarray,
        masks: np.ndarray | None = None,
        *,
        exploring: bool,
        at_random: bool = False,
    ) -> dict[str, Tensor]:
        """What the policy writes for observations ``(environments, ...)``, and masks if any.

        Or random actions, and zeros for all that it would have written besides.
        """
        # A RandomPolicy knows no masks.
        if at_random or (masks is not None and isinstance(self.policy, RandomPolicy)):
            if self._zeros is None and (self.explore is None or not exploring):
                with torch.random.fork_rng():  # no number of the run is drawn for this
                    said = self.act(obs, masks, exploring=exploring)
                self._zeros = {k: torch.zeros_like(v) for k, v in said.items() if k != "action"}
            return {"action": self.random_action(masks), **(self._zeros or {})}
        seen = {"observation": self.among_all(torch.from_numpy(obs[0] if self.single else obs))}
        if masks is not None and self.heeds_masks:
            allowed = torch.from_numpy(masks[0] if self.single else masks)
            seen[MASK] = self.among_all(allowed, blank=True)
        if self.explore is not None and exploring:
            batch = [(x.unsqueeze(0) if self.single else x).to(self.device) for x in seen.values()]
            action = self.of_these(self.explore(*batch).cpu())
            return {"action": action.squeeze(0) if self.single else action}
        copies = {key: value.clone() for key, value in seen.items()}
        size = copies["observation"].shape[: len(self.env.batch_size)]
        out = self.wrapped(TensorDict(copies, size).to(self.device)).cpu()
        return {key: self.of_these(value) for key, value in out.items() if key not in seen}

    def random_action(self, masks: np.ndarray | None = None) -> Tensor:
        """One for each environment, of those allowed."""
        if masks is not None:
            allowed = torch.from_numpy(masks[0] if self.single else masks)
            return self.of_these(random_allowed(self.among_all(allowed, blank=True)))
        spec = self.env.action_spec
        if any(self.elsewhere):
            one = self.env.action_spec_unbatched
            spec = one.expand(sum(self.elsewhere) + self.env.batch_size.numel(), *one.shape)
        return self.of_these(spec.rand().cpu())

    def among_all(self, rows: Tensor, *, blank: float = 0) -> Tensor:
        """Rows of these environments between blank ones for those elsewhere."""
        if not any(self.elsewhere):
            return rows
        before, after = self.elsewhere
        whole = rows.new_full((before + len(rows) + after, *rows.shape[1:]), blank)
        whole[before : before + len(rows)] = rows
        return whole

    def of_these(self, rows: Tensor) -> Tensor:
        """The rows of these environments among those of all."""
        before, after = self.elsewhere
        return rows[before : len(rows) - after] if before + after else rows
