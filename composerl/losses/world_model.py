"""The likelihood of what a world model saw."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor, nn

from composerl.losses.arguments import check_whole
from composerl.losses.common import RowKeys, RowLoss
from composerl.losses.dreamer_math import (
    categorical_kl,
    free_nats_kl,
    spread,
    squared_error,
    symexp_bins,
    two_hot_loss,
)
from composerl.losses.reading import action_index, blank, read

__all__ = ["WorldModelLoss"]


class _Fit(NamedTuple):
    """What the model's part of an update leaves to the others, without the context records."""

    rows: dict[str, Tensor]
    batch: TensorDictBase
    mask: Tensor | None
    latent: Any
    reward: Tensor
    first: Tensor
    terminal: Tensor


class WorldModelLoss(RowLoss):
    r"""Fits DreamerV3's world model to sequences of records.

    Paper: Hafner et al. 2023, https://arxiv.org/abs/2301.04104. A record t is (action *before* it,
    observation, reward on arriving, first, terminal). With :math:`h_t, z_t` the state after seeing
    it, posterior q and prior p

    .. math::
        L_{observation} &= \textstyle\sum (x_t - \hat x(h_t, z_t))^2 \\
        L_{reward} &= CE(twohot(r_t), \hat r(h_t, z_t)) \\
        L_{continue} &= BCE(\gamma (1 - terminal_t), \hat c(h_t, z_t)) \\
        L_{dynamics} &= c_{dyn} \max(f, \textstyle\sum_k KL(sg(q_k) \| p_k)) \\
        L_{representation} &= c_{rep} \max(f, \textstyle\sum_k KL(q_k \| sg(p_k)))

    where x is a picture's pixels in [0, 1], the symlog of a vector, or all of both. The discount is
    part of the continue head: imagination multiplies by it and by nothing else.

    Difference to ``torchrl.objectives.DreamerV3ModelLoss``: records instead of transitions, so
    that an episode's first observation is encoded and its last reward learned; first-flags inside
    a sequence; context records; masks and weights; free nats on the sum over the latents.

    Args:
        world_network: with ``inputs``, ``observe``, ``decoder``, ``reward_head`` (255 logits),
            ``continue_head`` and ``num_actions`` (None if actions are floats), as
            :func:`composerl.modules.world_model` has them.

    Keyword Args:
        context: records at the start of each sequence that only warm the state up, without
            gradients; no loss sees them. 0 if a sequence starts where an episode does.
        gamma: discount in (0, 1], folded into the continue head's target.
        dynamics_scale: weight of the prior's KL: larger makes imagination follow the data sooner.
        representation_scale: weight of the posterior's KL: larger makes states easier to predict
            and less informative.
        free_nats: KL below which nothing is done.
        reduction: see :mod:`composerl.losses`; with ``"none"`` ``(batch, time - context)``.

    Reads, with batch size (batch, time): ``observation``, ``action``, ``reward``, ``first``,
    ``terminal``. A replay that keeps latents adds ``known`` and the fields of the network's states
    (``deter``, ``stoch``) *before* each record: where that of the first record after the context
    is known, the sequence goes on from it; else from zeros, through the context. The states found
    are then written into the batch, for :meth:`composerl.data.Latents.write`.

    Returns: ``loss_observation``, ``loss_reward``, ``loss_continue``, ``loss_dynamics``,
    ``loss_representation``, ``kl``, without free nats and scales, and ``unexplained``: the
    observations' error in units of that which the batch's mean observation would have. A model
    that has learned nothing but the mean is at 1; how well it foresees is not in it.

    Example:
        >>> import torch
        >>> from composerl.losses import WorldModelLoss
        >>> from composerl.modules import world_model
        >>> from composerl.envs.spaces import Spaces
        >>> from tensordict import TensorDict
        >>> spaces = Spaces(obs_shape=(1, 16, 16), num_actions=3)
        >>> loss = WorldModelLoss(world_model(spaces, "debug"))
        >>> image, zero = torch.zeros(2, 5, 1, 16, 16, dtype=torch.uint8), torch.zeros(2, 5)
        >>> batch = TensorDict({"observation": image, "action": zero.long(), "reward": zero,
        ...                     "first": zero.bool(), "terminal": zero.bool()}, [2, 5])
        >>> sorted(loss(batch).keys())  # doctest: +NORMALIZE_WHITESPACE
        ['kl', 'loss_continue', 'loss_dynamics', 'loss_observation', 'loss_representation',
         'loss_reward', 'unexplained']
    """

    @dataclass
    class _AcceptedKeys(RowKeys):
        observation: NestedKey = "observation"
        reward: NestedKey = "reward"
        first: NestedKey = "first"
        terminal: NestedKey = "terminal"
        known: NestedKey = "known"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    default_value_estimator = None
    large_products = True
    world_network: Any  # what it must have, no type of torch's says
    _unkeyed_names = ("world_network", "actor_network", "value_network")
    out_keys = [  # noqa: RUF012
        "loss_observation", "loss_reward", "loss_continue", "loss_dynamics",
        "loss_representation", "kl", "unexplained",
    ]  # fmt: skip

    def __init__(
        self,
        world_network: nn.Module,
        *,
        context: int = 1,
        gamma: float = 1 - 1 / 333,
        dynamics_scale: float = 1.0,
        representation_scale: float = 0.1,
        free_nats: float = 1.0,
        reduction: str | None = None,
    ) -> None:
        super().__init__(reduction)
        self.world_network = world_network
        self.context = check_whole("context", context, 0)
        self.coefficient("gamma", gamma, "(0, 1]")
        self.coefficient("dynamics_scale", dynamics_scale, "[0, inf)")
        self.coefficient("free_nats", free_nats, "[0, inf)")
        self.coefficient("representation_scale", representation_scale, "[0, inf)")
        self.register_buffer("bins", symexp_bins())
        self._compiled: dict[str, Any] = {}

    def reads(self) -> list[NestedKey]:
        keys = self.tensor_keys
        return [keys.observation, keys.action, keys.reward, keys.first, keys.terminal]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Evaluate the losses on sequences of records."""
        fit = self._fit(tensordict)
        return self._reduced(fit.batch, fit.mask, fit.rows)

    def _fit(self, tensordict: TensorDictBase) -> _Fit:
        keys, world, context = self.tensor_keys, self.world_network, self.context
        if tensordict.ndim != 2 or tensordict.shape[1] <= context:
            raise ValueError(
                f"the batch must have shape (batch, time) with more than context={context} "
                f"records in a sequence, got {tuple(tensordict.shape)}"
            )
        mask = self._mask(tensordict)
        batch = tensordict if mask is None else blank(tensordict, mask)
        action = self._action(batch)
        first, terminal = (self._column(batch, key).bool() for key in (keys.first, keys.terminal))
        reward = self._column(batch, keys.reward)
        observation = read(batch, keys.observation)
        start = self._start(batch, observation, action, first)
        whole, batch = batch, batch[:, context:]
        observation, action, first, terminal, reward = (
            x[:, context:] for x in (observation, action, first, terminal, reward)
        )
        inputs = world.inputs(observation)
        seen = world.observe(inputs, action, first, start, **self._steps())
        if start is not None and whole.get(keys.known, None) is not None:
            for field, begin, found in zip(start._fields, start, seen.latent, strict=True):
                past = read(whole, field)[:, :context].to(begin.dtype)
                parts = [past, begin.unsqueeze(1), found[:, :-1].detach()]
                tensordict.set(field, torch.cat(parts, 1))
        latent = type(seen.latent)(*(x.flatten(0, 1) for x in seen.latent))
        posterior, prior = seen.posterior, seen.prior
        shape = batch.batch_size
        mask = None if mask is None else mask[:, context:]

        features = latent.features
        error = squared_error(self._part("decoder")(features), inputs).view(shape)
        dynamics, representation = free_nats_kl(posterior, prior, self.free_nats)
        going_on = self.gamma * (~terminal).to(reward.dtype)
        rows = {
            "loss_observation": error,
            "loss_reward": two_hot_loss(self._part("reward_head")(features).view(*shape, -1),
                                        reward, self.bins),
            "loss_continue": F.binary_cross_entropy_with_logits(
                self._part("continue_head")(features).view(shape), going_on, reduction="none"),
            "loss_dynamics": self.dynamics_scale * dynamics,
            "loss_representation": self.representation_scale * representation,
        }  # fmt: skip
        with torch.no_grad():
            rows["kl"] = categorical_kl(posterior, prior)
            rows["unexplained"] = error.detach() / spread(inputs, mask)
        return _Fit(rows, batch, mask, latent, reward, first, terminal)

    def compile_parts(self) -> None:
        """Compile the networks, one step of a sequence and one of imagination, each by itself.

        What :class:`~composerl.Update` does in place of one graph: a scan, unrolled in it, would
        take longer to compile than most runs to train. Shapes are fixed; the context and acting,
        which have others, are left as they are, and so is what convolves: the compiler's norms of
        images take twice as long as PyTorch's.
        """
        world = self.world_network
        parts = {name: getattr(world, name) for name in self._parts}
        self._compiled = {k: _compile(part) for k, part in parts.items() if not _convolves(part)}
        steps = world.steps
        self._compiled["steps"] = type(steps)(
            *(step if _convolves(step) else _compile(step) for step in steps)
        )

    #: Networks of the world model that are compiled.
    _parts = ("decoder", "reward_head", "continue_head")

    def _part(self, name: str) -> Any:
        """A network, of the world model or of the loss, compiled if that was asked for and pays."""
        if name in self._compiled:
            return self._compiled[name]
        return getattr(self.world_network if name in self._parts else self, name)

    def _steps(self) -> dict[str, Any]:
        return {"steps": self._compiled["steps"]} if "steps" in self._compiled else {}

    @torch.no_grad()
    def _start(
        self, batch: TensorDictBase, observation: Tensor, action: Tensor, first: Tensor
    ) -> Any:
        """The states after the context: those that the replay knows, else what the context tells.

        None are zeros, which there is no context to tell from.
        """
        world, context = self.world_network, self.context
        known, told = batch.get(self.tensor_keys.known, None), None
        if context:
            past = world.inputs(observation[:, :context])
            told = world.observe(past, action[:, :context], first[:, :context]).latent
            told = type(told)(*(x[:, -1] for x in told))
        elif known is not None:
            told = world.initial(len(batch))
        if told is None or known is None:
            return told
        known = known[:, context].view(-1, 1)
        stored = (read(batch, name)[:, context].to(x.dtype) for name, x in told._asdict().items())
        return type(told)(*(torch.where(known, a, b) for a, b in zip(stored, told, strict=True)))

    def _action(self, batch: TensorDictBase) -> Tensor:
        """Integers ``(batch, time)``, or floats ``(batch, time, action)``."""
        key, number = self.tensor_keys.action, self.world_network.num_actions
        action = read(batch, key)
        if number is not None:
            return action_index(action, number, batch.batch_size, key)
        if action.ndim != 3 or not action.is_floating_point():
            raise ValueError(
                f"entry {key!r} must be floats of shape {(*batch.batch_size, 'action')}, got "
                f"{action.dtype} of shape {tuple(action.shape)}"
            )
        return action

    @staticmethod
    def _column(batch: TensorDictBase, key: NestedKey) -> Tensor:
        value, shape = read(batch, key), batch.batch_size
        if value.shape not in (shape, (*shape, 1)):
            raise ValueError(
                f"entry {key!r} must have shape {tuple(shape)} or {(*shape, 1)}, "
                f"got {tuple(value.shape)}"
            )
        return value.view(shape)


def _convolves(part: Any) -> bool:
    kinds = nn.Conv2d, nn.ConvTranspose2d
    return isinstance(part, nn.Module) and any(isinstance(x, kinds) for x in part.modules())


def _compile(part: Any) -> Any:
    return torch.compile(part, dynamic=False)
