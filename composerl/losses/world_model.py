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
from composerl.losses.dreamer_math import categorical_kl, free_nats_kl, symexp_bins, two_hot_loss
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
        L_{image} &= \textstyle\sum_{pixels} (x_t / 255 - \hat x(h_t, z_t))^2 \\
        L_{reward} &= CE(twohot(r_t), \hat r(h_t, z_t)) \\
        L_{continue} &= BCE(\gamma (1 - terminal_t), \hat c(h_t, z_t)) \\
        L_{dynamics} &= c_{dyn} \max(f, \textstyle\sum_k KL(sg(q_k) \| p_k)) \\
        L_{representation} &= c_{rep} \max(f, \textstyle\sum_k KL(q_k \| sg(p_k)))

    The discount is part of the continue head: imagination multiplies by it and by nothing else.

    Difference to ``torchrl.objectives.DreamerV3ModelLoss``: records instead of transitions, so
    that an episode's first observation is encoded and its last reward learned; first-flags inside
    a sequence; context records; masks and weights; free nats on the sum over the latents.

    Args:
        world_network: with ``image``, ``observe``, ``decoder``, ``reward_head`` (255 logits) and
            ``continue_head``, as :func:`composerl.modules.world_model` has them.

    Keyword Args:
        context: records at the start of each sequence that only warm the state up, without
            gradients; no loss sees them. 0 if a sequence starts where an episode does.
        gamma: discount in (0, 1], folded into the continue head's target.
        dynamics_scale: weight of the prior's KL: larger makes imagination follow the data sooner.
        representation_scale: weight of the posterior's KL: larger makes states easier to predict
            and less informative.
        free_nats: KL below which nothing is done.
        reduction: see :mod:`composerl.losses`; with ``"none"`` ``(batch, time - context)``.

    Reads, with batch size (batch, time): ``observation`` (uint8 images), ``action``, ``reward``,
    ``first``, ``terminal``. A replay that keeps latents adds ``known`` and the fields of the
    network's states (``deter``, ``stoch``): where the last context record's is known, the sequence
    goes on from it; else from zeros, through the context. The states found are then written into
    the batch, for :meth:`composerl.data.Latents.write`.

    Returns: ``loss_image``, ``loss_reward``, ``loss_continue``, ``loss_dynamics``,
    ``loss_representation``, and ``kl``, without free nats and scales.

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
        >>> sorted(loss(batch).keys())
        ['kl', 'loss_continue', 'loss_dynamics', 'loss_image', 'loss_representation', 'loss_reward']
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
    world_network: Any  # what it must have, no type of torch's says
    out_keys = [  # noqa: RUF012
        "loss_image", "loss_reward", "loss_continue", "loss_dynamics", "loss_representation", "kl",
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
        number = world.num_actions
        action = action_index(read(batch, keys.action), number, batch.batch_size, keys.action)
        first, terminal = (self._column(batch, key).bool() for key in (keys.first, keys.terminal))
        reward = self._column(batch, keys.reward)

        observation = read(batch, keys.observation)
        start = None
        if context:
            past = self._warm_up(*(x[:, :context] for x in (batch, observation, action, first)))
            start = type(past)(*(x[:, -1] for x in past))
        batch = batch[:, context:]
        observation, action, first, terminal, reward = (
            x[:, context:] for x in (observation, action, first, terminal, reward)
        )
        image = world.image(observation)
        seen = world.observe(image, action, first, start)
        if context and tensordict.get(keys.known, None) is not None:
            for field, before, found in zip(past._fields, past, seen.latent, strict=True):
                tensordict.set(field, torch.cat([before, found.detach()], 1))
        latent = type(seen.latent)(*(x.flatten(0, 1) for x in seen.latent))
        posterior, prior = seen.posterior, seen.prior
        shape = batch.batch_size

        features = latent.features
        dynamics, representation = free_nats_kl(posterior, prior, self.free_nats)
        going_on = self.gamma * (~terminal).to(reward.dtype)
        rows = {
            "loss_image": (world.decoder(features) - image).square().sum((1, 2, 3)).view(shape),
            "loss_reward": two_hot_loss(world.reward_head(features).view(*shape, -1), reward,
                                        self.bins),
            "loss_continue": F.binary_cross_entropy_with_logits(
                world.continue_head(features).view(shape), going_on, reduction="none"),
            "loss_dynamics": self.dynamics_scale * dynamics,
            "loss_representation": self.representation_scale * representation,
        }  # fmt: skip
        with torch.no_grad():
            rows["kl"] = categorical_kl(posterior, prior)
        mask = None if mask is None else mask[:, context:]
        return _Fit(rows, batch, mask, latent, reward, first, terminal)

    @torch.no_grad()
    def _warm_up(
        self, context: TensorDictBase, observation: Tensor, action: Tensor, first: Tensor
    ) -> Any:
        """The states of the context: those that the replay knows, else what the context tells."""
        world = self.world_network
        told = world.observe(world.image(observation), action, first).latent
        known = context.get(self.tensor_keys.known, None)
        if known is None:
            return told
        if self.context > 1:  # the others would count as known, although they come from zeros
            raise ValueError(f"states that a replay keeps need context=1, got {self.context}")
        known = known.view(-1, 1, 1)
        stored = (read(context, field).to(x.dtype) for field, x in told._asdict().items())
        return type(told)(*(torch.where(known, a, b) for a, b in zip(stored, told, strict=True)))

    @staticmethod
    def _column(batch: TensorDictBase, key: NestedKey) -> Tensor:
        value, shape = read(batch, key), batch.batch_size
        if value.shape not in (shape, (*shape, 1)):
            raise ValueError(
                f"entry {key!r} must have shape {tuple(shape)} or {(*shape, 1)}, "
                f"got {tuple(value.shape)}"
            )
        return value.view(shape)
