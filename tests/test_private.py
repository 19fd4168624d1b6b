"""Private names of other libraries: each is tried, and all that are used are listed.

A canary that fails after an upgrade ends with what to do about it, from ``private_names.py``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
import wandb
from private_names import PRIVATE
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import prioritized as prioritized_module
from torchrl.envs import Compose, RewardScaling, Transform
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

import composerl
from composerl._private import unchecked_tensordict
from composerl.data import RecordEnv
from composerl.envs import make_env

# ---- canaries ------------------------------------------------------------------------------------


def foreach():
    a, b = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    torch._foreach_add_(a, torch.tensor(2.0))
    torch._foreach_mul_(a, torch.tensor(3.0))
    torch._foreach_lerp_(a, b, 0.5)
    assert torch.cat(a).tolist() == [3.5] * 5
    torch._foreach_addcmul_(a, a, b, 2.0)
    assert torch.cat(a).tolist() == [10.5] * 5
    roots = torch._foreach_div(a, torch._foreach_sqrt(a))
    assert torch.allclose(torch.cat(roots), torch.tensor(10.5**0.5))
    halves = torch._foreach_mul(a, [torch.tensor(0.5), torch.tensor(0.25)])
    norms = torch.stack(torch._foreach_norm(b))
    assert torch.allclose(norms, torch.tensor([2.0, 3.0]).sqrt())
    assert torch.cat(halves).tolist() == [5.25] * 2 + [2.625] * 3


def fused_adam():
    p, grad, m, v, step = (torch.full((2,), x) for x in (1.0, 0.5, 0.0, 0.0, 1.0))
    torch._fused_adam_(
        [p], [grad], [m], [v], [], [step[0]], lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.0,
        eps=0.0, amsgrad=False, maximize=False,
    )  # fmt: skip
    assert torch.allclose(p, torch.tensor(0.9))  # the first step is lr, whatever the gradient
    assert torch.allclose(m, torch.tensor(0.05))


def crafter_game():
    crafter = pytest.importorskip("crafter")
    env, seen = crafter.Env(seed=5), []
    env._balance_chunk = lambda chunk, things: seen.append(list(things))
    first = env.reset()
    env._seed, env._episode = 5, 0
    assert (env.reset() == first).all()
    for _ in range(10):
        env.step(0)
    assert {id(x) for things in seen for x in things} <= {id(x) for x in env._world.objects}
    assert sum(map(len, seen)) > 1


def views_know_their_base():
    whole = torch.zeros(2)
    with torch.no_grad():
        first, second = whole.unbind()
    whole.add_(1.0)
    assert first._base is second._base is whole
    assert torch.zeros(())._base is None
    assert first.item() == 1.0


def categorical_knows_whether_it_checks():
    logits = torch.zeros(2)
    assert not torch.distributions.Categorical(logits=logits, validate_args=False)._validate_args
    assert torch.distributions.Categorical(logits=logits, validate_args=True)._validate_args


def categorical_is_made_of_these():
    dist = torch.distributions.Categorical(logits=torch.zeros(2, 3))
    assert dist._num_events == 3
    assert torch.equal(dist._param, dist.logits)


def dynamo():
    import torch._dynamo

    assert isinstance(torch._dynamo.config.trace_autograd_ops, bool)


def inductor():
    from torch._inductor import config, cpu_vec_isa

    assert config.cpp.vec_isa_ok in (None, True)
    with config.patch({"cpp.vec_isa_ok": True}):
        assert all(cpu_vec_isa.valid_vec_isa_list())  # compiles nothing


def module():
    net = nn.Sequential(nn.Linear(2, 2))
    assert list(net._modules) == ["0"]
    assert list(net[0]._parameters) == ["weight", "bias"]
    net.register_buffer("limit", torch.ones(()))
    assert "limit" in net._buffers
    assert not net._forward_hooks
    assert not net._forward_pre_hooks
    net.register_forward_hook(lambda *args: None)
    net.register_forward_pre_hook(lambda *args: None)
    assert len(net._forward_hooks) == len(net._forward_pre_hooks) == 1


def new_unsafe():
    inner = unchecked_tensordict({"a": torch.zeros(3, 2)}, torch.Size([3]), names=["time"])
    made = unchecked_tensordict({"next": inner}, torch.Size([3]), names=["time"])
    assert made["next", "a"].shape == (3, 2)
    assert made.names == ["time"]
    assert torch.equal(made[1:]["next", "a"], torch.zeros(2, 2))


def metadata():
    state = TensorDict({"a": {"b": torch.zeros(3, 2)}}, [3]).state_dict()
    assert state._metadata[""]["batch_size"] == torch.Size([3])
    assert TensorDict().load_state_dict(state, strict=False).batch_size == torch.Size([3])


def tensordict_module():
    by_position = TensorDictModule(nn.Linear(2, 2), ["a"], ["b"])
    by_name = TensorDictModule(lambda x: x, {"x": "a"}, ["b"])
    assert by_position._kwargs is None
    assert by_name._kwargs == ["x"]


def dqn(**options):
    value = QValueActor(nn.Linear(2, 2), in_keys=["observation"], action_space="categorical")
    return DQNLoss(value, action_space="categorical", **options)


def loss():
    made = dqn()
    assert made._AcceptedKeys().reward == "reward"
    assert made.in_keys == made._in_keys
    made.set_keys(reward="gain")
    assert ("next", "gain") in made._in_keys  # by _set_in_keys
    assert ("collector", "mask") in made._loss_mask_keys()
    masked = TensorDict({("collector", "mask"): torch.tensor([True, True, False])}, [3])
    rows, weights = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([2.0, 1.0, 1.0])
    assert made._reduce_loss(rows, tensordict=masked) == 1.5
    assert made._reduce_loss(rows, tensordict=masked, weights=weights) == pytest.approx(4 / 3)
    made.make_value_estimator()
    made._forward_value_estimator_keys()
    assert made._value_estimator.tensor_keys.reward == "gain"


def target_updates():
    made = dqn(delay_value=True)
    assert made._has_update_associated == {"value_network": False}
    made._has_update_associated["value_network"] = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = made.target_value_network_params


def environment():
    env = RecordEnv(make_env("CartPole-v1", 2), seed=0)
    env.set_seed(3)
    assert env._seed == 3
    assert env.rollout(3)["next", "is_init"][:, 0].all()


def gym_wrapper():
    assert len(make_env("CartPole-v1", 2)._env.envs) == 2


class Doubled(Transform):
    def _inv_call(self, tensordict):
        return tensordict.set("a", 2 * tensordict["a"])


def transform():
    buffer = ReplayBuffer(storage=LazyTensorStorage(3), transform=Compose(Doubled()))
    buffer.extend(TensorDict({"a": torch.ones(3)}, [3]))
    assert buffer[:]["a"].tolist() == [2.0] * 3
    assert RewardScaling(1.0, 2.0)._apply_transform(torch.tensor(3.0)) == 7.0


def collector():
    env = make_env("CartPole-v1", 2)
    policy = TensorDictSequential(
        TensorDictModule(nn.Linear(4, 2), ["observation"], ["value"]),
        TensorDictModule(lambda value: value.argmax(-1), ["value"], ["action"]),
    )
    made = Collector(
        env, policy, frames_per_batch=2, total_frames=-1, init_random_frames=2,
        auto_register_policy_transforms=False,
    )  # fmt: skip
    assert made._carrier["observation"].shape == (2, 4)
    assert made._carrier["collector", "traj_ids"].tolist() == [0, 1]
    assert "action" in made._wrapped_policy(made._carrier.copy())
    assert made._should_use_random_frames()
    assert isinstance(made._use_buffers, bool)
    assert made._exclude_private_keys is True
    assert made._iterator is None
    made.next()
    assert next(made._iterator).shape == (2, 1)
    assert made._frames == 4
    assert not made._should_use_random_frames()
    assert made._traj_pool.get_traj_and_increment(2).tolist() == [2, 3]


class Noted(LazyTensorStorage):
    """Notes which of its methods are called."""

    def __init__(self, size):
        self.called = []
        super().__init__(size)

    def _init(self, data):
        self.called.append("_init")
        super()._init(data)

    def _empty(self):
        self.called.append("_empty")
        super()._empty()

    def _rand_given_ndim(self, batch_size):
        self.called.append("_rand_given_ndim")
        return super()._rand_given_ndim(batch_size)


def storage():
    made = Noted(3)
    buffer = TensorDictReplayBuffer(storage=made, batch_size=2)
    buffer.extend(TensorDict({"a": torch.arange(2.0)}, [2]))
    assert (made._len, made._last_cursor_index) == (2, 1)
    assert made._storage["a"].shape == (3,)
    made._set_last_cursor(0)
    assert made._last_cursor_index == 0
    revision = int(made._mutation_revision)
    made._bump_mutation_revision()
    assert int(made._mutation_revision) == revision + 1
    generator = torch.Generator()
    buffer.set_rng(generator)
    assert made._rng is generator
    assert buffer.sampler._rng is generator
    buffer.sample()
    buffer.empty()
    assert made.called == ["_init", "_rand_given_ndim", "_empty"]


class Trees(PrioritizedSampler):
    """With leaves alone."""

    def _init(self):
        self._sum_tree, self._min_tree, self._max_priority = torch.zeros(4), torch.ones(4), None


def prioritized():
    assert hasattr(prioritized_module, "SumSegmentTreeFp32")  # None if it does not load
    made = Trees(4, 0.5, 0.4)
    assert (made._alpha, made._beta, made._eps, made.max_size) == (0.5, 0.4, 1e-8, 4)
    assert (made._rng, made._max_priority_within_buffer) == (None, False)
    made.update_priority(torch.tensor(2), torch.tensor(9.0))
    assert made._sum_tree[2] == made._min_tree[2] == pytest.approx(3.0)
    largest, row = made._max_priority
    assert (float(largest), int(row)) == (9.0, 2)


def wandb_run():
    assert "wandb.sdk.launch" in inspect.getsource(wandb.Run._detect_and_apply_job_inputs)
    assert "_detect_and_apply_job_inputs()" in inspect.getsource(wandb.Run._on_ready)


CANARIES = [
    foreach, fused_adam, crafter_game, views_know_their_base, categorical_knows_whether_it_checks,
    categorical_is_made_of_these, dynamo,
    inductor, module, new_unsafe, metadata, tensordict_module, loss,
    target_updates, environment, gym_wrapper, transform, collector, storage, prioritized,
    wandb_run,
]  # fmt: skip


@pytest.mark.parametrize(
    ("private", "canary"),
    [pytest.param(*pair, id=pair[1].__name__) for pair in zip(PRIVATE, CANARIES, strict=True)],
)
def test_canary(private, canary):
    text = inspect.getsource(canary) + "".join(
        inspect.getsource(kind) for kind in (Doubled, Noted, Trees, unchecked_tensordict, RecordEnv)
    )
    assert all(name in text for name in private.names), "the canary does not try them all"
    try:
        canary()
    except Exception as error:
        raise AssertionError(
            f"{private.owner} has changed: {', '.join(private.names)} do not work as they did. "
            f"They are used in {', '.join(private.where)} for this: {private.purpose}. What to "
            f"do: {private.remedy}."
        ) from error


# ---- nothing else is used ------------------------------------------------------------------------

LIBRARIES = ("torch", "tensordict", "torchrl")
MODULES = [found.name for found in pkgutil.walk_packages(composerl.__path__, "composerl.")]
PUBLIC = {"_asdict", "_fields", "_replace"}  # of named tuples, as documented


@cache
def tree(name):
    return ast.parse(Path(importlib.import_module(name).__file__).read_text())


@cache
def defined(name):
    """What a module of ours names itself."""
    names = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if getattr(node.value, "id", None) in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@cache
def known(name):
    """What is ours in a module: its own names, those of modules it imports and of its bases."""
    imported = {n.module for n in ast.walk(tree(name)) if isinstance(n, ast.ImportFrom)}
    classes = [k for k in vars(importlib.import_module(name)).values() if inspect.isclass(k)]
    bases = {base.__module__ for kind in classes for base in kind.__mro__}
    return set().union(*(defined(m) for m in {name} | (imported | bases) & {*MODULES}))


@cache
def text_of(kind):
    """The files of a class's methods; its ``__module__`` may name another."""
    functions = [inspect.unwrap(f) for f in vars(kind).values() if inspect.isfunction(f)]
    files = {Path(f.__code__.co_filename) for f in functions}
    return "".join(path.read_text() for path in files if path.is_file())


def inherited(kind, node):
    """Names in a class of ours that a library's base class has too."""
    names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    names |= {n.name for n in node.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    names |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
    for base in kind.__mro__:
        if base.__module__.split(".")[0] in LIBRARIES:
            for name in names:
                asked = rf'self\.{name}\b|getattr\(self, "{name}"'
                if name in vars(base) or re.search(asked, text_of(base)):
                    yield name


def used(name):
    """Names in a module of ours that are a library's."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            yield from (*node.module.split("."), *(alias.name for alias in node.names))
        elif isinstance(node, ast.Attribute) and node.attr not in known(name):
            yield node.attr
    for node in tree(name).body:
        if isinstance(node, ast.ClassDef):
            yield from inherited(getattr(importlib.import_module(name), node.name), node)


def test_all_that_are_used_are_listed():
    listed = {(name, where) for entry in PRIVATE for name in entry.names for where in entry.where}
    found = set()
    for module_name in MODULES:
        short = module_name.removeprefix("composerl.")
        places = {short, *(short.rsplit(".", n)[0] for n in range(1, 3))}
        for name in {*used(module_name)} - PUBLIC:
            if re.fullmatch(r"_[A-Za-z]\w*", name):
                hits = {(name, place) for place in places} & listed
                assert hits, f"{short} uses {name}, which private_names.py does not list"
                found |= hits
    assert {name for name, _ in listed} == {name for name, _ in found}, "some are used no more"
