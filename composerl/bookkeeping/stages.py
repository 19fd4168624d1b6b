"""Environments as evaluation plays them: gymnasium's and TorchRL's behind one interface."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import OneHot
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from composerl.envs.masks import MASK
from composerl.envs.opening import env_name, open_gym
from composerl.envs.packing import first_image
from composerl.envs.spaces import Spaces

__all__ = ["GymStage", "Stage", "TorchRLStage", "integers", "open_stage", "picture"]


class GymStage:
    """A gymnasium environment: shows arrays, two of them where it has a mask; takes actions."""

    def __init__(self, env: gym.Env) -> None:
        self.env = env
        self.spaces = Spaces.of(env)

    @property
    def limited(self) -> bool:
        """Whether its episodes are known to end: by gymnasium's wrapper."""
        env = self.env
        while isinstance(env, gym.Wrapper) and not isinstance(env, gym.wrappers.TimeLimit):
            env = env.env
        return isinstance(env, gym.wrappers.TimeLimit)

    def start(self, seed: int) -> Any:
        """Begin an episode; returns what it shows."""
        return self._shown(*self.env.reset(seed=seed))

    def step(self, shown: Any, action: np.ndarray) -> tuple[Any, float, bool]:
        """What the action leads to: what is shown then, the reward, and whether it is over."""
        taken = int(action) if self.spaces.discrete else action
        seen, reward, terminated, truncated, info = self.env.step(taken)
        return self._shown(seen, info), float(reward), terminated or truncated

    def _shown(self, seen: Any, info: dict[str, Any]) -> Any:
        return (seen, info[MASK]) if self.spaces.masked else seen

    def together(self, shown: Sequence[Any]) -> Tensor | TensorDictBase:
        """What several show, as the policy gets it."""
        if self.spaces.masked:
            seen, masks = (np.stack(parts) for parts in zip(*shown, strict=True))
            data = {"observation": self._tensor(seen), MASK: torch.from_numpy(masks)}
            return TensorDict(data, [len(shown)])
        return self._tensor(np.stack(shown))

    def _tensor(self, seen: np.ndarray) -> Tensor:
        return torch.from_numpy(seen.astype(self.spaces.obs_dtype, copy=False))

    def apart(self, answer: Tensor | TensorDictBase) -> Iterable[np.ndarray]:
        """The policy's answer for each of them."""
        if isinstance(answer, TensorDictBase):
            answer = integers(answer.get("action"), self.spaces.action_dim)
        return answer.cpu().numpy()

    def frame(self, shown: Any) -> np.ndarray:
        """A picture of it, uint8 ``(height, width, 3)``."""
        if _renders(self.env):
            return np.array(self.env.render(), np.uint8)
        return _seen_picture(shown[0] if self.spaces.masked else shown, self.spaces)


class TorchRLStage:
    """A TorchRL environment: shows TensorDicts, and takes them back with an action.

    All that it shows reaches a policy that reads TensorDicts, and what that writes is carried
    along as TorchRL does: masks and the states of recurrent modules too.
    """

    limited = False  # by which transform or wrapper inside it would be is not looked for

    def __init__(self, env: EnvBase) -> None:
        if env.batch_size:
            raise ValueError(
                "an environment to evaluate in must be a single one, of batch size (), got "
                f"{tuple(env.batch_size)}"
            )
        self.env = env

    @cached_property  # films ask at every frame
    def spaces(self) -> Spaces:
        """Read from the specs."""
        return Spaces.of(self.env)

    def start(self, seed: int) -> TensorDictBase:
        """Begin an episode; returns what it shows."""
        self.env.set_seed(seed)
        shown = self.env.reset()
        self._keys = list(shown.keys(True, True))
        return shown

    def step(
        self, shown: TensorDictBase, action: Tensor | TensorDictBase
    ) -> tuple[TensorDictBase, float, bool]:
        """What the action leads to: what is shown then, the reward, and whether it is over."""
        key = self.env.action_key
        data = action if isinstance(action, TensorDictBase) else shown.set(key, action)
        data.set(key, self._encoded(data.get(key)))
        data = self.env.step(data)
        result = data.get("next")
        over = any(result.get(key).any().item() for key in self.env.done_keys)
        # Without what the policy wrote for this step, as when an episode starts.
        following = step_mdp(data).select(*self._keys)
        return following, result.get(self.env.reward_key).sum().item(), over

    def together(self, shown: Sequence[TensorDictBase]) -> TensorDictBase:
        """What several show, as the policy gets it."""
        return torch.stack(list(shown))

    def apart(self, answer: Tensor | TensorDictBase) -> Iterable[Tensor | TensorDictBase]:
        """The policy's answer for each of them."""
        return answer.to(self.env.device or "cpu").unbind(0)

    def frame(self, shown: TensorDictBase) -> np.ndarray:
        """A picture of it, uint8 ``(height, width, 3)``."""
        if "pixels" not in shown and _renders(self.env):
            return np.array(self.env.render(), np.uint8)
        if "pixels" in shown:
            return picture(shown["pixels"].cpu().numpy())
        return _seen_picture(shown["observation"].cpu().numpy(), self.spaces)

    def _encoded(self, action: Tensor) -> Tensor:
        """A discrete action as the environment takes it, if it is the other way round."""
        spec = self.env.action_spec
        number = getattr(spec.space, "n", None)
        if number is None or action.shape == spec.shape:
            return action
        index = integers(action.unsqueeze(0), number).squeeze(0).long()
        return spec.encode(index) if isinstance(spec, OneHot) else index


Stage = GymStage | TorchRLStage


def open_stage(env: str | Callable[..., Any], kwargs: dict[str, Any], film: bool = False) -> Stage:
    """Open an environment, one that can be filmed if need be."""
    made = open_gym(env, **kwargs)
    drawn = _renders(made)
    if isinstance(made, EnvBase):
        stage: Stage = TorchRLStage(made)
        drawn = drawn or "pixels" in made.observation_spec.keys()  # noqa: SIM118
    else:
        able = "rgb_array" in made.metadata.get("render_modes", ())
        if film and not drawn and able and isinstance(env, str):
            made.close()
            made, drawn = open_gym(env, **kwargs | {"render_mode": "rgb_array"}), True
        stage = GymStage(made)
    if not film or drawn:
        return stage
    if stage.spaces.obs_layout is not None:
        return stage
    shape = stage.spaces.obs_shape
    if len(shape) != 3 or stage.spaces.obs_dtype != "uint8":
        raise ValueError(
            f"environment {env_name(env)!r} gives no frames: it neither renders to 'rgb_array' nor "
            f"are its observations images (channels, height, width) of uint8, but {shape}"
        )
    return stage


def integers(action: Tensor, number: int) -> Tensor:
    """Discrete actions as integers ``(batch,)``, from those, ``(batch, 1)`` or one-hot rows."""
    if action.ndim > 1 and action.shape[-1] == number:
        action = action.float().argmax(-1)  # there is no argmax of bool
    return action.flatten()


def _renders(env: Any) -> bool:
    return getattr(env, "render_mode", None) == "rgb_array"


def _seen_picture(seen: np.ndarray, spaces: Spaces) -> np.ndarray:
    return picture(seen if spaces.obs_layout is None else first_image(spaces.obs_layout, seen))


def picture(image: np.ndarray) -> np.ndarray:
    """Channels first or last; of other than three channels the brightest; floats are 0 to 1."""
    if image.dtype != np.uint8:
        image = (image.clip(0, 1) * 255).round().astype(np.uint8)
    if image.shape[-1] == 3 and image.shape[0] != 3:
        return np.ascontiguousarray(image)
    planes = image if len(image) == 3 else image.max(0, keepdims=True).repeat(3, 0)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))
