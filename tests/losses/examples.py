"""A small loss and a batch per loss of the package: what the conformance suite runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from composerl.envs.spaces import Spaces
from composerl.losses import (
    BCLoss,
    ClipPPOLoss,
    CQLLoss,
    DiscreteCQLLoss,
    DreamerLoss,
    DynamicsLoss,
    FQELoss,
    FQFLoss,
    GAILLoss,
    IQLLoss,
    IQNLoss,
    SACLoss,
    TD3BCLoss,
    WorldModelLoss,
    XQLLoss,
)
from composerl.modules import (
    MLP,
    categorical_actor,
    deterministic_actor,
    discriminator,
    dreamer_actor,
    dreamer_critic,
    ensemble,
    fqf_network,
    gaussian_actor,
    iqn_network,
    tanh_gaussian_actor,
    twin_q,
    value,
    world_model,
)

DISCRETE = Spaces(obs_shape=(3,), num_actions=3)
BOX = Spaces(obs_shape=(3,), low=(-2.0, -1.0), high=(2.0, 1.0))


def continuous_batch(rows: int = 8) -> TensorDict:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    terminated = torch.arange(rows).remainder(3).eq(2).unsqueeze(-1)
    truncated = torch.arange(rows).remainder(5).eq(4).unsqueeze(-1)
    return TensorDict(
        {
            "observation": draw(rows, 3),
            "action": draw(rows, 2).tanh(),
            "next": {
                "observation": draw(rows, 3),
                "reward": draw(rows, 1),
                "terminated": terminated,
                "truncated": truncated,
                "done": terminated | truncated,
            },
        },
        [rows],
    )


def iql() -> tuple[IQLLoss, TensorDict]:
    torch.manual_seed(0)
    loss = IQLLoss(gaussian_actor(BOX, (8,)), twin_q(BOX, (8,)), value(BOX, (8,)))
    return loss, continuous_batch()


def xql() -> tuple[XQLLoss, TensorDict]:
    torch.manual_seed(0)
    loss = XQLLoss(gaussian_actor(BOX, (8,)), twin_q(BOX, (8,)), value(BOX, (8,), layer_norm=True))
    return loss, continuous_batch()


def cql(**options: Any) -> tuple[CQLLoss, TensorDict]:
    torch.manual_seed(0)
    loss = CQLLoss(tanh_gaussian_actor(BOX, (8,)), twin_q(BOX, (8,)), num_random=3, **options)
    return loss, continuous_batch()


def sac(**options: Any) -> tuple[SACLoss, TensorDict]:
    torch.manual_seed(0)
    return SACLoss(tanh_gaussian_actor(BOX, (8,)), twin_q(BOX, (8,)), **options), continuous_batch()


def td3_bc(**options: Any) -> tuple[TD3BCLoss, TensorDict]:
    torch.manual_seed(0)
    networks = deterministic_actor(BOX, (8,)), twin_q(BOX, (8,))
    return TD3BCLoss(*networks, **options), continuous_batch()


def discrete_batch(rows: int = 8, actions: int = 3) -> TensorDict:
    batch = continuous_batch(rows)
    generator = torch.Generator().manual_seed(1)
    return batch.set("action", torch.randint(0, actions, (rows,), generator=generator))


def action_values(actions: int = 3) -> TensorDictModule:
    return TensorDictModule(MLP(3, actions, (8,)), ["observation"], ["action_value"])


def discrete_cql(**options: Any) -> tuple[DiscreteCQLLoss, TensorDict]:
    torch.manual_seed(0)
    return DiscreteCQLLoss(action_values(), **options), discrete_batch()


def dynamics(**options: Any) -> tuple[DynamicsLoss, TensorDict]:
    torch.manual_seed(0)
    model = ensemble(BOX, (8, 8), members=3, elites=2, terminates=True)
    return DynamicsLoss(model, **options), continuous_batch()


def iqn(**options: Any) -> tuple[IQNLoss, TensorDict]:
    torch.manual_seed(0)
    network = iqn_network(DISCRETE, (8, 8), embedding_dim=4).value_network
    sizes = {"num_quantiles": 5, "num_target_quantiles": 4, "num_acting_quantiles": 3}
    return IQNLoss(network, **{**sizes, **options}), discrete_batch()


def fqf(**options: Any) -> tuple[FQFLoss, TensorDict]:
    torch.manual_seed(0)
    actor = fqf_network(DISCRETE, (8, 8), embedding_dim=4, num_quantiles=5)
    return FQFLoss(actor.value_network, actor.fraction_network, **options), discrete_batch()


def fqe(**options: Any) -> tuple[FQELoss, TensorDict]:
    torch.manual_seed(0)
    options = {"num_qvalue_nets": 2} | options
    return FQELoss(gaussian_actor(BOX, (8,)), twin_q(BOX, (8,)), **options), continuous_batch()


def gail(actions: int | None = 3, **options: Any) -> tuple[GAILLoss, TensorDict]:
    """Policy and expert rows in pairs; ``actions=None`` makes them continuous."""
    torch.manual_seed(0)
    spaces = BOX if actions is None else Spaces(obs_shape=(3,), num_actions=actions)
    policy, expert = (continuous_batch(16) if actions is None else discrete_batch(16)).chunk(2)
    batch = policy.select("observation", "action").clone()
    batch["expert"] = expert.select("observation", "action").clone()
    return GAILLoss(discriminator(spaces, (8,)), num_actions=actions, **options), batch


def bc(actions: int | None = 3, make: Any = None) -> tuple[BCLoss, TensorDict]:
    """Cloning; ``actions=None`` makes them continuous, acted by what ``make`` makes."""
    torch.manual_seed(0)
    spaces = BOX if actions is None else Spaces(obs_shape=(3,), num_actions=actions)
    batch = continuous_batch() if actions is None else discrete_batch(actions=actions)
    return BCLoss((make or categorical_actor)(spaces, (8,))), batch.select("observation", "action")


def ppo(actions: int | None = 3, make: Any = None, **options: Any) -> tuple[Any, TensorDict]:
    """Annotated steps; ``actions=None`` makes them continuous, acted by what ``make`` makes."""
    torch.manual_seed(0)
    spaces = BOX if actions is None else Spaces(obs_shape=(3,), num_actions=actions)
    actor = (make or categorical_actor)(spaces, (8,))
    batch = continuous_batch() if actions is None else discrete_batch(actions=actions)
    rows = len(batch)
    batch = batch.select("observation", "action", "next")
    loss = ClipPPOLoss(actor, value(spaces, (8,)), **options)
    loss.annotate(batch)
    batch["action_log_prob"] += torch.linspace(-0.5, 0.5, rows)
    batch["advantage"] = torch.linspace(-1, 2, rows).unsqueeze(-1)
    batch["value_target"] = torch.linspace(3, -1, rows).unsqueeze(-1)
    batch["state_value"] = torch.linspace(1, -1, rows).unsqueeze(-1)
    return loss, batch


IMAGES = Spaces(obs_shape=(1, 16, 16), obs_dtype="uint8", num_actions=3)
TINY = {"deter": 6, "hidden": 5, "latents": 3, "classes": 4, "units": 8, "layers": 1, "depth": 2,
        "blocks": 2, "pooled": False}  # fmt: skip
#: Without context records every row counts; without free nats every loss has a gradient.
EVERY = {"context": 0, "free_nats": 0.0}


def record_batch(rows: int = 4, time: int = 5) -> TensorDict:
    """Sequences of records with episodes that start, terminate and are cut inside."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.arange(rows * time).reshape(rows, time)
    first = steps.remainder(7).eq(3)
    pixels = torch.randint(0, 256, (rows, time, 1, 16, 16), generator=generator)
    return TensorDict(
        {
            "observation": pixels.to(torch.uint8),
            "action": torch.randint(0, 3, (rows, time), generator=generator).masked_fill(first, 0),
            "reward": torch.randn(rows, time, generator=generator).masked_fill(first, 0.0),
            "first": first,
            "terminal": steps.remainder(14).eq(2),
        },
        [rows, time],
    )


def world(**options: Any) -> tuple[WorldModelLoss, TensorDict]:
    torch.manual_seed(0)
    return WorldModelLoss(world_model(IMAGES, TINY), **{**EVERY, **options}), record_batch()


def dreamer(**options: Any) -> tuple[DreamerLoss, TensorDict]:
    torch.manual_seed(0)
    actor = dreamer_actor(IMAGES, TINY)
    networks = actor.world_network, actor.actor_network, dreamer_critic(IMAGES, TINY)
    loss = DreamerLoss(*networks, horizon=4, **{**EVERY, **options})
    with torch.no_grad():
        # The zeros that these heads start from would hide mistakes; bins of 1e8 everything else.
        for head in (loss.value_network, loss.world_network.reward_head):
            head.last.weight.normal_(std=0.3)
            head.last.bias.copy_(-torch.arange(-127, 128).abs())
        loss.world_network.decoder.layers[-1].weight.normal_(std=0.1)
        # An average that differs from the critic, a scale that differs from 1.
        for target, p in zip(
            loss.target_value_network.parameters(), loss.value_network.parameters(), strict=True
        ):
            target.copy_(p + 0.1 * torch.randn_like(p))
        loss.return_range.fill_(1.7)
    return loss.eval(), record_batch()  # in training mode each call moves the returns' scale


#: Loss class -> function that makes (loss, batch), and options of check_loss.
EXAMPLES: dict[str, tuple[Callable[[], tuple[Any, TensorDict]], dict[str, Any]]] = {
    "BCLoss": (bc, {"num_actions": 3}),
    "CQLLoss": (cql, {}),
    "ClipPPOLoss": (ppo, {"num_actions": 3}),
    "DiscreteCQLLoss": (discrete_cql, {"num_actions": 3}),
    "DreamerLoss": (dreamer, {"num_actions": 3}),
    "DynamicsLoss": (dynamics, {}),
    "FQELoss": (fqe, {}),
    "FQFLoss": (fqf, {"num_actions": 3}),
    "GAILLoss": (gail, {"num_actions": 3}),
    "IQLLoss": (iql, {}),
    "IQNLoss": (iqn, {"num_actions": 3}),
    "SACLoss": (sac, {}),
    "TD3BCLoss": (td3_bc, {}),
    "WorldModelLoss": (world, {"num_actions": 3}),
    "XQLLoss": (xql, {}),
}
