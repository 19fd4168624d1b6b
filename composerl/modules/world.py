"""A world model: what an environment of images and discrete actions does next."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchrl.envs import EnvBase

from composerl.envs.spaces import Spaces
from composerl.modules.world_parts import Head, ImageDecoder, ImageEncoder, draw, mix_uniform, silu

__all__ = ["SIZES", "Latent", "Observed", "WorldModel", "world_model", "world_size"]

#: deter: width of the recurrent state; latents, classes: categorical variables and their values;
#: units, layers: of the heads, actor and critic; depth: channels of the first convolution.
SIZES: dict[str, dict[str, int]] = {
    "debug": {"deter": 64, "latents": 8, "classes": 8, "units": 64, "layers": 1, "depth": 4},
    "small": {"deter": 256, "latents": 16, "classes": 16, "units": 128, "layers": 2, "depth": 8},
    "medium": {"deter": 512, "latents": 24, "classes": 16, "units": 128, "layers": 2, "depth": 8},
}

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


class WorldModel(nn.Module):
    """DreamerV3's recurrent state-space model (Hafner et al. 2023, arXiv 2301.04104).

    A recurrent state :math:`h_t = f(h_{t-1}, z_{t-1}, a_{t-1})`, categorical latents
    :math:`z_t \\sim q(z | h_t, x_t)` (posterior) or :math:`p(z | h_t)` (prior), both with 1 %
    uniform mix and straight-through gradients, and heads on :math:`(h_t, z_t)`: the image, the
    reward on arriving (two-hot logits), whether the episode goes on (a logit).

    Of TorchRL's DreamerV3 blocks (``RSSMPriorV3``, ``RSSMPosteriorV3``, ``RSSMRolloutV3``,
    ``DreamerV3ImageEncoder``, ``DreamerV3ImageDecoder``) none is used: their rollout reads
    transitions, so that the first observation is never encoded, and moves a TensorDict at each
    step. Here the projections of images and actions are taken out of the scan, all noise is drawn
    at once, the prior is evaluated after the scan for all steps together, and images stay in
    channels_last. The recurrence is a GRU with one LayerNorm over its gates, dense (block-diagonal
    weights gain nothing at these widths).

    Attributes:
        num_actions: how many actions there are.
    """

    def __init__(
        self, obs_shape: tuple[int, ...], num_actions: int, size: Mapping[str, int]
    ) -> None:
        super().__init__()
        self.obs_shape, self.num_actions = tuple(obs_shape), num_actions
        deter, units = size["deter"], size["units"]
        self.latents, self.classes, self.deter = size["latents"], size["classes"], deter
        stoch = self.latents * self.classes
        self.feature_dim = deter + stoch
        self.encoder = ImageEncoder(self.obs_shape, size["depth"])
        self.decoder = ImageDecoder(self.feature_dim, self.obs_shape, size["depth"])
        self.stoch_in = nn.Linear(stoch, units, bias=False)
        self.action_in = nn.Embedding(num_actions, units)
        self.input_norm = nn.LayerNorm(units)
        self.gates = nn.Linear(deter + units, 3 * deter, bias=False)
        self.gates_norm = nn.LayerNorm(3 * deter)
        self.image_in = nn.Linear(self.encoder.out_dim, units, bias=False)
        self.posterior_in = nn.Linear(deter, units, bias=False)
        self.posterior_norm = nn.LayerNorm(units)
        self.posterior_out = nn.Linear(units, stoch)
        self.prior_head = Head(deter, stoch, units)
        layers = size["layers"]
        self.reward_head = Head(self.feature_dim, BINS, units, layers, out_scale=0.0)
        self.continue_head = Head(self.feature_dim, 1, units, layers)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """What differs from PyTorch's initialisation, after the layers have had theirs."""
        self.action_in.weight.mul_(self.stoch_in.out_features**-0.5)
        # The update gate starts closed: the state is kept unless there is a reason to change.
        self.gates_norm.bias[2 * self.deter :] = -1.0

    @property
    def latent_types(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape of each part of a state, and a type to keep it in: for a replay's ``latents``."""
        stoch = ((self.latents * self.classes,), torch.uint8)  # one-hot: nothing is lost
        return {"deter": ((self.deter,), torch.float16), "stoch": stoch}

    def initial(self, batch: int) -> Latent:
        """The state before an episode's first observation: zeros."""
        like = self.gates_norm.weight
        stoch = like.new_zeros(batch, self.latents * self.classes)
        return Latent(like.new_zeros(batch, self.deter), stoch)

    def image(self, observation: Tensor) -> Tensor:
        """Observations as floats in [0, 1], flat ``(n, *obs_shape)``, channels_last."""
        if observation.shape[-3:] != self.obs_shape:
            raise ValueError(
                f"observations must have shape (..., {', '.join(map(str, self.obs_shape))}), "
                f"got {tuple(observation.shape)}"
            )
        x = observation.reshape(-1, *self.obs_shape).contiguous(memory_format=torch.channels_last)
        return x.to(self.gates_norm.weight.dtype).mul_(1 / 255) if x.dtype == torch.uint8 else x

    def observe(
        self,
        image: Tensor,
        action: Tensor,
        first: Tensor,
        latent: Latent | None = None,
        *,
        sample: bool = True,
        shown: Tensor | None = None,
    ) -> Observed:
        """Follow sequences of records: the posterior state at each of them.

        Args:
            image: from :meth:`image`, ``(batch * time, *obs_shape)``.
            action: taken before each record, integers ``(batch, time)``.
            first: whether a record starts an episode, ``(batch, time)``: state and action before
                it are then forgotten.
            latent: the state before the first record; zeros if there is none.
            sample: draw the latents, or take the likeliest.
            shown: which records are looked at, ``(batch, time)``, all by default; at the others
                the prior takes the place of the posterior.

        Returns: states, posterior and prior probabilities ``(batch, time, latents, classes)``.
        """
        batch, time = first.shape
        latent = self.initial(batch) if latent is None else latent
        shape = (batch, self.latents, self.classes)
        keep = (~first).to(latent.deter.dtype).t().unsqueeze(-1)
        seen = self.image_in(self.encoder(image)).view(batch, time, -1).transpose(0, 1)
        acted = self.action_in(action).transpose(0, 1) * keep
        noise = keep.new_empty(time, batch, self.latents, 1).uniform_() if sample else None
        # unbind, as indexing would fill a tensor of all steps with zeros for each step's gradient
        steps = zip(keep.unbind(), seen.unbind(), acted.unbind(), strict=True)
        deters, stochs, posteriors = [], [], []
        deter, stoch = latent
        for t, (kept, image_part, action_part) in enumerate(steps):
            deter = self._advance(deter * kept, stoch * kept, action_part)
            hidden = torch.addmm(image_part, deter, self.posterior_in.weight.t())
            hidden = silu(self.posterior_norm(hidden))
            probs = mix_uniform(self.posterior_out(hidden).view(shape))
            if shown is not None:
                probs = torch.where(shown[:, t, None, None], probs, self._prior(deter))
            stoch = self._one_hot(probs, None if noise is None else noise[t])
            deters.append(deter)
            stochs.append(stoch)
            posteriors.append(probs)
        states = Latent(torch.stack(deters, 1), torch.stack(stochs, 1))
        return Observed(states, torch.stack(posteriors, 1), self._prior(states.deter))

    def imagine(self, latent: Latent, action: Tensor, *, sample: bool = True) -> Latent:
        """The state after an action ``(n,)``, without seeing what happens."""
        deter = self._advance(*latent, self.action_in(action))
        probs = self._prior(deter)
        noise = probs.new_empty(*probs.shape[:-1], 1).uniform_() if sample else None
        return Latent(deter, self._one_hot(probs, noise))

    def _prior(self, deter: Tensor) -> Tensor:
        """Probabilities ``(..., latents, classes)`` of what a recurrent state lets expect."""
        return mix_uniform(self.prior_head(deter).unflatten(-1, (self.latents, self.classes)))

    def _advance(self, deter: Tensor, stoch: Tensor, action_part: Tensor) -> Tensor:
        x = torch.addmm(action_part, stoch, self.stoch_in.weight.t())
        x = silu(self.input_norm(x))
        gates = self.gates_norm(self.gates(torch.cat([deter, x], -1)))
        reset, candidate, update = gates.chunk(3, -1)
        return deter.lerp((reset.sigmoid() * candidate).tanh(), update.sigmoid())

    @staticmethod
    def _one_hot(probs: Tensor, noise: Tensor | None) -> Tensor:
        """Draws as one-hot ``(n, latents * classes)``; gradients go to the probabilities."""
        index = draw(probs.detach(), noise)
        stoch = torch.zeros_like(probs).scatter_(-1, index, 1.0)
        if probs.requires_grad:
            stoch = stoch + (probs - probs.detach())
        return stoch.flatten(1)


def world_size(size: str | Mapping[str, int]) -> dict[str, int]:
    """The numbers that a name of :data:`SIZES` stands for, or the given ones, checked."""
    if isinstance(size, str):
        if size not in SIZES:
            raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
        return dict(SIZES[size])
    if set(size) != set(SIZES["debug"]) or any(
        not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in size.values()
    ):
        raise ValueError(
            f"size must be a name or positive integers for {', '.join(SIZES['debug'])}, "
            f"got {dict(size)}"
        )
    return dict(size)


def world_model(env: EnvBase | Spaces, size: str | Mapping[str, int] = "small") -> WorldModel:
    """A world model of images (channels, height, width) and discrete actions.

    ``size`` is a name of :data:`SIZES`, or numbers under the same keys.
    """
    spaces = Spaces.of(env).require_discrete("world_model")
    return WorldModel(spaces.obs_shape, spaces.action_dim, world_size(size))
