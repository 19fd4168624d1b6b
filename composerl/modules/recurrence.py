"""The recurrent state of a world model: one step of it."""

import torch
from torch import Tensor, nn

from composerl.modules.world_parts import EPSILON, BlockLinear, Dense, Linear, join, silu, tanh
from composerl.modules.world_size import WorldSize

__all__ = ["Recurrence"]


class Recurrence(nn.Module):
    r"""DreamerV3's block-diagonal GRU (Hafner et al. 2023, arXiv 2301.04104).

    With dense layers (RMSNorm, SiLU) d, s and a of state, latents and action, and M and G
    block-diagonal in the state, so that the blocks meet in d, s and a alone

    .. math::
        x &= silu(norm(M h + W [d(h), s(z), a(u)])) \\
        r, c, u &= G x \\
        h' &= h + \sigma(u - 1) \, (\tanh(\sigma(r) \, c) - h)

    The authors repeat the layers in front for each block; that is the dense W. What the action
    adds to x depends on no state and is asked for first, by :meth:`acted`, for all steps of a
    sequence together.
    """

    def __init__(self, size: WorldSize, action_dim: int) -> None:
        super().__init__()
        deter, hidden = size.deter, size.hidden
        self.deter_in = Dense(deter, hidden)
        self.stoch_in = Dense(size.stoch, hidden)
        self.action_in = Dense(action_dim, hidden)
        fan_in = deter + 3 * hidden * size.blocks
        self.mix = BlockLinear(deter, deter, size.blocks, fan_in)
        self.mix_in = Linear(2 * hidden, deter, bias=False, fan_in=fan_in)
        self.mix_action = Linear(hidden, deter, bias=False, fan_in=fan_in)
        self.norm = nn.RMSNorm(deter, eps=EPSILON)
        self.gates = BlockLinear(deter, 3 * deter, size.blocks)

    def acted(self, action: Tensor) -> Tensor:
        """What actions ``(..., action)`` add to the inside of a step, ``(..., deter)``."""
        return self.mix_action(self.action_in(action))

    def forward(self, deter: Tensor, stoch: Tensor, acted: Tensor) -> Tensor:
        """The next state, each ``(batch, ...)``."""
        return self.step(deter, stoch, acted)[0]

    def step(
        self, deter: Tensor, stoch: Tensor, acted: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """The next state, and what is within: in front of the three norms, and the gates."""
        before = self.mix.split(deter)
        of_deter, of_stoch = self.deter_in.linear(deter), self.stoch_in.linear(stoch)
        inputs = [self.deter_in.after(of_deter), self.stoch_in.after(of_stoch)]
        x = torch.addmm(acted, torch.cat(inputs, -1), self.mix_in.weight.t())
        x = x + join(self.mix(before))
        gates = self.gates(self.gates.split(silu(self.norm(x))))
        reset, candidate, update = gates.chunk(3, -1)
        # The update gate starts nearly closed: the state is kept unless there is a reason.
        after = before.lerp(tanh(reset.sigmoid() * candidate), (update - 1).sigmoid())
        return join(after), (of_deter, of_stoch, x, gates)
