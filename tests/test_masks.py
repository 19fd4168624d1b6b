"""Action masks, from the environment, which fails on other actions, to the exported policy."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from masked_env import Doors
from recipes.harness import RECIPES, load_recipe, metrics, run_in_process, small_config, weights
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.modules import MaskedCategorical, MaskedOneHotCategorical, ProbabilisticActor

import composerl
from composerl import Policy
from composerl.cli import main
from composerl.data import VectorCollector, load_dataset
from composerl.envs import Spaces, make_env
from composerl.losses import BCLoss, ClipPPOLoss, DiscreteCQLLoss, FQFLoss, IQNLoss
from composerl.modules import (
    categorical_actor,
    dreamer_actor,
    fqf_network,
    gaussian_actor,
    iqn_network,
    q_network,
    value,
)

PATHS = {path.stem: path for path in RECIPES}
IDS = ("Doors-v0", "InfoDoors-v0")
FACTORIES = (iqn_network, fqf_network, q_network, categorical_actor)

every_id = pytest.mark.parametrize("name", IDS)
every_factory = pytest.mark.parametrize("factory", FACTORIES)


def taken_are_allowed(batch: TensorDict) -> bool:
    return batch["action_mask"].gather(-1, batch["action"].unsqueeze(-1)).all().item()


@every_id
@pytest.mark.parametrize("number", [None, 1, 3])
def test_environments_show_their_masks(name, number):
    torch.manual_seed(0)
    env = make_env(name, number, seed=0)
    spaces = Spaces.of(env)
    assert spaces == Spaces.of(name)
    assert spaces.masked
    assert spaces.obs_shape == (7,)
    assert Spaces(**json.loads(json.dumps(spaces.to_json()))) == spaces
    rows = env.rollout(60, break_when_any_done=False)  # random actions, many episodes
    assert rows["next", "done"].sum() >= 3  # an episode has 20 steps at most
    assert taken_are_allowed(rows)
    assert rows["next", "action_mask"].dtype == torch.bool
    alive = ~rows["next", "done"][..., :-1, 0]
    following, next_ones = rows["action_mask"][..., 1:, :], rows["next", "action_mask"][..., :-1, :]
    assert torch.equal(following[alive], next_ones[alive])


def test_an_environment_without_a_mask_stays_as_it_is():
    assert not Spaces.of("CartPole-v1").masked
    assert "masked" not in Spaces.of("CartPole-v1").to_json()


@every_id
@pytest.mark.parametrize("number", [None, 3])
@every_factory
def test_collectors_keep_to_the_masks_and_give_the_same_rows(name, number, factory):
    torch.manual_seed(0)
    actor = factory(Spaces.of(name), (8, 8))
    if factory is not categorical_actor:
        actor.epsilon = 0.5
    ours = VectorCollector(
        make_env(name, number), actor, frames_per_batch=60, init_random_frames=60, seed=1
    )
    assert ours.fast
    stock = Collector(make_env(name, number, seed=1), actor, frames_per_batch=60,
                      init_random_frames=60)  # fmt: skip
    for collector in (ours, stock):
        first, second, third = (next(iter(collector)) for _ in range(3))
        for batch in (first, second, third):
            assert taken_are_allowed(batch)
            # the rows follow each other
            alive = ~batch["next", "done"][..., :-1, 0]
            for key in ("observation", "action_mask"):
                now, before = batch[key][..., 1:, :], batch["next", key][..., :-1, :]
                assert torch.equal(now[alive], before[alive]), key


@every_factory
def test_a_collector_resumes_exactly_between_masks(factory):
    actor = factory(Spaces.of("Doors-v0"), (8, 8))

    def collector():
        return VectorCollector(make_env("Doors-v0", 2), actor, frames_per_batch=10, seed=3)

    whole = collector()
    for _ in range(3):
        whole.next()
    other = collector()
    other.load_state_dict(whole.state_dict())
    batches = []
    for c in (whole, other):
        torch.manual_seed(5)
        batches.append(torch.cat([c.next() for _ in range(3)], 1))
    for key in ("observation", "action_mask", "action", ("next", "action_mask")):
        assert torch.equal(batches[0][key], batches[1][key]), key


@pytest.mark.parametrize("make", [IQNLoss, FQFLoss, DiscreteCQLLoss])
def test_the_target_takes_the_best_allowed_action(make):
    """A network whose value of action a is a, whatever the state: without a mask the best next one
    is 3, so the target is r + 0.5 * 3 = 2.5; with 3 and 2 forbidden 1.5; a row that allows nothing
    (its episode is over) is taken as it is. CQL's soft maximum: log(1 + e) of actions 0 and 1."""

    class Ladder(torch.nn.Module):
        in_keys = ["observation"]  # noqa: RUF012

        def __init__(self):
            super().__init__()
            self.values = torch.nn.Parameter(torch.arange(4.0))

        def features(self, observation):
            return observation

        def quantiles(self, features, taus):
            return self.values[:, None].expand(len(features), 4, taus.shape[-1])

        def forward(self, observation):
            return self.values.expand(len(observation), 4)

    class Thirds(torch.nn.Module):
        def forward(self, features):
            taus = torch.linspace(0, 1, 4).expand(len(features), 4)
            return taus, (taus[:, 1:] + taus[:, :-1]) / 2, torch.zeros(len(features))

    if make is DiscreteCQLLoss:
        from tensordict.nn import TensorDictModule

        loss = make(TensorDictModule(Ladder(), ["observation"], ["action_value"]), gamma=0.5)
    else:
        loss = make(Ladder(), *([Thirds()] if make is FQFLoss else []), gamma=0.5)
    batch = TensorDict(
        {
            "observation": torch.zeros(3, 2),
            "action": torch.tensor([0, 1, 1]),
            "next": {"observation": torch.zeros(3, 2), "reward": torch.ones(3, 1),
                     "done": torch.zeros(3, 1, dtype=torch.bool),
                     "terminated": torch.zeros(3, 1, dtype=torch.bool)},
        },
        [3],
    )  # fmt: skip
    loss.reduction = "none"
    assert loss(batch.clone())["target_value"].tolist() == [2.5, 2.5, 2.5]
    few, none = torch.tensor([True, True, False, False]), torch.zeros(4, dtype=torch.bool)
    batch["action_mask"] = few.expand(3, 4)
    batch["next", "action_mask"] = torch.stack([~none, few, none])
    for double in (False, True):
        loss.double_dqn = double
        out = loss(batch.clone())
        torch.testing.assert_close(out["target_value"], torch.tensor([2.5, 1.5, 2.5]))
    if make is DiscreteCQLLoss:
        soft = np.log(1 + np.e)
        torch.testing.assert_close(
            out["loss_cql"], torch.tensor([soft, soft - 1, soft - 1]).float()
        )
    batch["next", "action_mask"] = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"'next', 'action_mask'.* must be bool of shape \(3, 4\)"):
        loss(batch)


@pytest.mark.parametrize("kind", [MaskedCategorical, MaskedOneHotCategorical])
def test_ppo_and_cloning_read_masked_distributions_of_stock_actors(kind):
    """On the policy's own samples the ratio is 1, and the cloning loss that of the distribution."""
    torch.manual_seed(0)
    actor = ProbabilisticActor(
        composerl.modules.categorical_actor(Spaces(obs_shape=(3,), num_actions=4), (8,)).module[0],
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=kind, return_log_prob=True,
    )  # fmt: skip
    mask = torch.rand(16, 4) < 0.6
    mask[:, 0] = True
    batch = actor(TensorDict({"observation": torch.randn(16, 3), "action_mask": mask}, [16]))
    logits = batch["logits"].masked_fill(~mask, -torch.inf).log_softmax(-1)
    action = batch["action"].long()
    index = action.argmax(-1) if action.ndim == 2 else action
    expected = -logits.gather(-1, index.unsqueeze(-1)).mean()
    torch.testing.assert_close(BCLoss(actor)(batch)["loss_bc"], expected)
    loss = ClipPPOLoss(actor, value(Spaces(obs_shape=(3,), num_actions=4), (8,)))
    batch["advantage"] = batch["value_target"] = torch.ones(16, 1)
    out = loss(batch)
    assert abs(out["kl_approx"].item()) < 1e-6
    p = logits.exp()
    entropy = -torch.where(mask, p * logits, 0.0).sum(-1).mean()
    torch.testing.assert_close(out["entropy"], entropy)


@pytest.mark.parametrize("recipe", ["iqn_cartpole", "fqf_cartpole"])
@every_id
def test_recipes_train_and_resume_where_actions_are_masked(recipe, name, tmp_path):
    options = {"env": f"masked_env:{name}"}
    assert run_in_process(PATHS[recipe], tmp_path / "whole", **options) == 0
    assert run_in_process(PATHS[recipe], tmp_path / "run", kill_at="update:33", **options) == -9
    assert run_in_process(PATHS[recipe], tmp_path / "run", resume=True, **options) == 0
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_gail_trains_where_actions_are_masked(tmp_path):
    rows = make_env("Doors-v0").rollout(200, break_when_any_done=False)
    np.savez(tmp_path / "expert.npz", **{
        "observations": rows["observation"], "actions": rows["action"],
        "rewards": rows["next", "reward"][:, 0], "next_observations": rows["next", "observation"],
        "terminals": rows["next", "terminated"][:, 0], "timeouts": rows["next", "truncated"][:, 0],
    })  # fmt: skip
    recipe = load_recipe(PATHS["gail_cartpole"])
    expert = str(tmp_path / "expert.npz")
    policy = recipe.main(small_config(recipe, tmp_path / "run", env="Doors-v0", expert=expert))
    assert policy.spaces.masked


def test_iqn_learns_to_take_the_largest_step_allowed(tmp_path):
    """Two steps on average at random; the largest allowed one is 2.5 of them, and room 0 to be
    avoided makes it more: 40 and more in an episode of 20 steps, at random about 10."""
    recipe = load_recipe(PATHS["iqn_cartpole"])
    policy = recipe.main(
        recipe.Config(
            env="Doors-v0", steps=3000, out=tmp_path / "run", wandb="disabled", hidden=(32, 32),
            gamma=0.9, n_step=1, epsilon_steps=1000, eval_every=3000, num_quantiles=4,
            num_target_quantiles=4,
        )
    )  # fmt: skip
    random = make_env("Doors-v0", seed=0).rollout(2000, break_when_any_done=False)
    mean = random["next", "reward"].sum() / random["next", "done"].sum()
    assert policy.evaluate(20).mean > 2 * mean.item()


@every_factory
def test_a_policy_predicts_with_masks_from_its_file(factory, tmp_path, monkeypatch, capsys):
    actor = factory(Spaces.of("Doors-v0"), (8, 8))
    Policy(actor, "Doors-v0").save(tmp_path / "policy.safetensors")
    policy = composerl.load(tmp_path / "policy.safetensors")
    obs = np.eye(7, dtype=np.float32)[:4]
    mask = np.eye(4, dtype=bool)[[2, 0, 3, 1]]
    assert policy.predict(obs, mask=mask).tolist() == [2, 0, 3, 1]
    assert policy.predict(obs[0], mask=[0, 0, 0, 1]) == 3
    assert len(policy.evaluate(3).returns) == 3
    line = json.dumps({"observation": obs[0].tolist(), "action_mask": [0, 1, 0, 0]})
    monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n"))
    main(["predict", str(tmp_path / "policy.safetensors")])
    assert json.loads(capsys.readouterr().out) == {"action": 1}


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (None, "needs a mask"),
        ([True, False], r"mask must be flags of shape \(4,\) or \(1, 4\)"),
        ([0.0, 1.0, 0.0, 0.0], "mask must be flags"),
        ([False] * 4, "mask allows no action"),
    ],
)
def test_a_policy_refuses_a_wrong_mask(mask, sentence):
    policy = Policy(iqn_network(Spaces.of("Doors-v0"), (8, 8)), "Doors-v0")
    with pytest.raises(ValueError, match=sentence):
        policy.predict(np.zeros(7), mask=mask)


def test_what_knows_no_masks_says_so():
    policy = Policy(gaussian_actor(Spaces.of("Pendulum-v1"), (8,)), "Pendulum-v1")
    with pytest.raises(ValueError, match="takes no mask"):
        policy.predict(np.zeros(3), mask=[True])
    with pytest.raises(ValueError, match="does not read action masks"):
        dreamer_actor(Spaces(obs_shape=(1, 16, 16), obs_dtype="uint8", num_actions=3, masked=True))
    with pytest.raises(ValueError, match="datasets hold no masks"):
        load_dataset("random", "Doors-v0", size=10)


@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize("factory", [iqn_network, categorical_actor])
def test_an_export_takes_the_mask_as_an_input(format, factory, tmp_path):
    pytest.importorskip("onnxruntime")
    policy = Policy(factory(Spaces.of("Doors-v0"), (8, 8)), "Doors-v0")
    assert policy.export(tmp_path / f"policy.{format}", format).stat().st_size
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
        assert [entry.name for entry in session.get_inputs()] == ["observation", "action_mask"]


def test_a_malformed_mask_is_refused():
    class Short(Doors):
        def _see(self):
            seen, info = super()._see()
            return {**seen, "action_mask": np.ones(3, np.int8)}, info

    with pytest.raises(ValueError, match="action_mask must be 4 flags"):
        make_env(Short).rollout(2)
