"""Whether an exported policy acts as ``predict`` does, on examples of what it is shown."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, cast

import numpy as np

from composerl.bookkeeping.evaluation import Player
from composerl.envs.packing import is_image
from composerl.modules.mlp import Normalize

__all__ = ["TOLERANCE", "Act", "each", "example_inputs", "require_same"]

TOLERANCE = 1e-5
SAMPLES = 64
#: Steps that a policy with memory is compared over.
STEPS = 200

Act = Callable[..., list[np.ndarray]]
"""An exported policy: its inputs, in order, to its outputs."""


def each(change: Callable[[Any], Any], given: Any) -> Any:
    """What is made of an array, or of each in a dictionary of them."""
    if isinstance(given, dict):
        return {name: change(array) for name, array in given.items()}
    return change(given)


def require_same(policy: Player, act: Act, format: str) -> None:
    """Refuse an export that acts otherwise, on batches of several sizes."""
    if policy.recurrent:
        return _compare_in_sequence(cast(Any, policy), act, format)
    for size in (1, 3, SAMPLES):
        observation, *mask = example_inputs(policy, size)
        expected = policy.predict(observation, **({"mask": mask[0]} if mask else {}))
        _require_equal(expected, act(observation, *mask)[0], format)


def _compare_in_sequence(policy: Any, act: Act, format: str) -> None:
    """Step by step from the states of ``predict``, over ends of episodes: actions and states."""
    held, rng = policy.state, np.random.default_rng(2)
    try:
        for size in (1, 3):
            policy.reset()
            state = [x.numpy() for x in policy.actor.initial(size).values()]
            every = _observations(policy, size * STEPS)
            for t in range(STEPS):
                seen = each(itemgetter(slice(size * t, size * (t + 1))), every)
                first = (rng.random(size) < 0.05) | (t == 0)
                got = act(seen, first, *(x.copy() for x in state))
                expected = policy.predict(seen, first)
                state = [x.cpu().numpy() for x in policy.state.values()]
                for one, other in zip([expected, *state], got, strict=True):
                    _require_equal(one, other, format)
    finally:
        policy.state = held


def _require_equal(expected: np.ndarray, got: np.ndarray, format: str) -> None:
    problem = ""
    if expected.shape != got.shape:
        problem = f"gives {got.shape}, predict {expected.shape}"
    elif not np.allclose(expected, got, rtol=TOLERANCE, atol=TOLERANCE):
        worst = float(np.abs(expected.astype(np.float64) - got).max())
        problem = f"differs from predict by {worst:.2g}, more than {TOLERANCE:g}"
    if problem:
        raise RuntimeError(f"the {format} export {problem}; nothing was written")


def example_inputs(policy: Player, size: int) -> tuple[Any, ...]:
    """Random observations, and masks of which each allows something, or flags and a state."""
    seen = _observations(policy, size)
    if policy.recurrent:
        state = cast(Any, policy.actor).initial(size)
        return seen, np.arange(size) == 0, *(x.cpu().numpy() for x in state.values())
    if not policy.spaces.masked:
        return (seen,)
    mask = np.random.default_rng(1).random((size, policy.spaces.action_dim)) < 0.5
    mask[np.arange(size), np.arange(size) % policy.spaces.action_dim] = True
    return seen, mask


def _observations(policy: Player, size: int) -> Any:
    """Random observations where the policy is not saturated: of its own mean and spread."""
    generator, spaces = np.random.default_rng(0), policy.spaces

    def draw(shape: tuple[int, ...], pixels: bool) -> np.ndarray:
        if pixels:
            return generator.integers(256, size=(size, *shape), dtype=np.uint8)
        return generator.standard_normal((size, *shape)).astype(np.float32)

    if spaces.obs_layout is not None:
        return {name: draw(shape, is_image(shape)) for name, shape in spaces.obs_layout}
    if spaces.obs_dtype == "uint8":
        return draw(spaces.obs_shape, True)
    values = generator.standard_normal((size, *spaces.obs_shape))
    for module in policy.actor.modules():
        if isinstance(module, Normalize):
            values = module.mean.cpu().numpy() + module.std.cpu().numpy() * values
            break
    return values.astype(np.float32)
