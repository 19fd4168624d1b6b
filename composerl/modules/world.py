"""A world model: what an environment does next."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrl.envs import EnvBase

from composerl.envs.spaces import Spaces
from composerl.modules.recurrence import Recurrence
from composerl.modules.scan import Inner, scan, step_back
from composerl.modules.world_parts import EPSILON, Head, Linear, draw, mix_uniform, silu
from composerl.modules.world_senses import Inputs, Seen, decoder_of, encoder_of, inputs_of
from composerl.modules.world_size import WorldSize, world_size

__all__ = ["Latent", "Observed", "Steps", "WorldModel", "world_model"]

#: Classes of the two-hot heads.
BINS = 255


class Latent(NamedTuple):
    """A state: recurrent ``(..., deter)`` and one-hot ``(..., latents * classes)``."""

    deter: Tensor
    stoch: Tensor

    @property
    def features(self) -> Tensor:
        """Both side by side: what every head reads."""
        return torch.cat([self.deter, self.stoch], -1)


class Observed(NamedTuple):
    """What :meth:`WorldModel.observe` returns, each with leading dimensions (batch, time)."""

    latent: Latent
    posterior: Tensor
    prior: Tensor


class Steps(NamedTuple):
    """The parts of a world model that sequences and imagination call, to be compiled one by one."""

    encoder: Callable[..., Any]
    look: Callable[..., Any]
    foresee: Callable[..., Any]
    back: Callable[..., Any]


class WorldModel(nn.Module):
    """DreamerV3's recurrent state-space model (Hafner et al. 2023, arXiv 2301.04104).

    A recurrent state :math:`h_t = f(h_{t-1}, z_{t-1}, a_{t-1})`
    (:class:`~composerl.modules.recurrence.Recurrence`), categorical latents
    :math:`z_t \\sim q(z | h_t, x_t)` (posterior) or :math:`p(z | h_t)` (prior, of two layers),
    both with 1 % uniform mix and straight-through gradients, and heads on :math:`(h_t, z_t)`: the
    observation, the reward on arriving (two-hot logits), whether the episode goes on (a logit).

    Observations are images (uint8, or floats in [0, 1]), vectors, whose symlog is read and
    predicted, or several of both (as :mod:`composerl.envs.packing` packs them). Actions are
    integers, or floats within bounds.

    Of TorchRL's DreamerV3 blocks (``RSSMPriorV3``, ``RSSMPosteriorV3``, ``RSSMRolloutV3``,
    ``DreamerV3ImageEncoder``, ``DreamerV3ImageDecoder``) none is used: their rollout reads
    transitions, so that the first observation is never encoded, and moves a TensorDict at each
    step. Here the projections of observations and actions are taken out of the scan, all noise is
    drawn at once, the prior is evaluated after the scan for all steps together, and images stay in
    channels_last.

    Attributes:
        num_actions: how many actions there are; None if they are floats.
    """

    low: Tensor
    high: Tensor

    def __init__(self, spaces: Spaces, size: WorldSize) -> None:
        super().__init__()
        self.obs_shape, self.num_actions = spaces.obs_shape, spaces.num_actions
        self.latents, self.classes, self.deter = size.latents, size.classes, size.deter
        self.feature_dim = size.features
        self.layout = spaces.obs_layout
        self.encoder = encoder_of(self.obs_shape, size, self.layout)
        self.decoder = decoder_of(self.obs_shape, size, self.layout)
        self.recurrence = Recurrence(size, spaces.action_dim)
        seen = int(cast(Any, self.encoder).out_dim)
        self.seen_in = Linear(seen, size.hidden, fan_in=seen + size.deter)
        self.posterior_in = Linear(size.deter, size.hidden, bias=False, fan_in=seen + size.deter)
        self.posterior_norm = nn.RMSNorm(size.hidden, eps=EPSILON)
        self.posterior_out = Linear(size.hidden, size.stoch)
        self.prior_head = Head(size.deter, size.stoch, size.hidden, layers=2)
        self.reward_head = Head(size.features, BINS, size.units, out_scale=0.0)
        self.continue_head = Head(size.features, 1, size.units)
        if spaces.low is not None:
            bounds = list(zip(spaces.low, spaces.high or (), strict=True))
            if not all(-math.inf < low < high < math.inf for low, high in bounds):
                raise ValueError(
                    "a world model needs float actions within finite bounds, got "
                    f"{spaces.low} to {spaces.high}"
                )
            self.register_buffer("low", torch.tensor(spaces.low), persistent=False)
            self.register_buffer("high", torch.tensor(spaces.high), persistent=False)

    @property
    def latent_types(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape of each part of a state, and a type to keep it in: for a replay's ``latents``."""
        stoch = ((self.latents * self.classes,), torch.uint8)  # one-hot: nothing is lost
        return {"deter": ((self.deter,), torch.float16), "stoch": stoch}

    def initial(self, batch: int) -> Latent:
        """The state before an episode's first observation: zeros."""
        like = self.posterior_norm.weight
        stoch = like.new_zeros(batch, self.latents * self.classes)
        return Latent(like.new_zeros(batch, self.deter), stoch)

    def inputs(self, observation: Seen) -> Inputs:
        """What is read and predicted of observations ``(..., *obs_shape)``, flat ``(n, ...)``.

        Images as floats in [0, 1], channels_last; the symlog of vectors; a tuple of both, of bytes
        or of tensors ``(n, ...)`` by name.
        """
        shape, dtype = self.obs_shape, self.posterior_norm.weight.dtype
        if not isinstance(observation, Tensor):
            return inputs_of(observation, dtype, self.layout)
        if observation.shape[observation.ndim - len(shape) :] != shape:
            raise ValueError(
                f"observations must have shape (..., {', '.join(map(str, shape))}), "
                f"got {tuple(observation.shape)}"
            )
        x = observation.reshape(-1, *shape)
        return inputs_of(x, dtype, self.layout)

    def acted(self, action: Tensor) -> Tensor:
        """Actions as the recurrence reads them: one-hot, or in [-1, 1]; beyond their bounds cut."""
        if self.num_actions is not None:
            return F.one_hot(action, self.num_actions).to(self.posterior_norm.weight.dtype)
        half = (self.high - self.low) / 2
        return ((action - (self.low + half)) / half).clamp(-1, 1)

    @property
    def steps(self) -> Steps:
        """What :meth:`observe` and :meth:`imagine` can be given compiled versions of."""
        return Steps(self.encoder, self._look, self._foresee, step_back)

    def observe(
        self,
        inputs: Inputs,
        action: Tensor,
        first: Tensor,
        latent: Latent | None = None,
        *,
        sample: bool = True,
        shown: Tensor | None = None,
        steps: Steps | None = None,
    ) -> Observed:
        """Follow sequences of records: the posterior state at each of them.

        Args:
            inputs: from :meth:`inputs`, ``(batch * time, ...)``.
            action: taken before each record, ``(batch, time)`` or ``(batch, time, action)``.
            first: whether a record starts an episode, ``(batch, time)``: state and action before
                it are then forgotten.
            latent: the state before the first record; zeros if there is none.
            sample: draw the latents, or take the likeliest.
            shown: which records are looked at, ``(batch, time)``, all by default; at the others
                the prior takes the place of the posterior.
            steps: :attr:`steps`, or compiled versions of them.

        Returns: states, posterior and prior probabilities ``(batch, time, latents, classes)``.
        """
        steps = steps or self.steps
        batch, time = first.shape
        deter, stoch = self.initial(batch) if latent is None else latent
        keep = (~first).to(deter.dtype).t().unsqueeze(-1)
        seen = self.seen_in(steps.encoder(inputs)).view(batch, time, -1).transpose(0, 1)
        acted = self.recurrence.acted(self.acted(action).transpose(0, 1) * keep)
        noise = keep.new_empty(time, batch, self.latents, 1).uniform_() if sample else None
        # A compiler derives the gradients itself, and cannot look into those by hand.
        by_hand = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if by_hand and shown is None:
            args = (deter, stoch, keep, acted, seen, noise)
            deters, stochs, probs = scan(self, steps.look, steps.back, *args)
            return Observed(Latent(deters, stochs), probs, self.prior(deters))
        noises = [None] * time if noise is None else noise.unbind()
        looks = [None] * time if shown is None else shown.unbind(1)
        # unbind, as indexing would fill a tensor of all steps with zeros for each step's gradient
        inside = zip(keep.unbind(), acted.unbind(), seen.unbind(), noises, looks, strict=True)
        deters, stochs, posteriors = [], [], []
        for parts in inside:
            deter, stoch, probs, _ = steps.look(deter, stoch, *parts)
            deters.append(deter)
            stochs.append(stoch)
            posteriors.append(probs)
        states = Latent(torch.stack(deters, 1), torch.stack(stochs, 1))
        return Observed(states, torch.stack(posteriors, 1), self.prior(states.deter))

    def imagine(
        self, latent: Latent, action: Tensor, *, sample: bool = True, steps: Steps | None = None
    ) -> Latent:
        """The state after an action ``(n,)`` or ``(n, action)``, without seeing what happens."""
        shape = (len(latent.deter), self.latents, 1)
        noise = latent.deter.new_empty(shape).uniform_() if sample else None
        return Latent(*(steps or self.steps).foresee(*latent, action, noise))

    def prior(self, deter: Tensor) -> Tensor:
        """Probabilities ``(..., latents, classes)`` of what a recurrent state lets expect."""
        return mix_uniform(self.prior_head(deter).unflatten(-1, (self.latents, self.classes)))

    def _look(
        self,
        deter: Tensor,
        stoch: Tensor,
        keep: Tensor,
        acted: Tensor,
        seen: Tensor,
        noise: Tensor | None,
        shown: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Inner]:
        """One step of :meth:`observe`: state and posterior after a record, and what is inside."""
        deter, within = self.recurrence.step(deter * keep, stoch * keep, acted)
        hidden = torch.addmm(seen, deter, self.posterior_in.weight.t())
        logits = self.posterior_out(silu(self.posterior_norm(hidden)))
        probs = mix_uniform(logits.unflatten(-1, (self.latents, self.classes)))
        if shown is not None:
            probs = torch.where(shown[:, None, None], probs, self.prior(deter))
        return deter, _one_hot(probs, noise), probs, Inner(*within, hidden)

    def _foresee(
        self, deter: Tensor, stoch: Tensor, action: Tensor, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One step of :meth:`imagine`."""
        deter = self.recurrence(deter, stoch, self.recurrence.acted(self.acted(action)))
        return deter, _one_hot(self.prior(deter), noise)


def _one_hot(probs: Tensor, noise: Tensor | None) -> Tensor:
    """Latents ``(batch, latents * classes)`` drawn; their gradient is that of the probabilities."""
    stoch = torch.zeros_like(probs).scatter_(-1, draw(probs.detach(), noise), 1.0)
    if probs.requires_grad:
        stoch = stoch + (probs - probs.detach())
    return stoch.flatten(1)


def world_model(env: EnvBase | Spaces, size: str | Mapping[str, Any] = "small") -> WorldModel:
    """A world model of images (channels, height, width), of vectors, or of both together.

    ``size`` is a name of :data:`SIZES`, or numbers under the names of
    :class:`~composerl.modules.world_size.WorldSize`.
    """
    return WorldModel(Spaces.of(env), world_size(size))
