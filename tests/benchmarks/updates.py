"""One update of each algorithm: by hand, TorchRL's and ours, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch.optim import RMSprop
from torchrl.objectives import LossModule

from composerl import Update, losses, modules
from composerl.optim import FusedAdam

from . import stock
from .batches import BOX, DISCRETE, continuous, discrete, minibatch, of_members, pairs
from .hand import Hand
from .hand_continuous import hand_cql, hand_iql, hand_sac, hand_td3bc, hand_xql
from .hand_discrete import QUANTILES, hand_fqf, hand_gail, hand_iqn, hand_ppo
from .hand_models import hand_dynamics
from .limit import IQLLimit
from .products import products_of
from .timing import Benchmark, Case, Step


@dataclass(frozen=True)
class Kind:
    """An update in all ways.

    Attributes:
        loss: ours, of networks of a width.
        batch: of a number of rows.
        hand: the same by hand, from our weights.
        rows: by default.
        widths: that are measured, the recipe's own first.
        stock: TorchRL's step of a width on a batch.
        options: of our Update, made for a loss.
        limit: the best that is known, from our weights.
    """

    loss: Callable[[int], LossModule]
    batch: Callable[[int], TensorDict]
    hand: Callable[[LossModule, TensorDict, int], Hand]
    rows: int = 256
    widths: tuple[int, ...] = (256, 64, 512)
    stock: Callable[[int, TensorDict], Step] | None = None
    options: Callable[[Any], dict[str, Any]] = field(default=lambda loss: {})
    limit: Callable[[LossModule, TensorDict, int], Step] | None = None

    def made(self, width: int) -> LossModule:
        """Our loss, with the same weights whenever it is made."""
        torch.manual_seed(0)
        return self.loss(width)

    def ours(self, width: int, batch: TensorDict, *, compile: bool = False) -> Step:
        loss, batch = self.made(width), batch.clone()
        return partial(Update(loss, compile=compile, **self.options(loss)), batch)

    def by_hand(self, width: int, batch: TensorDict) -> Hand:
        return self.hand(self.made(width), batch.clone(), width)

    def ways(
        self, width: int, rows: int, *, every: bool = False, compiled: bool = True
    ) -> dict[str, Step]:
        """By hand and ours, or every way that there is."""
        torch.manual_seed(1)
        batch = self.batch(rows)
        ways: dict[str, Step] = {"by hand": self.by_hand(width, batch)}
        if every:
            ways["by hand, compiled"] = self.by_hand(width, batch).compiled()
            if self.stock is not None:
                ways["TorchRL"] = self.stock(width, batch.clone())
            if self.limit is not None:
                ways["limit"] = self.limit(self.made(width), batch.clone(), width)
        ways["composerl"] = self.ours(width, batch)
        if compiled:
            ways["products alone"] = products_of(self.by_hand(width, batch))
            ways["composerl, compiled"] = self.ours(width, batch, compile=True)
        return ways


def _offline(kind: type[losses.IQLLoss], width: int) -> LossModule:
    hidden = (width, width)
    return kind(
        modules.gaussian_actor(BOX, hidden), modules.twin_q(BOX, hidden), modules.value(BOX, hidden)
    )


def _soft(kind: type[losses.SACLoss], width: int) -> LossModule:
    hidden = (width, width)
    return kind(modules.tanh_gaussian_actor(BOX, hidden), modules.twin_q(BOX, hidden))


def _td3bc(width: int) -> LossModule:
    hidden = (width, width)
    return losses.TD3BCLoss(modules.deterministic_actor(BOX, hidden), modules.twin_q(BOX, hidden))


def _iqn(width: int) -> LossModule:
    numbers = ("num_quantiles", "num_target_quantiles", "num_acting_quantiles")
    network = modules.iqn_network(DISCRETE, (width, width)).value_network
    return losses.IQNLoss(network, **dict.fromkeys(numbers, QUANTILES))


def _fqf(width: int) -> LossModule:
    actor = modules.fqf_network(DISCRETE, (width, width), num_quantiles=QUANTILES)
    return losses.FQFLoss(actor.value_network, actor.fraction_network)


def _two_optimizers(loss: losses.FQFLoss) -> dict[str, Any]:
    adam = FusedAdam(loss.value_network.parameters(), lr=3e-4)
    return {"optimizer": [adam, RMSprop(loss.fraction_network.parameters(), lr=1e-6)]}


def _ppo(width: int) -> LossModule:
    hidden = (width, width)
    critic = modules.value(DISCRETE, hidden, activation="tanh")
    return losses.ClipPPOLoss(modules.categorical_actor(DISCRETE, hidden), critic)


def _gail(width: int) -> LossModule:
    return losses.GAILLoss(modules.discriminator(DISCRETE, (width, width)), num_actions=2)


def _dynamics(width: int) -> LossModule:
    return losses.DynamicsLoss(modules.ensemble(BOX, (width,) * 4), per_member=True)


KINDS: dict[str, Kind] = {
    "iql": Kind(partial(_offline, losses.IQLLoss), continuous, hand_iql,
                stock=stock.iql, limit=IQLLimit),
    "xql": Kind(partial(_offline, losses.XQLLoss), continuous, hand_xql),
    "cql": Kind(partial(_soft, losses.CQLLoss), continuous, hand_cql, widths=(256,),
                stock=stock.cql),
    "sac": Kind(partial(_soft, losses.SACLoss), continuous, hand_sac, stock=stock.sac),
    "td3bc": Kind(_td3bc, continuous, hand_td3bc, widths=(256,),
                  stock=stock.td3bc,
                  options=lambda loss: {"every": {"actor_network": 2, "target_": 2}}),
    "iqn": Kind(_iqn, discrete, hand_iqn, 64, (128, 64, 512)),
    "fqf": Kind(_fqf, discrete, hand_fqf, 64, (128, 64, 512),
                options=_two_optimizers),
    "ppo": Kind(_ppo, minibatch, hand_ppo, 128, (64, 256, 512), stock=stock.ppo,
                options=lambda loss: {"max_grad_norm": 0.5}),
    "gail": Kind(_gail, pairs, hand_gail, 128, (64,), stock=stock.gail),
    "dynamics": Kind(_dynamics, of_members, hand_dynamics, 256, (200, 64, 512),
                     options=lambda loss: {"optimizer": FusedAdam(loss.parameter_groups())}),
}  # fmt: skip


def name(width: int, rows: int) -> str:
    """Of a case."""
    return f"width {width}, batch {rows}"


def _cases(kind: Kind) -> Iterator[Case]:
    for width in kind.widths:
        ways = kind.ways(width, kind.rows, every=width == kind.widths[0])
        yield Case(name(width, kind.rows), ways)


def _named(algorithm: str, kind: Kind) -> Benchmark:
    benchmark = partial(_cases, kind)
    benchmark.__doc__ = f"An update of {algorithm}, at widths {', '.join(map(str, kind.widths))}."
    return benchmark


BENCHMARKS: dict[str, Benchmark] = {key: _named(key, kind) for key, kind in KINDS.items()}
