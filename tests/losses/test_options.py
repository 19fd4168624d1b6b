"""Options and keys of TorchRL's losses: all are taken, and do what they are named for."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields

import pytest
import torch
import torchrl.objectives as stock
from losses.examples import BOX, DISCRETE, EXAMPLES, continuous_batch, cql, discrete_cql, ppo, sac
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import GAE, TD0Estimator

from composerl import losses
from composerl.losses import ClipPPOLoss, CQLLoss, SACLoss, XQLLoss
from composerl.modules import categorical_actor, tanh_gaussian_actor, twin_q, value

NAMESAKES = [
    "BCLoss", "CQLLoss", "ClipPPOLoss", "DiscreteCQLLoss", "GAILLoss", "IQLLoss", "SACLoss",
    "TD3BCLoss",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMESAKES)
def test_takes_every_argument_of_its_namesake(name):
    mine, theirs = getattr(losses, name), getattr(stock, name)
    taken = set(mine.further)
    for base in mine.__mro__:
        taken |= set(inspect.signature(base.__init__).parameters)
    assert set(inspect.signature(theirs).parameters) <= taken


@pytest.mark.parametrize("name", NAMESAKES)
def test_keys_of_its_namesake_can_be_set(name):
    loss, _ = EXAMPLES[name][0]()
    for field in fields(getattr(stock, name)._AcceptedKeys):
        if field.name == "pad_mask":  # of chunks of actions: rows are masked like everywhere
            with pytest.raises(ValueError, match="pad_mask is not an accepted"):
                loss.set_keys(pad_mask="other")
            continue
        loss.set_keys(**{field.name: "other"})
        assert getattr(loss.tensor_keys, field.name) == "other"


def test_what_cannot_be_honoured_is_refused_by_name():
    with pytest.raises(TypeError, match=r"SACLoss has no arguments \['delay_valeu'\]"):
        sac(delay_valeu=True)
    with pytest.raises(ValueError, match=r"priority_key='p' cannot be honoured.*set_keys"):
        sac(priority_key="p")
    with pytest.raises(ValueError, match="scalar_output_mode must be"):
        sac(scalar_output_mode="all")
    with pytest.raises(TypeError, match="value_network"):
        cql(value_network=value(BOX))


@pytest.mark.parametrize("make", [sac, cql])
def test_without_delay_the_target_is_the_network_itself(make):
    torch.manual_seed(0)
    loss, batch = make(delay_qvalue=False)
    assert loss.target_qvalue_network is loss.qvalue_network
    assert "target_qvalue_network" not in dict(loss.named_modules())
    delayed, _ = make(delay_actor=True)
    assert [delayed.delay_qvalue, delayed.delay_actor, loss.delay_actor] == [True, True, False]
    torch.manual_seed(1)
    expected = loss(batch.clone())
    updater = stock.SoftUpdate(delayed, eps=0.5)
    with torch.no_grad():
        for p in delayed.target_actor_network.parameters():
            p.add_(1.0)
    torch.manual_seed(1)
    out = delayed(batch.clone())
    torch.testing.assert_close(out["loss_actor"], expected["loss_actor"])
    assert out["loss_qvalue"] != expected["loss_qvalue"]  # another actor chose the next action
    updater.step()
    pairs = zip(
        delayed.target_actor_network.parameters(), delayed.actor_network.parameters(), strict=True
    )
    assert all(torch.allclose(target, p + 0.5) for target, p in pairs)


def test_discrete_cql_without_delay_uses_its_own_values():
    (one, batch), (two, _) = discrete_cql(delay_value=False), discrete_cql(double_dqn=False)
    with torch.no_grad():
        for p in [*one.value_network.parameters(), *two.value_network.parameters()]:
            p.add_(0.3)
    two.target_value_network.load_state_dict(two.value_network.state_dict())
    torch.testing.assert_close(one(batch.clone())["loss_qvalue"], two(batch)["loss_qvalue"])


def test_value_network_of_the_first_paper():
    """V is drawn to min Q - alpha log pi at the policy's own action; Q to r + gamma V(s')."""
    loss, batch = sac(value_network=value(BOX, (8,)), gamma=0.9, alpha_init=0.4)
    with torch.no_grad():
        for p in [
            *loss.target_value_network.parameters(),
            *loss.target_qvalue_network.parameters(),
        ]:
            p.add_(0.1)
    torch.manual_seed(2)
    out = loss(batch.clone())
    torch.manual_seed(2)
    action, log_prob = loss._act(batch)
    s, s2 = batch["observation"], batch["next", "observation"]
    q = torch.stack([net.module(s, action) for net in loss.target_qvalue_network]).squeeze(-1)
    worth = (q.amin(0) - 0.4 * log_prob).detach()
    v = loss.value_network.module(s).squeeze(-1)
    torch.testing.assert_close(out["loss_value"], (v - worth).square().mean())
    live = (~batch["next", "terminated"]).float()
    y = batch["next", "reward"] + 0.9 * live * loss.target_value_network.module(s2)
    q = torch.stack([net.module(s, batch["action"]) for net in loss.qvalue_network])
    torch.testing.assert_close(out["loss_qvalue"], (q - y).square().sum(0).mean())
    out["loss_value"].backward()
    assert all(p.grad.norm() > 0 for p in loss.value_network.parameters())
    others = [*loss.actor_network.parameters(), *loss.qvalue_network.parameters()]
    assert all(p.grad is None for p in others)
    assert loss.out_keys[-1] == "loss_value"


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"min_alpha": 0.5}, 0.5), ({"max_alpha": 0.05}, 0.05), ({"min_alpha": 0.01}, 0.1)],
)
def test_temperature_stays_between_its_bounds(options, expected):
    for make in (sac, cql):
        loss, batch = make(alpha_init=0.1, **options)
        assert loss(batch)["alpha"].item() == pytest.approx(expected)
    with pytest.raises(ValueError, match="max_alpha"):
        sac(min_alpha=0.5, max_alpha=0.1)


def test_skipped_done_states_may_hold_anything():
    loss, batch = sac(skip_done_states=True, gamma=0.9)
    done = batch["next", "done"].squeeze(-1)
    batch["next", "observation"][done] = math.nan
    out = loss(batch)
    assert out.isfinite().all()
    q = torch.stack(
        [net.module(batch["observation"], batch["action"]) for net in loss.qvalue_network]
    )
    error = (q - batch["next", "reward"]).square().amax(0).squeeze(-1)
    torch.testing.assert_close(batch["td_error"][done], error[done].detach())


def test_metrics_of_rows_can_be_left_out_or_averaged():
    plain, batch = sac(reduction="none")
    torch.manual_seed(1)
    rows = plain(batch.clone())
    assert rows["entropy"].shape == batch.shape
    left_out, _ = sac(reduction="none", scalar_output_mode="exclude")
    assert set(left_out(batch.clone()).keys()) == {"loss_actor", "loss_qvalue", "loss_alpha"}
    averaged, _ = sac(reduction="none", scalar_output_mode="non_tensor")
    torch.manual_seed(1)
    out = averaged(batch.clone())
    torch.testing.assert_close(out["entropy"], rows["entropy"].mean())
    torch.testing.assert_close(out["alpha"], torch.tensor(1.0))


def test_priority_weights_can_be_ignored():
    batch = continuous_batch().set("priority_weight", torch.linspace(0, 1, 8))
    results = []
    for use in ("auto", False):
        loss, _ = sac(use_prioritized_weights=use)
        torch.manual_seed(1)
        results.append(loss(batch.clone())["loss_qvalue"])
    loss, bare = sac()
    torch.manual_seed(1)
    assert results[0] != results[1] == loss(bare)["loss_qvalue"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_selected_outputs_alone_are_given(name):
    loss, batch = EXAMPLES[name][0]()
    every, given = list(loss.out_keys), {*loss(batch.clone()).keys()}
    for chosen in ([every[0]], [every[-1], every[0]], every):
        assert loss.select_out_keys(*chosen) is loss
        assert {*loss(batch.clone()).keys()} == {*loss.out_keys} == {*chosen}
        loss.reset_out_keys()
        assert {*loss.out_keys} == {*every}
        assert {*loss(batch.clone()).keys()} == given  # unnamed metrics too
    with pytest.raises(ValueError, match="nothing"):
        loss.select_out_keys("nothing")


@pytest.mark.parametrize("name", EXAMPLES)
def test_value_estimators_are_used_or_refused(name):
    """A discount of 0 must change a loss; what has no targets, or no use for one, says so."""
    loss, batch = EXAMPLES[name][0]()
    if loss.default_value_estimator is None:
        for kind in (None, ValueEstimators.TD0, TD0Estimator):
            with pytest.raises(NotImplementedError, match=f"{name} has no targets"):
                loss.make_value_estimator(kind)
        return
    if name == "ClipPPOLoss":
        batch = batch.exclude("advantage", "value_target")
    else:
        for kind in (GAE, GAE(gamma=0.9, lmbda=0.9, value_network=None)):
            with pytest.raises(NotImplementedError, match="GAE makes advantages"):
                loss.make_value_estimator(kind)
    with pytest.raises(TypeError, match=r"TD0Estimator is made already and takes no .*gamma"):
        loss.make_value_estimator(TD0Estimator(gamma=0.9, value_network=None), gamma=0.5)
    results = []
    for kind, options in (
        (ValueEstimators.TD0, {"gamma": 0.9}),
        (TD0Estimator, {"gamma": 0.0, "value_network": None}),
        (TD0Estimator(gamma=0.0, value_network=None), {}),
    ):
        loss.make_value_estimator(kind, **options)
        torch.manual_seed(0)
        out = loss(batch.clone())
        results.append(sum(out[key] for key in out.keys() if key.startswith("loss_")))  # noqa: SIM118
    assert results[0] != results[1] == results[2]


@pytest.mark.parametrize("key", ["move", ("agent", "move")])
@pytest.mark.parametrize("make", [SACLoss, CQLLoss, XQLLoss])
def test_actions_of_any_name(make, key):
    """The name is the actor's; the numbers are those under the usual name."""

    def renamed(name):
        torch.manual_seed(0)
        network = tanh_gaussian_actor(BOX, (8,)).module[0]
        spec = Bounded(torch.tensor(BOX.low), torch.tensor(BOX.high))
        limits = {"low": spec.space.low, "high": spec.space.high}
        actor = ProbabilisticActor(
            network, ["loc", "scale"], [name], spec=Composite({name: spec}),
            distribution_class=TanhNormal, distribution_kwargs=limits,
        )  # fmt: skip
        critics = [
            TensorDictModule(c.module, ["observation", name], ["state_action_value"])
            for c in twin_q(BOX, (8,))
        ]
        if make is XQLLoss:
            return XQLLoss(actor, critics, value(BOX, (8,)), sample_random_times=2)
        return make(actor, critics)

    batch = continuous_batch()
    other = batch.exclude("action").set(key, batch["action"])
    outputs = []
    for name, data in (("action", batch), (key, other)):
        loss = renamed(name)
        assert name in loss.in_keys
        torch.manual_seed(1)
        outputs.append(loss(data))
    for a, b in zip(*(out.values() for out in outputs), strict=True):
        torch.testing.assert_close(a, b)


class PartsCritic(nn.Linear):
    def forward(self, observation, action):
        return super().forward(torch.cat([observation, action["arm"], action["leg"]], -1))


def test_sac_on_an_action_of_parts():
    """Log-probabilities of the parts add up, and so do the dimensions in the target entropy."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.arm = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
            self.leg = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())

        def forward(self, observation):
            return *self.arm(observation), *self.leg(observation)

    torch.manual_seed(0)
    names = [("params", part, number) for part in ("arm", "leg") for number in ("loc", "scale")]
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(Two(), ["observation"], names),
        ProbabilisticTensorDictModule(
            ["params"], ["action"], distribution_class=CompositeDistribution,
            distribution_kwargs={"distribution_map": {"arm": TanhNormal, "leg": TanhNormal}},
        ),
    )  # fmt: skip
    spec = Composite({"action": {"arm": Bounded(-1, 1, (2,)), "leg": Unbounded((1,))}})
    critics = [
        TensorDictModule(PartsCritic(6, 1), ["observation", "action"], ["state_action_value"])
        for _ in range(2)
    ]
    loss = SACLoss(actor, critics, action_spec=spec)
    assert loss.target_entropy.item() == -3
    batch = continuous_batch()
    batch["action"] = TensorDict({"arm": torch.zeros(8, 2), "leg": torch.zeros(8, 1)}, [8])
    torch.manual_seed(1)
    out = loss(batch)
    torch.manual_seed(1)
    dist = actor.get_dist(batch.select("observation"))
    parts = dist.rsample()
    log_prob = dist.dists["arm"].log_prob(parts["arm"]) + dist.dists["leg"].log_prob(parts["leg"])
    torch.testing.assert_close(out["entropy"], -log_prob.mean().detach(), rtol=1e-3, atol=1e-3)
    assert "params" not in loss.in_keys
    with pytest.raises(ValueError, match="bounded actions are needed"):
        CQLLoss(actor, critics, action_spec=spec)


def test_sac_needs_no_bounds_but_the_size_of_an_action():
    loss = SACLoss(tanh_gaussian_actor(BOX, (8,)), twin_q(BOX, (8,)), action_spec=Unbounded((2,)))
    assert loss.target_entropy.item() == -2
    assert loss(continuous_batch()).isfinite().all()
    with pytest.raises(ValueError, match="pass an action_spec"):
        SACLoss(ProbabilisticTensorDictSequential(*tanh_gaussian_actor(BOX).module), twin_q(BOX))


def test_a_shared_trunk_learns_from_the_actor_alone_if_losses_are_separate():
    trunk = TensorDictModule(nn.Linear(3, 4), ["observation"], ["hidden"])
    head = TensorDictModule(
        nn.Sequential(nn.Linear(4, 4), NormalParamExtractor()), ["hidden"], ["loc", "scale"]
    )
    act = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=TanhNormal)

    class Q(nn.Linear):
        def forward(self, hidden, action):
            return super().forward(torch.cat([hidden, action], -1))

    q = TensorDictModule(Q(6, 1), ["hidden", "action"], ["state_action_value"])
    for separate in (True, False):
        loss = SACLoss(
            ProbabilisticTensorDictSequential(trunk, head, act),
            [TensorDictSequential(trunk, q)],
            num_qvalue_nets=1, action_spec=Unbounded((2,)), separate_losses=separate,
        )  # fmt: skip
        loss(continuous_batch())["loss_qvalue"].backward()
        assert (trunk.module.weight.grad is None) == separate
        assert q.module.weight.grad.norm() > 0
        loss.zero_grad()
        loss(continuous_batch())["loss_actor"].backward()
        assert trunk.module.weight.grad.norm() > 0
        loss.zero_grad()


# ---- PPO -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, ValueEstimators.TD0])
def test_ppo_makes_its_advantages_by_the_estimator_it_was_given(kind):
    loss, batch = ppo()
    batch = batch.exclude("advantage", "value_target", "state_value")
    if kind is None:
        other = GAE(gamma=0.9, lmbda=0.8, value_network=loss.critic_network)
        loss.make_value_estimator(gamma=0.9, lmbda=0.8)
    else:
        other = TD0Estimator(gamma=0.5, value_network=loss.critic_network)
        loss.make_value_estimator(kind, gamma=0.5)
    out, expected = loss(batch), loss(other(batch.clone()))
    assert batch.get("advantage", None) is None
    for key, number in out.items():
        torch.testing.assert_close(number, expected[key])
    loss(batch)["loss_critic"].backward()
    assert all(p.grad is None for p in loss.actor_network.parameters())


def test_ppo_normalises_advantages_over_the_rows_that_count():
    loss, batch = ppo(normalize_advantage=True)
    plain, _ = ppo()
    mask = torch.arange(8) < 5
    for rows in (None, mask):
        given, scaled = batch.clone(), batch.clone()
        counted = batch["advantage"] if rows is None else batch["advantage"][rows]
        scaled["advantage"] = (batch["advantage"] - counted.mean()) / counted.std(correction=0)
        if rows is not None:
            given["collector", "mask"] = scaled["collector", "mask"] = rows
        expected = plain(scaled)["loss_objective"]
        torch.testing.assert_close(loss(given)["loss_objective"], expected)


def test_ppo_clips_down_and_up_by_different_numbers():
    """Ratios 0.5 and 2 with advantages -1 and 1 are paid as 1 - 0.1 and 1 + 0.4."""
    loss, batch = ppo(clip_epsilon=(0.1, 0.4))
    batch = loss.annotate(batch)[:2].clone()
    batch["action_log_prob"] -= torch.tensor([0.5, 2.0]).log()
    batch["advantage"] = torch.tensor([[-1.0], [1.0]])
    assert loss(batch)["loss_objective"].item() == pytest.approx((0.9 - 1.4) / 2)
    assert loss(batch)["clip_fraction"] == 1
    with pytest.raises(ValueError, match="two numbers"):
        ppo(clip_epsilon=(0.1, 0.2, 0.3))


@pytest.mark.parametrize("options", [{"clip_value": True}, {"clip_value": torch.tensor(0.2)}])
def test_ppo_value_clip_of_the_ratio(options):
    (one, batch), (two, _), (off, _) = ppo(**options), ppo(clip_value=0.2), ppo(clip_value=False)
    torch.testing.assert_close(one(batch)["loss_critic"], two(batch)["loss_critic"])
    assert off(batch)["loss_critic"] == ppo()[0](batch)["loss_critic"] != one(batch)["loss_critic"]


def test_ppo_entropy_options():
    silent, batch = ppo(entropy_bonus=False)
    assert silent(batch).get("loss_entropy", None) is None
    many, batch = ppo(actions=None, make=tanh_gaussian_actor, samples_mc_entropy=500)
    torch.manual_seed(0)
    first = many(batch)["entropy"]
    spread = torch.stack([many(batch)["entropy"] - first for _ in range(5)]).abs().max()
    assert 0 < spread < 0.1


def test_ppo_explains_variance():
    loss, batch = ppo(log_explained_variance=True)
    v = loss.critic_network.module(batch["observation"])
    error = (batch["value_target"] - v).var(correction=0)
    expected = 1 - error / batch["value_target"].var(correction=0)
    torch.testing.assert_close(loss(batch)["explained_variance"], expected.detach())


@pytest.mark.parametrize("separate", [True, False])
def test_ppo_critic_reads_on_where_the_actor_is(separate):
    """A value head on what the actor's trunk writes equals a critic with the trunk in it."""
    trunk = TensorDictModule(nn.Linear(3, 4), ["observation"], ["hidden"])
    policy = TensorDictModule(nn.Linear(4, 3), ["hidden"], ["logits"])
    act = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical
    )
    actor = ProbabilisticTensorDictSequential(trunk, policy, act)
    head = TensorDictModule(nn.Linear(4, 1), ["hidden"], ["state_value"])
    _, batch = ppo()
    results = []
    for critic in (head, TensorDictSequential(trunk, head)):
        loss = ClipPPOLoss(actor, critic, separate_losses=separate)
        assert "hidden" not in loss.in_keys
        out = loss(batch.clone())
        out["loss_critic"].backward()
        assert (trunk.module.weight.grad is None) == separate
        loss.zero_grad()
        results.append(out["loss_critic"])
    torch.testing.assert_close(*results)


def test_ppo_on_an_action_of_parts():
    """Two coins thrown together: log-probabilities and entropies add up."""
    names = [("params", "one", "logits"), ("params", "two", "logits")]

    class Two(nn.Linear):
        def forward(self, observation):
            return super().forward(observation).chunk(2, -1)

    coins = dict.fromkeys(("one", "two"), torch.distributions.Categorical)
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(Two(3, 4), ["observation"], names),
        ProbabilisticTensorDictModule(
            ["params"], ["one", "two"], distribution_class=CompositeDistribution,
            distribution_kwargs={"distribution_map": coins}, return_log_prob=True,
        ),
    )  # fmt: skip
    loss = ClipPPOLoss(actor, value(DISCRETE, (8,)))
    loss.set_keys(action=["one", "two"], sample_log_prob=["one_log_prob", "two_log_prob"])
    _, batch = ppo()
    batch["one"], batch["two"] = torch.arange(8) % 2, torch.arange(8) // 4
    one, two = actor.module[0].module(batch["observation"])
    dists = [torch.distributions.Categorical(logits=x.detach()) for x in (one, two)]
    batch["one_log_prob"] = dists[0].log_prob(batch["one"])
    batch["two_log_prob"] = dists[1].log_prob(batch["two"])
    out = loss(batch)
    assert out["kl_approx"].item() == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(out["entropy"], sum(d.entropy() for d in dists).mean())


def test_ppo_reads_the_names_that_its_actor_gives():
    actor = categorical_actor(DISCRETE, (8,))
    head = ProbabilisticTensorDictModule(
        ["logits"], ["move"], distribution_class=torch.distributions.Categorical,
        return_log_prob=True, log_prob_key="move_lp",
    )  # fmt: skip
    loss = ClipPPOLoss(
        ProbabilisticTensorDictSequential(actor.module[0], head), value(DISCRETE, (8,))
    )
    assert (loss.tensor_keys.action, loss.tensor_keys.sample_log_prob) == ("move", "move_lp")


@pytest.mark.parametrize(
    "options",
    [
        {"advantage_key": "a"},
        {"delay_actor": True},
        {"max_importance_ratio": 2.0},
        {"normalize_advantage_exclude_dims": (1,)},
    ],
)
def test_ppo_refuses_what_it_cannot_honour(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}=.* cannot be honoured: "):
        ppo(**options)
