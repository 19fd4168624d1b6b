"""What policies' distributions say of actions."""

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributions import Categorical

from composerl.losses.distributions import action_log_prob, entropy_of


@pytest.mark.parametrize("shape", [(64,), (4, 16)])
@pytest.mark.parametrize("impossible", [False, True])
def test_shortcut_of_categorical_equals_torch(shape: tuple[int, ...], impossible: bool) -> None:
    """Without torch's way to its own equations, values and gradients are the same."""
    torch.manual_seed(0)
    raw = 3 * torch.randn(*shape, 5)
    if impossible:
        raw[..., 0] = -torch.inf
    action = torch.randint(1, 5, shape)
    batch = TensorDict({"action": action}, shape)

    def told(direct: bool) -> list[Tensor]:
        logits = raw.clone().requires_grad_()
        dist = Categorical(logits=logits, validate_args=False)
        log_prob = action_log_prob(dist, batch, "action") if direct else dist.log_prob(action)
        entropy = entropy_of(dist, batch, 1) if direct else dist.entropy()
        (log_prob.exp().mean() + entropy.square().mean()).backward()
        assert logits.grad is not None
        return [log_prob, entropy, logits.grad]

    for ours, torchs in zip(told(True), told(False), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-7, equal_nan=True)


def test_categorical_of_probabilities() -> None:
    """Its logits are made of the probabilities, and not the other way around."""
    probs = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    batch = TensorDict({"action": torch.tensor([1, 0])}, [2])
    dist, torchs = (Categorical(probs=probs, validate_args=False) for _ in range(2))
    assert torch.equal(action_log_prob(dist, batch, "action"), torchs.log_prob(batch["action"]))
    assert torch.equal(entropy_of(dist, batch, 1), torchs.entropy())
