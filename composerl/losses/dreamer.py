"""Dreamer: a world model, and an actor and a critic that learn in what it imagines."""

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor, nn

from composerl.losses.arguments import check_whole
from composerl.losses.dreamer_math import (
    draw_choice,
    draw_normal,
    lambda_return,
    log_prob_and_entropy,
    return_range,
    two_hot_loss,
    two_hot_mean,
)
from composerl.losses.world_model import WorldModelLoss, _Fit

__all__ = ["DreamerLoss"]


class DreamerLoss(WorldModelLoss):
    r"""DreamerV3: the world model's losses, and those of actor and critic in imagination.

    Paper: Hafner et al. 2023, https://arxiv.org/abs/2301.04104. Adds to :class:`WorldModelLoss`:
    from every posterior state, ``horizon`` steps with the actor's own actions; rewards r and
    continues c (which hold the discount) are the model's. With returns
    :math:`R_t = r_{t+1} + c_{t+1} ((1 - \lambda) v_{t+1} + \lambda R_{t+1})`, weights
    :math:`w_t = \prod_{i \le t} c_i` (:math:`c_0` is what was recorded) and the scale
    S, a moving average of the distance between the returns' 5 % and 95 % quantiles,

    .. math::
        L_{actor} &= -w_t \, (sg((R_t - v_t) / \max(1, S)) \log \pi(a_t | s_t) + \eta H(\pi)) \\
        L_{value} &= w_t \, (CE(twohot(R_t), v_t) + CE(twohot(\bar v_t), v_t)) \\
        L_{replay} &= 0.3 \, (CE(twohot(R^{replay}_t), v_t) + CE(twohot(\bar v_t), v_t))

    The critic bootstraps with itself and is held near its moving average :math:`\bar v` (use
    ``tau=0.02`` in an Update). :math:`R^{replay}` is the return of the recorded rewards, whose
    values are the imagined returns :math:`R_0`; an episode's last record has none.

    Each network is evaluated once per state (the critic's average too). No loss reaches the
    network of another, but for replayed values with ``replay_grad``.

    Args:
        world_network: see :class:`WorldModelLoss`; also ``imagine(latent, action)``.
        actor_network: features to log-probabilities of the actions; where these are floats, to
            means and deviations ``(..., 2, action)`` of normal distributions.
        value_network: features to 255 two-hot logits.

    Keyword Args:
        horizon: steps imagined.
        lmbda: lambda in [0, 1]: 1 trusts the imagined rewards, 0 the critic.
        entropy_coeff: eta: larger keeps the actor more random.
        return_rate: share of each batch in the moving average S.
        replay_scale: weight of the replayed states' value loss; 0 for none.
        replay_grad: that loss shapes the world model's states, too, as in the authors' code.
        **options: the keyword arguments of :class:`WorldModelLoss`.

    Reads what :class:`WorldModelLoss` does. Returns its outputs, ``loss_actor``, ``loss_value``,
    ``loss_replay``, and ``entropy`` (of the actor), ``return`` (imagined), ``value``,
    ``return_range`` (S).

    Example:
        >>> import torch
        >>> from composerl.losses import DreamerLoss
        >>> from composerl.modules import dreamer_actor, dreamer_critic
        >>> from composerl.envs.spaces import Spaces
        >>> from tensordict import TensorDict
        >>> spaces = Spaces(obs_shape=(1, 16, 16), num_actions=3)
        >>> actor = dreamer_actor(spaces, "debug")
        >>> loss = DreamerLoss(
        ...     actor.world_network, actor.actor_network, dreamer_critic(spaces, "debug"))
        >>> image, zero = torch.zeros(2, 5, 1, 16, 16, dtype=torch.uint8), torch.zeros(2, 5)
        >>> batch = TensorDict({"observation": image, "action": zero.long(), "reward": zero,
        ...                     "first": zero.bool(), "terminal": zero.bool()}, [2, 5])
        >>> [key for key in loss(batch).keys() if key in ("loss_actor", "loss_value")]
        ['loss_actor', 'loss_value']
    """

    out_keys = [  # noqa: RUF012
        *WorldModelLoss.out_keys, "loss_actor", "loss_value", "loss_replay",
        "entropy", "return", "value", "return_range",
    ]  # fmt: skip

    def __init__(
        self,
        world_network: nn.Module,
        actor_network: nn.Module,
        value_network: nn.Module,
        *,
        horizon: int = 15,
        lmbda: float = 0.95,
        entropy_coeff: float = 3e-4,
        return_rate: float = 0.01,
        replay_scale: float = 0.3,
        replay_grad: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(world_network, **options)
        self.actor_network = actor_network
        self.value_network = value_network
        self.make_target("value_network")
        self.horizon = check_whole("horizon", horizon, 1)
        self.replay_grad = bool(replay_grad)
        self.coefficient("lmbda", lmbda, "[0, 1]")
        self.coefficient("entropy_coeff", entropy_coeff, "[0, inf)")
        self.coefficient("return_rate", return_rate, "(0, 1]")
        self.coefficient("replay_scale", replay_scale, "[0, inf)")
        self.register_buffer("return_range", torch.tensor(0.0))

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Evaluate all losses on sequences of records."""
        fit = self._fit(tensordict)
        shape = fit.reward.shape
        features, policies, actions = self._imagine(fit.latent)
        with torch.no_grad():
            reward, continues = self._outcomes(features[1:])
            average = two_hot_mean(self._part("target_value_network")(features[:-1]), self.bins)
            last = two_hot_mean(self.value_network(features[-1:]), self.bins)
        logits = self._part("value_network")(features[:-1])
        value = torch.cat([two_hot_mean(logits.detach(), self.bins), last])
        returns = lambda_return(reward, continues, value, self.lmbda)
        started = (~fit.terminal).to(value.dtype).view(1, -1)
        weight = torch.cat([started, continues[:-1]]).cumprod(0)

        scale = self._scale(returns, fit.mask)
        advantage = (returns - value[:-1]) / scale
        chosen, entropy = log_prob_and_entropy(policies, actions)
        actor = -weight * (chosen * advantage + self.entropy_coeff * entropy)
        critic = two_hot_loss(logits, torch.stack([returns, average], -1), self.bins).sum(-1)
        replay, counts = self._replay_returns(fit, returns[0].view(shape))
        # Replayed states are the first imagined ones, but for their gradients.
        first = self.value_network(fit.latent.features) if self.replay_grad else logits[0]
        targets = torch.stack([replay.flatten(), average[0]], -1)
        replayed = two_hot_loss(first, targets, self.bins).sum(-1).view(shape) * counts

        fit.rows["loss_actor"] = actor.mean(0).view(shape)
        fit.rows["loss_value"] = (weight * critic).mean(0).view(shape)
        fit.rows["loss_replay"] = self.replay_scale * replayed
        fit.rows["entropy"] = entropy.mean(0).view(shape)
        fit.rows["return"] = returns.mean(0).view(shape)
        fit.rows["value"] = value.mean(0).view(shape)
        fit.rows["return_range"] = self.return_range.expand(shape)
        return self._reduced(fit.batch, fit.mask, fit.rows)

    def _outcomes(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Reward and probability to go on of imagined states, each ``(H, n)``."""
        reward = two_hot_mean(self._part("reward_head")(features), self.bins)
        return reward, self._part("continue_head")(features).squeeze(-1).sigmoid()

    def compile_parts(self) -> None:
        super().compile_parts()
        for name in ("actor_network", "value_network", "target_value_network"):
            self._compiled[name] = torch.compile(getattr(self, name), dynamic=False)

    def _imagine(self, latent: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Features ``(H + 1, n, f)``, the policy's distributions and actions, both ``(H, n, ...)``.

        Only the actor's outputs carry gradients: REINFORCE needs none through the model.
        """
        latent = type(latent)(*(x.detach() for x in latent))
        discrete = self.world_network.num_actions is not None
        actor, steps = self._part("actor_network"), self._steps()
        features, policies, actions = [latent.features], [], []
        for _ in range(self.horizon):
            policy = actor(features[-1])
            with torch.no_grad():
                action = draw_choice(policy) if discrete else draw_normal(policy)
                latent = self.world_network.imagine(latent, action, **steps)
            features.append(latent.features)
            policies.append(policy)
            actions.append(action)
        return torch.stack(features), torch.stack(policies), torch.stack(actions)

    def _scale(self, returns: Tensor, mask: Tensor | None) -> Tensor:
        """What advantages are divided by; in training mode the returns first move it."""
        if self.training:
            flat = None if mask is None else mask.reshape(1, -1)
            distance = return_range(returns, mask=flat).to(self.return_range.dtype)
            self.return_range.lerp_(distance.nan_to_num(), self.return_rate)
        return self.return_range.clamp_min(1.0)

    def _replay_returns(self, fit: _Fit, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns of the recorded rewards, and which records have one, both ``(batch, time)``."""
        follows = ~fit.first[:, 1:]
        if fit.mask is not None:
            follows = follows & fit.mask[:, 1:]
        goes_on = torch.cat([follows, follows.new_zeros(len(follows), 1)], 1)
        continues = self.gamma * (~fit.terminal[:, 1:]).to(value.dtype)
        # The last record of an episode or a sequence: its value is all that is known.
        mixed = self.lmbda * goes_on[:, 1:].to(value.dtype)
        returns = lambda_return(fit.reward[:, 1:].t(), continues.t(), value.t(), mixed.t()).t()
        returns = torch.cat([returns, value[:, -1:]], 1)
        return returns, goes_on.to(value.dtype)
