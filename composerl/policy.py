"""Policy: what a run leaves behind, usable from its file alone."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from composerl._schema import imported
from composerl.bookkeeping.acting import greedy, observations
from composerl.bookkeeping.evaluation import Evaluation, Evaluator, State
from composerl.bookkeeping.export import export_policy
from composerl.bookkeeping.shown import rows_of
from composerl.bookkeeping.stored import read_policy
from composerl.bookkeeping.trees import save_tree
from composerl.envs.spaces import Spaces
from composerl.modules import build

__all__ = ["Policy", "holds_policy", "load"]


class Policy:
    """A trained policy: predicts deterministic actions, evaluates itself.

    One with memory (its actor says ``recurrent``) goes on from what it was shown before:
    :meth:`predict` updates :attr:`state`, :meth:`reset` clears it.

    Args:
        actor: a network of :mod:`composerl.modules`, or any TensorDictModule that reads
            ``observation`` and writes ``action``; or a plain module of observations to actions or,
            of discrete ones, their values; or one with memory, that has ``recurrent``,
            ``initial(batch)`` and ``greedy(observation, state, first) -> (action, state)``.
        env: gymnasium id of the environment it was trained on, or a factory of a gymnasium or
            TorchRL one.
        spaces: its spaces; read from the environment when not given.
        evaluator: environments to evaluate in, to be shared.
        env_kwargs: keyword arguments of the environment.

    Attributes:
        directory: of the run that it was trained in, if it comes from there.
        trained_in: the id of its environment there, which load() may not have imported.
        state: the memory, a tensor ``(batch, ...)`` for each of its parts, or None at the start;
            it can be kept and set again. Policies without memory leave it None.
    """

    directory: Path | None = None
    trained_in: str | None = None

    def __init__(
        self,
        actor: nn.Module,
        env: Any,
        spaces: Spaces | None = None,
        evaluator: Evaluator | None = None,
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.actor = actor
        self.env = env
        self.env_kwargs = dict(env_kwargs or {})
        self._evaluator = evaluator
        self.spaces = self._own_evaluator().spaces if spaces is None else spaces
        self.recurrent = bool(getattr(actor, "recurrent", False))
        self.state: State | None = None
        self._parameter: Tensor | None = None

    def __repr__(self) -> str:
        kind = (getattr(self.actor, "description", None) or {}).get("factory", "own module")
        return f"Policy({kind}, env={self.env!r}, observation={self.spaces.obs_shape})"

    def predict(self, observation: Any, first: Any = None, *, mask: Any = None) -> np.ndarray:
        """Deterministic actions for one observation or a batch of them, numpy or torch.

        Where an environment's observations are a Dict, also a dictionary of arrays as it shows.

        Returns ``(action,)`` for one observation, ``(batch, action)`` for a batch; integers when
        actions are discrete.

        A policy with memory takes each row as the next observation of the episode that the same
        row of the last call belongs to, unless ``first``, a bool or one for each row, says that a
        new one starts there. ``first`` is of no effect for others.

        A policy of an environment that masks its actions needs ``mask``, true where an action is
        allowed: ``(actions,)``, or ``(batch, actions)`` for a batch.
        """
        seen, single = rows_of(observation, mask, self.spaces)
        with torch.no_grad():
            action = self.act(seen, first).cpu().numpy()
        return action[0] if single else action

    def act(self, observation: Any, first: Any = None) -> Any:
        """Like :meth:`predict`, for a batch that is known to be right, without leaving torch."""
        if not self.recurrent:
            return greedy(self.actor, observation.to(self._device), self.spaces)
        rows = len(observation)
        held = rows if self.state is None else len(next(iter(self.state.values())))
        if held != rows:
            raise ValueError(
                f"observation has {rows} rows, but the policy's state is that of {held}: call "
                "reset() before episodes of another number"
            )
        flags = torch.as_tensor(False if first is None else first)
        if flags.dtype != torch.bool or tuple(flags.shape) not in ((), (rows,)):
            raise ValueError(
                f"first must be a bool or {rows} of them, one for each row of observation, "
                f"got {first!r}"
            )
        action, self.state = self._remember(observation, self.state, flags.expand(rows))
        return action

    def reset(self) -> None:
        """Forget: what comes next are the first observations of episodes."""
        self.state = None

    def _remember(self, seen: Any, state: State | None, first: Tensor) -> tuple[Tensor, State]:
        """A step of the actor with memory; without a state, all rows are first."""
        home, actor = self._device, cast(Any, self.actor)
        observation = observations(seen, self.spaces).to(home)
        if state is None:
            state, first = actor.initial(len(observation)), torch.ones_like(first)
        state = {key: value.to(home) for key, value in state.items()}
        return actor.greedy(observation, state, first.to(home))

    @property
    def _device(self) -> torch.device:
        # Looking a parameter up takes as long as half a small network.
        if self._parameter is None:
            self._parameter = next(self.actor.parameters(), torch.empty(0))
        return self._parameter.device

    def evaluate(
        self, episodes: int = 10, seed: int = 0, *, evaluator: Evaluator | None = None
    ) -> Evaluation:
        """Play seeded episodes in the policy's own environment, or in those of ``evaluator``.

        A policy with memory starts each without any; its :attr:`state` is left as it is.
        """
        evaluator = evaluator or self._own_evaluator()
        modes = {module: module.training for module in self.actor.modules()}
        self.actor.eval()
        try:
            act = self._remember if self.recurrent else self.act
            return evaluator(act, episodes, seed, recurrent=self.recurrent, spaces=self.spaces)
        finally:
            for module, mode in modes.items():
                module.training = mode

    def require_env(self) -> None:
        """Refuse to play where no environment is known: a run's own module is not imported."""
        if self.env is None and self.trained_in is not None:
            raise ValueError(
                f"the policy was trained in {self.trained_in}: a module that is named is not "
                f"imported unasked: load(..., env={self.trained_in!r}), or add "
                f"--env {shlex.quote(self.trained_in)}"
            )

    def _own_evaluator(self) -> Evaluator:
        self.require_env()
        if self._evaluator is None:
            self._evaluator = Evaluator(self.env, self.env_kwargs)
        return self._evaluator

    def save(self, path: str | Path) -> Path:
        """Write the policy to one file (safetensors, no pickle); :func:`load` reads it."""
        save_tree(Path(path), "policy", self.to_tree())
        return Path(path)

    def export(self, path: str | Path, format: str = "onnx") -> Path:
        """Write the policy as ONNX or as torch's pt2, for use without composerl.

        The file is self-contained, normalisation included: input ``observation`` of any batch
        size, output ``action`` as :meth:`predict` gives it. One with memory also takes ``first``
        (bool, rows whose episode starts) and each part of its state, ``state_...``, zeros at
        first, and gives ``next_state_...``. Images and vectors together are ``observation_...``,
        each by its name (pt2: a dictionary). It is compared with ``predict``, to 1e-5, before it
        is written, with memory over 200 steps. ``onnx`` needs the extra ``export``.
        """
        return export_policy(self, Path(path), format)

    def to_tree(self) -> dict[str, Any]:
        """What a policy file holds."""
        named = isinstance(self.env, str)
        return {
            "env": self.env if named else None,
            "env_kwargs": self.env_kwargs if named else {},
            "spaces": self.spaces.to_json(),
            "description": getattr(self.actor, "description", None),
            "class": type(self.actor).__name__,
            "state": dict(self.actor.state_dict()),
        }


def load(
    path: str | Path,
    *,
    which: str = "final",
    actor: nn.Module | None = None,
    env: str | Callable[..., Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
) -> Policy:
    """The policy of a run, from its files alone: no recipe is imported, nothing is unpickled.

    Args:
        path: a run directory, or a policy or checkpoint file in it, or a directory with one run.
        which: ``final`` (of an unfinished run: its newest checkpoint) or ``best`` (the best
            evaluated one), for a run directory. If its file is damaged, that of the newest
            checkpoint that can be read, which is told.
        actor: for a policy made of your own modules, the module to load its weights into.
        env: environment to evaluate in, if not the one it was trained in by its gymnasium id.
        env_kwargs: its keyword arguments; those it was trained with, if it is the same one.
    """
    file, tree = read_policy(Path(path), which)
    state, spaces = tree["state"], tree["spaces"]
    if actor is None:
        if tree["description"] is None:
            raise ValueError(
                f"{file} holds a policy of your own class {tree['class']}: pass the module to "
                f"load its weights into, load({str(path)!r}, actor=my_module), "
                "or name the recipe that has a function actor(cfg) for it, --recipe my_recipe.py"
            )
        # Twice: a network may be made in a way that it makes parts of twice.
        actor = build(tree["description"], room=2 * sum(x.numel() for x in state.values()) + 1000)
    try:
        actor.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{file} does not fit the network: {reason}") from error
    trained_in, kwargs = tree["env"], tree["env_kwargs"] or {}
    if env is None and imported(trained_in, *kwargs.values()):
        env = trained_in
    if env_kwargs is None and env == trained_in and imported(*kwargs.values()):
        env_kwargs = kwargs
    policy = Policy(actor.eval(), env, spaces, env_kwargs=env_kwargs)
    policy.directory, policy.trained_in = _run_of(Path(path)) or _run_of(file), trained_in
    return policy


def _run_of(path: Path) -> Path | None:
    """The run directory that is named, or that a policy or checkpoint file is in."""
    places = [path] if path.is_dir() else path.absolute().parents[:2]
    return next((place for place in places if (place / "config.yaml").is_file()), None)


def holds_policy(path: str | Path) -> bool:
    """Whether :func:`load` would look for a policy there: a policy file or a run directory."""
    path = Path(path).expanduser()
    run = (path / "policy.safetensors").is_file() or (path / "checkpoints").is_dir()
    return path.suffix == ".safetensors" or run
