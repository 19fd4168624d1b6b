"""Recipes with a stock block of TorchRL's in the place of ours, one at a time.

The recipe's text is edited as its user would, and trained, interrupted and resumed. How exact
that is depends on what the stock block can save:

- ``LazyTensorStorage``: exact. It holds the same rows and is sampled by the same draws, so that
  the resumed run ends with the weights that the recipe has with our storages; its checkpoints
  hold the capacity and not only the content. MBPO's imagined rows alone lie elsewhere in a ring
  than in a ``LatestStorage`` once the oldest are dropped: there, it equals itself uninterrupted.
- ``RandomSampler``: exact.
- ``MultiStepTransform``: the buffer's content is restored. The steps that the transform holds
  back until n more have come are in no ``state_dict``, and lost.
- ``Collector``: policy and counters are restored, and with them where random actions end. The
  environments start new episodes, by their seed's first ones; what was under way is cut.
"""

from __future__ import annotations

import math
import re
import signal
from importlib.util import find_spec

import pytest
import torch
from recipes.harness import GAMES, RECIPES, metrics, small_config, weights
from tensordict.nn import TensorDictModule, TensorDictSequential
from tensordict.nn.distributions import NormalParamExtractor
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.envs import ObservationNorm, RewardScaling, RewardSum, StepCounter
from torchrl.modules import (
    MLP,
    EGreedyModule,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import DQNLoss, SACLoss

from composerl import Run, Update, losses
from composerl.catalog import load_recipe
from composerl.data import NStep, PackedStorage, PrioritizedSampler, VectorCollector
from composerl.envs import make_env

PATHS = {path.stem: path for path in RECIPES}
#: Recipes that are dreamer_catch with other defaults.
DEFAULTS = ["dreamer_breakout", "dreamer_crafter", "dreamer_pendulum"]
SIZES = {"steps": 40, "save_every": 10, "eval_every": 40}

#: What is replaced by what, in any of the recipes where it occurs.
STORAGE = [
    (r"from torchrl.data import ", "from torchrl.data import LazyTensorStorage, "),
    (r"data\.PackedStorage\(", "LazyTensorStorage("),
    (r"data\.LatestStorage\(cfg.keep, ", "LazyTensorStorage(cfg.keep * cfg.rollouts, "),
    (
        r"\n    (demos|offline) = (.*)\n",
        r"\n    rows = \2[:]"
        r"\n    \1 = TensorDictReplayBuffer(storage=LazyTensorStorage(len(rows)))"
        r"\n    \1.extend(rows)\n",
    ),
]
UNIFORM = [(r"sampler=prioritized if .*,", "sampler=RandomSampler(),")]
N_STEP = [
    (r"from torchrl.envs import ", "from torchrl.envs import MultiStepTransform, "),
    (r"sample_unit=data.NStep\((.*), cfg.num_envs\)", r"transform=MultiStepTransform(\1)"),
]
#: The same for several environments: it needs their batches before they become rows.
N_STEP_OF_SEVERAL = [
    N_STEP[0],
    (r" *sample_unit=.*\n", ""),
    (r"( *)(collector = )", r"\1n_step = MultiStepTransform(cfg.n_step, cfg.gamma)\n\1\2"),
    (
        r"( *)buffer\.extend\(collector\.next\(\).*",
        r"\1rows = n_step.inv(collector.next())"
        r"\n\1if rows is not None:"
        r"\n\1    buffer.extend(rows.reshape(-1))",
    ),
]
COLLECTOR = [
    (r"\n\n    from composerl import Run", r"\n    from torchrl.collectors import Collector\g<0>"),
    (r"(make_env\(.*)\*\*cfg.env_kwargs", r"\1seed=cfg.seed, **cfg.env_kwargs"),
    (r",\s*workers=cfg.workers(,\s*collect=cfg.collect)?", ""),
    (
        r"(?s)data\.VectorCollector\((.*?)\bseed=cfg.seed",
        r"Collector(\1total_frames=-1, auto_register_policy_transforms=False",
    ),
    (
        r"(?s)data\.RecordCollector\(\s*env,(.*?)\bseed=cfg.seed",
        r"Collector(\n        data.RecordEnv(env, cfg.seed),\1total_frames=-1,"
        "\n        frames_per_batch=cfg.num_envs, postproc=data.to_records,"
        "\n        auto_register_policy_transforms=True",
    ),
    (r" *latents=actor.*\n", ""),  # which to_records has anyway
    (r"collector\.metrics\(\) \| ", ""),
    (r" *run\.log\(collector\.metrics\(\)\)\n", ""),
]


def _param(name):
    needed = {"dreamer_breakout": "ale_py", "dreamer_crafter": "crafter"}.get(name, "torch")
    absent = find_spec(needed) is None
    return pytest.param(name, marks=pytest.mark.skipif(absent, reason=f"needs {needed}"))


def having(*parts):
    """The recipes in whose text one of these is; one that is all defaults goes with its sibling."""
    found = [name for name in PATHS if any(part in PATHS[name].read_text() for part in parts)]
    if "dreamer_catch" in found:
        found += DEFAULTS
    return pytest.mark.parametrize("name", [_param(name) for name in found])


def edited(name, changes, directory):
    """A copy of a recipe with some of its text replaced, imported."""
    text = PATHS[name].read_text()
    if name in DEFAULTS:  # all else is in another file
        edited("dreamer_catch", changes, directory)
        text = text.replace('"dreamer_catch"', repr(str(directory / "dreamer_catch.py")))
    for old, new in changes:
        text = re.sub(old, new, text)
    path = directory / f"{name}.py"
    path.write_text(text)
    return load_recipe(path)


class Trained:
    """Runs of a recipe; ``blocks`` are those that the latest of them tracked."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.blocks = {}
        track = Run.track

        def note(run, **objects):
            self.blocks = objects
            track(run, **objects)

        monkeypatch.setattr(Run, "track", note)

    def __call__(self, recipe, out, **changes):
        name = recipe.__name__.removeprefix("_recipe_")
        if hasattr(recipe.Config, "online_steps"):  # episodes that end, and checkpoints in others
            changes = {"online_steps": 30, "env_kwargs": {"max_episode_steps": 7}} | changes
            changes["steps"] = 10
        elif hasattr(recipe.Config, "fit_every"):  # more rounds than are kept
            changes["fit_every"] = 10
        if name in GAMES:
            changes["env_kwargs"] = GAMES[name] | {"limit": 12}
        recipe.main(small_config(recipe, out, **SIZES | changes))
        return self.blocks

    def interrupted(self, recipe, out, **changes):
        """Ctrl-C at step 26, or the first turn of the loop after it."""
        evaluate = Run.evaluate

        def interrupt(run, actor):
            if run.step >= 26:
                signal.raise_signal(signal.SIGINT)
            return evaluate(run, actor)

        with self.monkeypatch.context() as patch:
            patch.setattr(Run, "evaluate", interrupt)
            with pytest.raises(KeyboardInterrupt):
                self(recipe, out, **changes)
        return self.blocks


@pytest.fixture
def train(monkeypatch):
    return Trained(monkeypatch)


def buffers(blocks):
    """The replay buffers among the blocks."""
    found = [blocks[name] for name in ("buffer", "demos") if name in blocks]
    parts = [[getattr(b, "offline_buffer", b), getattr(b, "online_buffer", b)] for b in found]
    return list({id(buffer): buffer for pair in parts for buffer in pair}.values())


def check_metrics(run):
    rows = metrics(run)
    assert [row["step"] for row in rows] == [0, 10, 20, 30, 40]
    losses = [row[key] for row in rows for key in row if "/loss_" in key]
    assert len(losses) >= 4
    assert all(math.isfinite(loss) for loss in losses)


@having("data.PackedStorage", "data.DatasetStorage")
def test_storage(name, train, tmp_path):
    stock = edited(name, STORAGE, tmp_path)
    whole = train(stock if name == "mbpo_pendulum" else load_recipe(name), tmp_path / "whole")
    train.interrupted(stock, tmp_path / "run")
    resumed = train(stock, tmp_path / "run", resume=True)
    assert [type(b.storage) for b in buffers(resumed)] == [LazyTensorStorage] * len(buffers(whole))
    check_metrics(tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    for ours, theirs in zip(buffers(whole), buffers(resumed), strict=True):
        assert len(ours) == len(theirs) > 0
        for key in ours[:].keys(True, True):
            assert torch.equal(ours[:][key], theirs[:][key]), key


@pytest.mark.parametrize("name", ["iqn_cartpole", "fqf_cartpole"])
def test_sampler(name, train, tmp_path):
    stock = edited(name, UNIFORM, tmp_path)
    train(load_recipe(name), tmp_path / "whole", prioritized=False)
    train.interrupted(stock, tmp_path / "run")
    resumed = train(stock, tmp_path / "run", resume=True)
    assert type(resumed["buffer"].sampler) is RandomSampler
    check_metrics(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def check_kept(old, new):
    """The rows of a buffer before the interruption are those that it has after it, and more."""
    old, new = old[:], new[:]
    assert 0 < len(old) <= len(new)
    for key in ["observation", "action", "reward" if "reward" in old else ("next", "reward")]:
        assert torch.equal(old[key], new[: len(old)][key]), key


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("name", ["iqn_cartpole", "fqf_cartpole"])
def test_n_step(name, num_envs, train, tmp_path):
    stock = edited(name, N_STEP if num_envs == 1 else N_STEP_OF_SEVERAL, tmp_path)
    options = {"num_envs": num_envs, "n_step": 3, "warmup": 8}
    before = train.interrupted(stock, tmp_path / "run", **options)
    resumed = train(stock, tmp_path / "run", resume=True, **options)
    assert resumed["buffer"][:]["steps_to_next_obs"].max() == 3
    check_metrics(tmp_path / "run")
    check_kept(before["buffer"], resumed["buffer"])


@having("data.VectorCollector", "data.RecordCollector")
def test_collector(name, train, tmp_path):
    stock = edited(name, COLLECTOR, tmp_path)
    before = train.interrupted(stock, tmp_path / "run")
    resumed = train(stock, tmp_path / "run", resume=True)
    collector = resumed["collector"]
    assert type(collector) is Collector
    online = hasattr(stock.Config, "online_steps")
    assert collector.state_dict()["frames"] == (30 if online else 40)
    check_metrics(tmp_path / "run")
    number = 1 if "fit" in before else None  # MBPO's second buffer is of the latest rounds
    for old, new in zip(buffers(before)[:number], buffers(resumed)[:number], strict=True):
        check_kept(old, new)


# ---- stock policies, environments and losses with our blocks -------------------------------------


def replay(num_envs):
    """Our storage and sampler, filled by our collector."""
    return TensorDictReplayBuffer(
        storage=PackedStorage(1000),
        sampler=PrioritizedSampler(1000, 0.6, 0.4),
        sample_unit=NStep(2, 0.5, num_envs),
        batch_size=64,
    )


def losses_of(update, buffer, collector, key, rounds=4):
    """The loss over some updates, with new rows between them."""
    found = []
    for _ in range(rounds):
        for row in collector.next().unbind(-1):  # the environments take turns
            buffer.extend(row.reshape(-1))
        for _ in range(40):
            batch = buffer.sample()
            found.append(update(batch)[key].item())
            buffer.update_tensordict_priority(batch)
    assert all(math.isfinite(loss) for loss in found)
    return found


@pytest.mark.parametrize("kind", [losses.DiscreteCQLLoss, DQNLoss])
def test_a_stock_policy_and_our_or_its_own_loss_of_discrete_actions(kind):
    """TorchRL's DQNLoss names what it minimises ``loss``, the others ``loss_...``."""
    torch.manual_seed(0)
    env = make_env("CartPole-v1", 2, transforms=[StepCounter(), RewardSum()])
    spec = env.action_spec_unbatched
    values = QValueActor(MLP(4, 2, num_cells=[32]), in_keys=["observation"], spec=spec)
    policy = TensorDictSequential(values, EGreedyModule(spec, eps_init=0.5, eps_end=0.5))
    options = {"action_space": "categorical", "delay_value": True} if kind is DQNLoss else {}
    loss = kind(values, **options)
    loss.make_value_estimator(gamma=0.5)
    collector = VectorCollector(env, policy, frames_per_batch=100, seed=0)
    key = "loss" if kind is DQNLoss else "loss_qvalue"
    found = losses_of(Update(loss, lr=3e-3, tau=0.05), replay(2), collector, key)
    assert sum(found[-20:]) < 0.5 * sum(found[:20])


@pytest.mark.parametrize("kind", [losses.SACLoss, SACLoss])
def test_a_stock_policy_and_our_or_its_own_loss_of_continuous_actions(kind):
    torch.manual_seed(0)
    norm = ObservationNorm(0.0, 0.5, in_keys=["observation"])
    env = make_env("Pendulum-v1", 2, transforms=[norm, RewardScaling(0.0, 0.1), StepCounter()])
    spec = env.action_spec_unbatched
    net = TensorDictModule(
        torch.nn.Sequential(MLP(3, 2, num_cells=[32]), NormalParamExtractor()),
        in_keys=["observation"], out_keys=["loc", "scale"],
    )  # fmt: skip
    bounds = {"low": spec.space.low, "high": spec.space.high}
    policy = ProbabilisticActor(
        net, in_keys=["loc", "scale"], spec=spec, distribution_class=TanhNormal,
        distribution_kwargs=bounds, return_log_prob=True,
    )  # fmt: skip
    critics = [
        ValueOperator(MLP(4, 1, num_cells=[32]), in_keys=["observation", "action"]) for _ in "ab"
    ]
    loss = kind(policy, critics)
    loss.make_value_estimator(gamma=0.5)
    collector = VectorCollector(env, policy, frames_per_batch=100, seed=0)
    found = losses_of(Update(loss, lr=3e-3, tau=0.05), replay(2), collector, "loss_qvalue")
    assert sum(found[-20:]) < 0.5 * sum(found[:20])
