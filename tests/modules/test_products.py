"""Matrix products by oneDNN on AMD's CPUs: never coarser than floats, and only where asked for."""

from __future__ import annotations

import pytest
import torch

from composerl import Update
from composerl.envs.spaces import Spaces
from composerl.losses import DreamerLoss, IQLLoss
from composerl.modules import dreamer_actor, dreamer_critic, products
from composerl.modules.products import large_products, small_products

SWITCH = torch.backends.mkldnn.matmul


@pytest.fixture
def better(monkeypatch):
    """As on a CPU where oneDNN is faster."""
    monkeypatch.setattr(products, "_better", lambda: True)


def test_the_switch_is_set_back(better):
    before = SWITCH.fp32_precision
    with large_products():
        assert SWITCH.fp32_precision == "bf16"
        with small_products(8):
            assert SWITCH.fp32_precision == "none"
        with small_products(100):
            assert SWITCH.fp32_precision == "bf16"
    assert SWITCH.fp32_precision == before
    with pytest.raises(ValueError, match="inside"), large_products():
        raise ValueError("inside")
    assert SWITCH.fp32_precision == before
    with small_products(8):  # alone it does nothing
        assert SWITCH.fp32_precision == before


def test_nothing_happens_where_it_is_not_better(monkeypatch):
    monkeypatch.setattr(products, "_better", lambda: False)
    before = SWITCH.fp32_precision
    with large_products():
        assert SWITCH.fp32_precision == before


@pytest.mark.parametrize("rows", [16, 300])
def test_products_keep_the_digits_of_floats(rows):
    """Sums of 256 terms of about 1: off by 2e-5 at most; of bfloat16 it would be 0.05."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 256, generator=generator) for n in (rows, 100))
    with large_products():
        found = x @ y.t()
    torch.testing.assert_close(found.double(), x.double() @ y.double().t(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [64, 100, 512])
def test_a_cpu_that_rounds_is_found_out(size, monkeypatch):
    """One with tiles of bfloat16, as the product with the unit matrix shows; of one size alone."""
    eye = torch.eye
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "AMD EPYC"})
    try:
        products._better.cache_clear()
        monkeypatch.setattr(torch, "eye", lambda n: eye(n) * (1 + 2**-12 * (n == size)))
        assert not products._better()
    finally:
        products._better.cache_clear()


def test_dreamer_asks_for_it_and_others_do_not(better, monkeypatch):
    seen = []
    spaces = Spaces(obs_shape=(4,), num_actions=2)
    actor = dreamer_actor(spaces, "debug")
    loss = DreamerLoss(actor.world_network, actor.actor_network, dreamer_critic(spaces, "debug"))
    for kind, asks in ((loss, True), (IQLLoss, False)):
        assert getattr(kind, "large_products", False) == asks
    update = Update(loss)

    def forward(batch):
        seen.append(SWITCH.fp32_precision)
        return {"loss": loss.value_network.last.weight.sum()}

    monkeypatch.setattr(loss, "forward", forward)
    monkeypatch.setattr(update.optimizers[0], "step", lambda: seen.append(SWITCH.fp32_precision))
    update(None)
    assert seen == ["bf16", "none"]
