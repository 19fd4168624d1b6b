"""Checks that a collector gives what TorchRL's training loops expect of one."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.collectors import BaseCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from composerl.testing.checks import assert_same, needs, run, seed

__all__ = ["COLLECTOR_CHECKS", "check_collector"]

Make = Callable[..., BaseCollector]
FRAMES = 200


def check_collector(make: Make, *, only: str | None = None) -> None:
    """Raise an AssertionError that says what a TorchRL collector does and this one does not.

    Args:
        make: makes a new collector of one process, always of the same policy, and passes options
            of TorchRL's collectors on: ``make(total_frames=100)``. Some episodes should end within
            200 frames.
        only: the name of one check, of ``COLLECTOR_CHECKS``; ``unittest.SkipTest`` is raised if it
            does not concern this collector.
    """
    run(_CHECKS, only, lambda: (make,))


def _new(make: Make, **options: Any) -> BaseCollector:
    """A collector with the same draws and episodes as any other."""
    seed(0)
    collector = make(**options)
    if not isinstance(collector, BaseCollector):
        raise TypeError(f"make must return a TorchRL collector, got a {type(collector).__name__}")
    collector.set_seed(0)
    collector.reset()
    seed(0)
    return collector


def _batches(make: Make, frames: int = FRAMES) -> list[TensorDictBase]:
    collector = _new(make)
    number = -(-frames // collector.requested_frames_per_batch)
    return [batch.clone() for batch in islice(collector, number)]


def _transitions(make: Make) -> TensorDictBase:
    """Successive batches as one, ``(environments, time)``."""
    batches = _batches(make)
    needs("next" in batches[0].keys(), "transitions")  # noqa: SIM118
    steps = torch.cat(batches, -1)
    return steps.flatten(0, -2) if steps.ndim > 1 else steps.unsqueeze(0)


def _episodes(make: Make) -> TensorDictBase:
    """The same, where episodes end in it."""
    steps = _transitions(make)
    ends = steps["next"].select("done", "terminated", "truncated", strict=False)
    needs(any(flag.any() for flag in ends.values()), f"an episode that ends in {FRAMES} frames")
    return steps


def _frames(make: Make) -> None:
    asked = _new(make).requested_frames_per_batch
    collector = _new(make, total_frames=3 * asked)
    sizes = [batch.numel() for batch in collector]
    assert sizes == [asked] * 3, (
        f"total_frames={3 * asked} must give three batches of {asked} frames, got {sizes}"
    )
    assert not list(collector), "an iteration that has come to its end must not go on"


def _iteration(make: Make) -> None:
    """``next()`` is a step of the iteration."""
    batches = _batches(make)[:2]
    collector = _new(make)
    for batch in batches:
        assert_same(collector.next(), batch, "what next() gives, compared to the iteration,")


def _entries(make: Make) -> None:
    steps, env = _transitions(make), _new(make).env
    lead = len(env.batch_size)
    for name, spec in (
        *env.full_observation_spec.items(True, True),
        *env.full_action_spec.items(True, True),
        *env.full_reward_spec.items(True, True),
        *env.full_done_spec.items(True, True),
    ):
        places = [name] if name not in env.reward_keys else []
        places += [("next", name)] if name not in env.action_keys else []
        for key in places:
            value = steps.get(key, None)
            assert value is not None, f"a batch must have {key!r}"
            kind, expected = (value.dtype, value.shape[2:]), (spec.dtype, spec.shape[lead:])
            assert kind == expected, f"{key!r} must be of type and shape {expected}, got {kind}"


def _actions(make: Make) -> None:
    steps, env = _transitions(make), _new(make).env
    for key, spec in env.full_action_spec_unbatched.items(True, True):
        fits = spec.expand(*steps.shape, *spec.shape).is_in(steps.get(key))
        assert fits, f"{key!r} leaves the action spec {spec}"


def _alignment(make: Make) -> None:
    steps = _transitions(make)
    goes_on = ~steps["next", "done"][:, :-1, 0]
    shown, following = steps[:, 1:][goes_on], steps["next"][:, :-1][goes_on]
    for key in _new(make).env.full_observation_spec.keys(True, True):
        assert torch.equal(shown.get(key), following.get(key)), (
            f"{key!r} must be what the step before gave as ('next', {key!r}), unless it was done"
        )


def _flags(make: Make) -> None:
    steps = _episodes(make)
    ends = steps["next"]
    either = ends["terminated"] | ends.get("truncated", torch.zeros_like(ends["terminated"]))
    assert torch.equal(ends["done"], either), "done must be terminated or truncated"
    assert not steps["done"].any(), "no step may start from a state that is done"


def _trajectories(make: Make) -> None:
    steps = _episodes(make)
    ids = steps.get(("collector", "traj_ids"), None)
    needs(ids is not None, "traj_ids")
    ids, done = ids.reshape(steps.shape), steps["next", "done"][..., 0]
    assert torch.equal(ids[:, 1:] != ids[:, :-1], done[:, :-1]), (
        "traj_ids must change where an episode is done, and only there"
    )
    number = int(done[:, :-1].sum()) + len(steps)
    assert len(ids.unique()) == number, f"{number} episodes have {len(ids.unique())} traj_ids"


def _seeds(make: Make) -> None:
    batches = []
    for number in range(2):
        seed(number)
        collector = make()
        collector.set_seed(0)
        seed(0)
        batches.append(collector.next().clone())
    assert_same(batches[1], batches[0], "the first batch after set_seed(0)")


def _move_weights(collector: BaseCollector) -> None:
    """Make another policy of it, in place."""
    parameters = list(getattr(collector.policy, "parameters", list)())
    needs(parameters, "a policy with weights")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:
            parameter.normal_(std=3.0, generator=generator)
    collector.update_policy_weights_()


def _policy_update(make: Make) -> None:
    batches = _batches(make)[:2]
    collector = _new(make)
    assert_same(collector.next(), batches[0], "a batch with the same seed")
    _move_weights(collector)
    assert not torch.equal(collector.next()["action"], batches[1]["action"]), (
        "new weights of the policy must show in the next batch's actions"
    )


def _random_frames(make: Make) -> None:
    def actions(moved: bool) -> Iterator[Tensor]:
        frames = _new(make).requested_frames_per_batch
        collector = _new(make, init_random_frames=2 * frames)
        if moved:
            _move_weights(collector)
        seed(0)
        return (collector.next()["action"].clone() for _ in range(3))

    same = [torch.equal(a, b) for a, b in zip([*actions(False)], actions(True), strict=True)]
    assert same[:2] == [True, True], "the policy must not act in the first init_random_frames"
    assert not same[2], "the policy must act after init_random_frames"


def _replay_buffer(make: Make) -> None:
    frames = _new(make).requested_frames_per_batch
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10 * frames), batch_size=2)
    collector = _new(make, replay_buffer=buffer, total_frames=3 * frames)
    given = list(collector)
    assert given == [None] * 3, "with a replay buffer, an iteration must give None"
    stored = buffer[:].numel()
    assert stored == 3 * frames, f"{3 * frames} frames must be in the replay buffer, not {stored}"


def _state_dict(make: Make) -> None:
    collector = _new(make)
    for _ in range(2):
        collector.next()
    state = deepcopy(collector.state_dict())
    other = _new(make)
    other.load_state_dict(state)
    going_on = []
    for each in (collector, other):
        seed(1)
        going_on.append([each.next().clone() for _ in range(2)])
    for expected, found in zip(*going_on, strict=True):
        assert_same(found, expected, "a batch of a collector that loaded the state of another")


_CHECKS = {
    "frames": _frames,
    "iteration": _iteration,
    "entries": _entries,
    "actions": _actions,
    "alignment": _alignment,
    "flags": _flags,
    "trajectories": _trajectories,
    "seeds": _seeds,
    "policy_update": _policy_update,
    "random_frames": _random_frames,
    "replay_buffer": _replay_buffer,
    "state_dict": _state_dict,
}
COLLECTOR_CHECKS = tuple(_CHECKS)
