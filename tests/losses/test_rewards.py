"""The imitation reward: its three forms, the environment's own reward, the absorbing state."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from composerl.losses import GAILLoss, GAILReward, gail_reward
from composerl.update import Update


class Given(nn.Module):
    """The logits are the observation."""

    def forward(self, observation, action):
        return observation


GIVEN = TensorDictModule(Given(), ["observation", "action"], ["logits"])


def steps(logits, terminated=None, reward=None):
    logits = torch.as_tensor(logits).unsqueeze(-1)
    ends = torch.zeros_like(logits, dtype=torch.bool)
    if terminated is not None:
        ends[torch.as_tensor(terminated)] = True
    reward = torch.ones_like(logits) if reward is None else reward
    return TensorDict(
        {
            "observation": logits,
            "action": torch.zeros(*logits.shape[:-1], dtype=torch.long),
            "next": {"reward": reward, "terminated": ends},
        },
        logits.shape[:-1],
    )


def test_forms_by_hand():
    """D = 3/4 at l = log 3: -log(1 - D) = log 4, log D = log(3/4), log D - log(1 - D) = log 3."""
    logits = torch.tensor([math.log(3.0)])
    assert gail_reward(logits).item() == pytest.approx(math.log(4))
    assert gail_reward(logits, "softplus").item() == pytest.approx(math.log(4))
    assert gail_reward(logits, "log_d").item() == pytest.approx(math.log(0.75))
    assert gail_reward(logits, "airl").item() == pytest.approx(math.log(3))


def test_forms_stay_finite_and_keep_their_sign():
    logits = torch.linspace(-200, 200, 401)
    assert (gail_reward(logits) >= 0).all()
    assert (gail_reward(logits, "log_d") <= 0).all()
    for kind in ("softplus", "log_d", "airl"):
        reward = gail_reward(logits, kind)
        assert reward.isfinite().all()
        assert (reward.diff() >= 0).all(), f"{kind} must grow with the logits"
    with pytest.raises(ValueError, match="must be one of"):
        gail_reward(logits, "linear")


@pytest.mark.parametrize("options", [{}, {"gamma": 0.9, "expert_terminated": 0.01}])
@pytest.mark.filterwarnings("ignore:episodes end at different times")
def test_the_environment_s_reward_is_kept_and_never_used(options):
    module = GAILReward(GIVEN, **options)
    noise = torch.randn(4, 1)
    plain, noisy = (
        module(steps([0.0, 1.0, -1.0, 2.0], [3], reward)) for reward in (torch.ones(4, 1), noise)
    )
    torch.testing.assert_close(plain["next", "reward"], noisy["next", "reward"], rtol=0, atol=0)
    assert torch.equal(noisy["next", "env_reward"], noise)
    again = module(noisy.clone())
    assert torch.equal(again["next", "env_reward"], noise)
    torch.testing.assert_close(again["next", "reward"], noisy["next", "reward"])
    assert not noisy["next", "reward"].requires_grad


def test_batches_of_a_collector():
    logits = torch.randn(3, 5)
    out = GAILReward(GIVEN, "airl")(steps(logits))
    assert torch.equal(out["next", "reward"].squeeze(-1), logits)


def test_absorbing_state_by_hand():
    """gamma 0.75: each end is followed by 4 absorbing steps.

    Policy: 1 end in 3 steps, and half an end for what was not seen: rate 1.5 / 4, so 1.5 absorbing
    steps for each living one; shares 3/5 and 2/5. Expert: rate 1/4, so 1 absorbing step for each
    living one; shares 1/2 and 1/2. Living: log(1/2 / 2/5) = log(5/4). Absorbing: log(1/2 / 3/5) =
    log(5/6), whose AIRL reward for ever after is worth 3 log(5/6) at the step that ends.
    """
    module = GAILReward(GIVEN, "airl", gamma=0.75, expert_terminated=0.25)
    out = module(steps([0.0, 1.0, 2.0], [1]))["next", "reward"].squeeze(-1)
    alive = math.log(5 / 4)
    expected = [alive, 1 + alive + 3 * math.log(5 / 6), 2 + alive]
    torch.testing.assert_close(out, torch.tensor(expected))


@pytest.mark.parametrize("kind", ["softplus", "log_d", "airl"])
def test_equal_rates_change_nothing_but_the_value_of_the_end(kind):
    """Where both end equally often the absorbing logits are 0: an end is as good as life with them.

    A policy that cannot be told from the expert (logits 0) then gains r(0) / (1 - gamma) from
    every step on, ending or not: it has no reason to live longer, nor to end earlier.
    """
    module = GAILReward(GIVEN, kind, gamma=0.9, expert_terminated=1.5 / 11)
    out = module(steps(torch.zeros(10), [9]))["next", "reward"].squeeze(-1)
    each = gail_reward(torch.zeros(()), kind)
    torch.testing.assert_close(out[:9], each.expand(9))
    torch.testing.assert_close(out[9], each / (1 - 0.9))


def test_closed_form_is_what_a_discriminator_learns():
    """Second rendition: a discriminator with one logit for living and one for absorbing rows.

    Expert: 1 end in 20 steps, policy: 1 in 5; gamma 0.9 adds 10 absorbing rows for each end.
    """

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(2))

        def forward(self, observation, action):
            return self.logits[observation.long().squeeze(-1)].unsqueeze(-1)

    network = Two()
    loss = GAILLoss(TensorDictModule(network, ["observation", "action"], ["logits"]))
    update = Update(loss, lr=0.05)

    def rows(living, absorbing):
        kinds = torch.cat([torch.zeros(living, 1), torch.ones(absorbing, 1)])
        return {"observation": kinds, "action": torch.zeros_like(kinds)}

    for _ in range(500):
        update(TensorDict({**rows(5, 10), "expert": TensorDict(rows(20, 10))}))
    module = GAILReward(GIVEN, gamma=0.9, expert_terminated=1 / 20)
    ends = torch.zeros(100_000, 1, dtype=torch.bool)
    ends[::5] = True
    alive, absorbing = module.absorbing_logits(ends)
    torch.testing.assert_close(
        network.logits.detach(), torch.stack([alive, absorbing]), atol=1e-3, rtol=1e-3
    )


def test_an_expert_that_ends_early_makes_ending_worth_while():
    """The always-left expert: 1 end in 9 steps. A policy that lives on is not paid for it."""
    early = GAILReward(GIVEN, gamma=0.99, expert_terminated=1 / 9)
    living = torch.full((1000,), -1.0)  # told from the expert most of the time
    out = early(steps(living, [500]))["next", "reward"].squeeze(-1)
    assert out[500] > 99 * out[0]  # an end is worth more than living on for ever
    late = GAILReward(GIVEN, gamma=0.99, expert_terminated=0.5 / 5001)
    out = late(steps(living, list(range(0, 1000, 20))))["next", "reward"].squeeze(-1)
    assert out[0] < 0.1 * 99 * out[1]  # and the other way round


@pytest.mark.parametrize(
    ("kind", "message"),
    [("softplus", "positive: living is paid for"), ("log_d", "negative: ending is paid for")],
)
def test_warns_of_a_reward_of_one_sign_where_episodes_end(kind, message):
    biased = GAILReward(GIVEN, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        biased(steps([0.0, 1.0]))  # nothing ends
        GAILReward(GIVEN, "airl")(steps([0.0, 1.0], [1]))
        GAILReward(GIVEN, kind, gamma=0.9, expert_terminated=0.1)(steps([0.0, 1.0], [1]))
    with pytest.warns(UserWarning, match=message):
        biased(steps([0.0, 1.0], [1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        biased(steps([0.0, 1.0], [1]))  # once is enough


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "linear"}, "kind must be one of"),
        ({"expert_terminated": 0.0, "gamma": 0.9}, "expert_terminated"),
        ({"expert_terminated": 0.1}, "gamma must be in"),
        ({"expert_terminated": 0.1, "gamma": 1.0}, "gamma must be in"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        GAILReward(GIVEN, **options)


def test_wrong_shape_is_refused():
    batch = steps([0.0, 1.0])
    batch["next", "reward"] = torch.zeros(2)
    with pytest.raises(ValueError, match=r"logits must have the reward's shape \(2,\)"):
        GAILReward(GIVEN)(batch)
