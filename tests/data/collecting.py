"""What the tests of collectors share: policies of TorchRL's, and batches compared."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.modules import EGreedyModule, ProbabilisticActor, QValueActor, TanhNormal

from composerl.data import VectorCollector


def gaussian(env: EnvBase, obs_dim: int = 3) -> ProbabilisticActor:
    """TorchRL's own policy for Pendulum."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(obs_dim, 2), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        spec=env.action_spec_unbatched,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2, "high": 2},
        return_log_prob=True,
    )


def epsilon_greedy(env: EnvBase, obs_dim: int = 4) -> TensorDictSequential:
    """TorchRL's own policy for CartPole."""
    torch.manual_seed(0)
    spec = env.action_spec_unbatched
    values = QValueActor(nn.Linear(obs_dim, 2), in_keys=["observation"], spec=spec)
    return TensorDictSequential(values, EGreedyModule(spec, eps_init=0.5, eps_end=0.5))


def collected(kind: type[Collector], env: EnvBase, policy: object, **options) -> Collector:
    """A collector of this kind, with the same draws for each kind."""
    torch.manual_seed(1)
    options = {"frames_per_batch": 60, "total_frames": 180} | options
    return kind(env, policy, auto_register_policy_transforms=False, **options)


def both_ways(make_env, make_policy, **options) -> tuple[VectorCollector, list, list]:
    """Our collector, its batches, and those of TorchRL's."""
    batches = []
    for kind in (Collector, VectorCollector):
        env = make_env()
        collector = collected(kind, env, make_policy(env), **options)
        # A copy, as some options make a collector write to the same batch again and again.
        batches.append([None if batch is None else batch.clone() for batch in collector])
    return collector, batches[1], batches[0]


def assert_same(ours: TensorDictBase, theirs: TensorDictBase) -> None:
    """The same entries, to the bit."""
    assert ours.batch_size == theirs.batch_size
    assert ours.device == theirs.device
    assert ours.names == theirs.names
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        assert ours[key].dtype == theirs[key].dtype, key
        assert torch.equal(ours[key], theirs[key]), key
