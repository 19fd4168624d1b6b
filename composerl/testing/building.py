"""A small loss and a batch for it: given, or made where a constructor takes the usual networks."""

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from tensordict import TensorDict, unravel_key
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhNormal
from torchrl.objectives import LossModule

__all__ = ["ACTIONS", "Example", "actor", "arguments_of", "build", "loss_examples", "network"]

#: A loss, a batch, and options of ``check_loss`` if there are any.
Example = tuple[LossModule, TensorDict] | tuple[LossModule, TensorDict, dict[str, Any]]

ROWS, OBSERVATIONS, ACTIONS, CHOICES = 8, 3, 2, 3


def loss_examples(module: str) -> dict[str, Callable[[], Example]]:
    """By name what makes the examples of a module's losses.

    They are those in its dictionary ``examples``: names (``MyLoss``, or ``MyLoss-variant``) and
    functions that return ``(loss, batch)`` or ``(loss, batch, options of check_loss)``. Losses that
    it offers besides are made by :func:`build`; a name with None in place of a function leaves one
    out, for example a base class.
    """
    found = import_module(module)
    given = dict(getattr(found, "examples", {}))
    named = {name.partition("-")[0] for name in given}
    made = {
        name: partial(_made, thing, module)
        for name in getattr(found, "__all__", vars(found))
        if name not in named and not name.startswith("_")
        and _is_loss(thing := getattr(found, name), module)
    }  # fmt: skip
    return {name: make for name, make in (given | made).items() if make is not None}


def _made(cls: type[LossModule], module: str) -> Example:
    try:
        return build(cls)
    except Exception as error:
        raise AssertionError(
            f"{cls.__name__} cannot be made by its signature ({error}): give {module} a dictionary "
            f"examples = {{{cls.__name__!r}: function}}, where the function returns (loss, batch), "
            "or None in its place to leave the class out"
        ) from error


def _is_loss(thing: object, module: str) -> bool:
    if not isinstance(thing, type) or not issubclass(thing, LossModule) or thing is LossModule:
        return False
    # Not what the module imports from elsewhere.
    return thing.__module__.partition(".")[0] == module.partition(".")[0]


def build(cls: type[LossModule], **given: Any) -> tuple[LossModule, TensorDict, dict[str, Any]]:
    """A loss of that class, a batch that it can be called on, and options of ``check_loss``.

    ``given`` are arguments of its constructor. Networks that it needs besides are made, if they
    have TorchRL's names: ``actor_network``, ``qvalue_network``, ``value_network``,
    ``critic_network``, ``discriminator_network``. Raises a ValueError that says what it needs.
    """
    arguments = arguments_of(cls)
    needed = {name for name, default in arguments.items() if default is inspect.Parameter.empty}
    makers = _networks(cls, arguments)
    if "value_network" not in needed:
        del makers["value_network"]  # SAC of 2019 does without the one of 2018
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = {name: make() for name, make in makers.items() if name in arguments} | given
        if missing := sorted(needed - made.keys()):
            raise ValueError(f"it needs {', '.join(missing)}")
        if not made:
            raise ValueError(f"it takes none of {', '.join(makers)}")
        if "action_spec" in arguments and "actor_network" in made:
            made.setdefault("action_spec", made["actor_network"].spec["action"])
        loss = cls(**made)
        discrete = isinstance(made.get("value_network"), QValueActor)
        return loss, _batch(loss, discrete), {"num_actions": CHOICES} if discrete else {}


def arguments_of(cls: type) -> dict[str, Any]:
    """The arguments of a constructor, and of the one it passes ``**options`` on to, by default."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            named = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            for p in named:
                if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                    found.setdefault(p.name, p.default)
            if not any(p.kind == p.VAR_KEYWORD for p in named):
                break
    return found


def network(module: nn.Module, out_key: str) -> TensorDictModule:
    """A module of observation and action, as a critic or a discriminator."""
    return TensorDictModule(module, ["observation", "action"], [out_key])


def actor(
    distribution: type[torch.distributions.Distribution] = TanhNormal,
    bounds: tuple[float, ...] = (2.0, 1.0),
    **options: Any,
) -> ProbabilisticActor:
    """An actor of continuous actions between -bounds and bounds."""
    high = torch.tensor(bounds)
    head = nn.Sequential(MLP(OBSERVATIONS, 2 * ACTIONS, 1, 8), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(head, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=Bounded(-high, high),
        distribution_class=distribution,
        distribution_kwargs={"low": -high, "high": high, **options},
    )


def _networks(cls: type[LossModule], arguments: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    keys = getattr(cls, "default_keys", cls._AcceptedKeys)()

    def of_pairs(name: str) -> TensorDictModule:
        return network(MLP(OBSERVATIONS + ACTIONS, 1, 1, 8), getattr(keys, name, name))

    def of_states() -> TensorDictModule:
        out_key = getattr(keys, "value", "state_value")
        return TensorDictModule(MLP(OBSERVATIONS, 1, 1, 8), ["observation"], [out_key])

    def values() -> TensorDictModule:
        """Of states; of choices or of actions for losses whose keys say so."""
        if hasattr(keys, "action_value"):
            mlp = MLP(OBSERVATIONS, CHOICES, 1, 8)
            return QValueActor(mlp, in_keys=["observation"], spec=Categorical(CHOICES))
        of_actions = hasattr(keys, "state_action_value") and not hasattr(keys, "value")
        return of_pairs("state_action_value") if of_actions else of_states()

    number = arguments.get("num_qvalue_nets", 2)
    return {
        "actor_network": actor,
        "qvalue_network": lambda: [of_pairs("state_action_value") for _ in range(number)],
        "value_network": values,
        "critic_network": of_states,
        "discriminator_network": lambda: of_pairs("discriminator_pred"),
    }


def _batch(loss: LossModule, discrete: bool) -> TensorDict:
    """Transitions, some of which end an episode; and what the loss reads besides."""
    terminated = torch.arange(ROWS).remainder(3).eq(2).unsqueeze(1)
    truncated = torch.arange(ROWS).remainder(5).eq(4).unsqueeze(1)
    ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
    batch = TensorDict({"next": {"reward": torch.randn(ROWS, 1), **ends}}, [ROWS])
    usual = ["observation", ("next", "observation"), "action"]
    for key in map(unravel_key, [*usual, *sorted(loss.in_keys, key=str)]):
        if batch.get(key, None) is None and key != "priority_weight":
            batch.set(key, _column(key if isinstance(key, str) else key[-1], discrete))
    return batch


def _column(name: str, discrete: bool) -> Tensor:
    """What an entry of that name may hold."""
    if "observation" in name:
        return torch.randn(ROWS, OBSERVATIONS)
    if "log_prob" in name:
        return -torch.rand(ROWS)
    if "action" in name:
        return torch.randint(CHOICES, (ROWS,)) if discrete else torch.randn(ROWS, ACTIONS).tanh()
    return torch.randn(ROWS, 1)
