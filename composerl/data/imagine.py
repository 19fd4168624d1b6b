"""Imagined data: what a learned model says would happen, and rules of when it is over."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, ModelBasedEnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.envs.spaces import Spaces

__all__ = ["ENDINGS", "ModelEnv", "Termination", "branched_rollouts", "length_schedule"]

#: (observation, action, next observation), all ``(rows, ...)`` -> whether the episode is over,
#: ``(rows,)``.
Termination = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Branches that are rolled out at a time: the activations of the networks stay in the cache.
CHUNK = 4096


@torch.no_grad()
def branched_rollouts(
    dynamics: TensorDictModule,
    policy: nn.Module,
    observation: Tensor,
    length: int = 1,
    *,
    termination: Termination | None = None,
) -> TensorDict:
    """Branched rollouts: from each observation the policy acts ``length`` steps in the model.

    A branch that terminates ends there. The last step of one that does not is truncated.

    Args:
        dynamics: reads ``observation`` and ``action``, writes ``("next", "observation")``,
            ``("next", "reward")`` and, if there is no ``termination``, maybe
            ``("next", "terminated")``: :func:`composerl.modules.ensemble`, or your own.
        policy: has ``explore`` (observation -> random action), or is a TensorDictModule that
            writes ``action``.
        observation: where the branches start, ``(branches, obs)``.
        length: steps of each branch, at least 1.
        termination: decides when an episode is over, in place of the model.

    Returns: all transitions ``(rows,)`` in TorchRL's layout, without gradients.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if observation.ndim != 2:
        raise ValueError(f"observation must be (branches, obs), got {tuple(observation.shape)}")
    steps: list[TensorDictBase] = []
    for now in observation.split(CHUNK):
        for step in range(length):
            action = _act(policy, now)
            following = _predict(dynamics, now, action, termination)
            terminated = following["terminated"]
            following["truncated"] = ~terminated & (step == length - 1)
            following["done"] = terminated | following["truncated"]
            transition = {"observation": now, "action": action, "next": following}
            steps.append(TensorDict(transition, now.shape[:1]))
            now = following["observation"][~terminated.squeeze(-1)]
            if not len(now):
                break
    return torch.cat(steps)


def length_schedule(first: int, last: int, start: int = 0, stop: int = 0) -> Callable[[int], int]:
    """Lengths of branches: ``first`` until step ``start``, then in equal parts to ``last``.

    The model gets better as data come in, so that branches may become longer. ``last`` is reached
    at step ``stop``. The paper's Hopper: ``length_schedule(1, 15, 20_000, 100_000)``.
    """
    if first < 1 or last < 1:
        raise ValueError(f"branches have at least one step, got lengths {first} and {last}")
    if stop < start:
        raise ValueError(f"stop must be at least start={start}, got {stop}")

    def length(step: int) -> int:
        if step >= stop:
            return last
        if step <= start:
            return first
        # In integers: a rounded product must not end one step short of the next length.
        return first + (last - first) * (step - start) // (stop - start)

    return length


class ModelEnv(ModelBasedEnvBase):
    """A learned model as a TorchRL environment: ``env.rollout(n, policy)`` imagines.

    It has no time limit: cut rollouts by ``max_steps``, or add TorchRL's ``StepCounter``. Random
    numbers come from torch's global generator.

    Args:
        dynamics: see :func:`branched_rollouts`.
        env: environment or :class:`~composerl.envs.spaces.Spaces` that the model is of.
        start: observations to start from, ``(rows, obs)``, one of which is drawn at each reset; or
            a function that draws as many as it is asked for, ``number -> (number, obs)``.
        termination: see :func:`branched_rollouts`.
        batch_size: shape of the batch of environments that ``reset`` makes.
    """

    def __init__(
        self,
        dynamics: TensorDictModule,
        env: EnvBase | Spaces,
        start: Tensor | Callable[[int], Tensor],
        *,
        termination: Termination | None = None,
        batch_size: Sequence[int] = (),
    ) -> None:
        spaces = Spaces.of(env).require_box("ModelEnv")
        parameter, shape = next(dynamics.parameters(), torch.zeros(())), torch.Size(batch_size)
        super().__init__(dynamics, device=parameter.device, batch_size=shape)
        self._start = start
        self._termination = termination
        end = Categorical(2, (1,), dtype=torch.bool)
        self.observation_spec = Composite(observation=Unbounded(spaces.obs_shape)).expand(shape)
        self.state_spec = self.observation_spec.clone()
        box = Bounded(torch.tensor(spaces.low), torch.tensor(spaces.high))
        self.action_spec = box.expand(*shape, *box.shape)
        self.reward_spec = Unbounded((*shape, 1))
        ends = Composite(done=end, terminated=end.clone(), truncated=end.clone())
        self.full_done_spec = ends.expand(shape)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        number = shape.numel()
        if callable(self._start):
            first = self._start(number)
        else:
            first = self._start[torch.randint(len(self._start), (number,))]
        return TensorDict({"observation": first.reshape(*shape, -1).to(self.device)}, shape)

    @torch.no_grad()
    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        observation, action = tensordict["observation"], tensordict["action"]
        shape = tensordict.batch_size
        flat = observation.reshape(-1, observation.shape[-1])
        action = action.reshape(len(flat), -1)
        following = _predict(self.world_model, flat, action, self._termination)
        following["done"] = following["terminated"].clone()
        following["truncated"] = torch.zeros_like(following["done"])
        return TensorDict({key: x.reshape(*shape, -1) for key, x in following.items()}, shape)


def _act(policy: nn.Module, observation: Tensor) -> Tensor:
    explore = getattr(policy, "explore", None)
    if explore is not None:
        return explore(observation)
    with set_exploration_type(ExplorationType.RANDOM):
        return policy(TensorDict({"observation": observation}, observation.shape[:1]))["action"]


def _predict(
    dynamics: TensorDictModule, observation: Tensor, action: Tensor, termination: Termination | None
) -> dict[str, Tensor]:
    """Next observation, reward ``(rows, 1)`` and terminated ``(rows, 1)``."""
    rows = observation.shape[:1]
    out = dynamics(TensorDict({"observation": observation, "action": action}, rows)).get("next")
    following = {key: out.get(key) for key in ("observation", "reward")}
    if termination is None:
        never = observation.new_zeros(*rows, 1, dtype=torch.bool)
        return following | {"terminated": out.get("terminated", never)}
    ended = termination(observation, action, following["observation"])
    if ended.dtype != torch.bool or ended.shape not in (rows, (*rows, 1)):
        raise ValueError(
            f"termination must return bool of shape {tuple(rows)}, "
            f"got {ended.dtype} of shape {tuple(ended.shape)}"
        )
    return following | {"terminated": ended.reshape(*rows, 1)}


def _pole_falls(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """InvertedPendulum: the pole leans by more than 0.2."""
    return ~(following[:, 1].abs() <= 0.2)


def _hopper_falls(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Hopper: too low, too far tilted, or a number out of range."""
    low, tilt = following[:, 0], following[:, 1].abs()
    return ~((low > 0.7) & (tilt < 0.2) & (following[:, 1:].abs() < 100).all(1))


def _walker_falls(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Walker2d: too low or too high, or too far tilted."""
    height = following[:, 0]
    return ~((height > 0.8) & (height < 2) & (following[:, 1].abs() < 1))


def _ant_falls(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Ant: too low or too high."""
    return ~((following[:, 0] >= 0.2) & (following[:, 0] <= 1))


#: The rules of gymnasium's MuJoCo tasks; NaN ends an episode.
ENDINGS: dict[str, Termination] = {
    "inverted_pendulum": _pole_falls,
    "hopper": _hopper_falls,
    "walker": _walker_falls,
    "ant": _ant_falls,
}
