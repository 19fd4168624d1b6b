"""The gradients of a sequence, derived by hand, beside those that autograd finds step by step."""

from __future__ import annotations

import pytest
import torch

from composerl.envs.spaces import Spaces
from composerl.modules import Latent, world_model

BATCH, TIME = 4, 7
SIZE = {"deter": 6, "hidden": 5, "latents": 3, "classes": 4, "units": 8, "layers": 1, "depth": 2,
        "pooled": False}  # fmt: skip


@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("started", [True, False])
def test_gradients_are_those_of_autograd(blocks, sample, started):
    """Of all weights, of what is seen and of the state at first, to the last digits of doubles.

    Records that are all shown take the way step by step.
    """
    torch.manual_seed(0)
    spaces = Spaces(obs_shape=(5,), num_actions=3)
    world = world_model(spaces, SIZE | {"blocks": blocks}).double()
    with torch.no_grad():
        for p in world.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    inputs = torch.randn(BATCH * TIME, 5, dtype=torch.float64, requires_grad=True)
    action, first = torch.randint(0, 3, (BATCH, TIME)), torch.rand(BATCH, TIME) < 0.2
    start = Latent(torch.randn(BATCH, 6).double(), torch.rand(BATCH, 12).double())
    start = Latent(*(x.requires_grad_() for x in start))
    sources = [inputs, *(start if started else ()), *world.parameters()]
    found = []
    for shown in (None, torch.ones(BATCH, TIME, dtype=torch.bool)):
        torch.manual_seed(1)
        seen = world.observe(
            inputs, action, first, start if started else None, sample=sample, shown=shown
        )
        outs = [*seen.latent, seen.posterior, seen.prior]
        torch.manual_seed(2)
        total = sum((x * torch.randn_like(x)).sum() for x in outs)
        found.append((outs, torch.autograd.grad(total, sources, allow_unused=True)))
    (outs, gradients), (others, expected) = found
    for out, other in zip(outs, others, strict=True):
        assert torch.equal(out, other)
    assert sum(x is not None for x in expected) >= 30
    for gradient, other in zip(gradients, expected, strict=True):
        assert (gradient is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(gradient, other, rtol=1e-10, atol=1e-12)
