"""Images and vectors together, from the environment to a policy of Dreamer's, and back."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Tuple
from mixed_env import Both
from recipes.harness import RECIPES, metrics, run_in_process, summary, weights
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import TensorDictReplayBuffer
from torchrl.modules.functional import symexp, symlog

import composerl
from composerl import Policy
from composerl.analysis.pictures import open_loop
from composerl.bookkeeping.images import film_frames
from composerl.cli.policies import predict
from composerl.data import (
    PackedStorage,
    RecordCollector,
    RecordEnv,
    SequenceSampler,
    generate,
    to_records,
)
from composerl.envs import Spaces, make_env, open_gym
from composerl.envs.packing import first_image, pack, unpack
from composerl.losses import DreamerLoss, WorldModelLoss
from composerl.modules import (
    dreamer_actor,
    dreamer_critic,
    gaussian_actor,
    iqn_network,
    world_model,
)

CATCH = next(path for path in RECIPES if path.stem == "dreamer_catch")
ENV = "mixed_env:Both-v0"
BYTES = 8 * 8 * 3 + 2 * 8 * 16 + 2 * 4
SPACES = Spaces.of(Both)


@pytest.fixture
def actor():
    torch.manual_seed(0)
    network = dreamer_actor(SPACES, "debug")
    with torch.no_grad():  # a fresh actor is nearly uniform: let actions depend on the state
        network.actor_network.head.last.weight.normal_()
    return network


def collect(collector, batches):
    return torch.cat([collector.next() for _ in range(batches)], 1)


def test_bytes_are_what_was_packed():
    env = Both()
    raw = [env.reset(seed=0)[0], *(env.step(1)[0] for _ in range(3))]
    rows = np.stack([pack(SPACES.obs_layout, one) for one in raw])
    together = {key: np.stack([one[key] for one in raw]) for key in raw[0]}
    np.testing.assert_array_equal(rows, pack(SPACES.obs_layout, together))
    assert rows.dtype == np.uint8
    assert rows.shape == (4, BYTES)
    for number, one in enumerate(raw):
        found = unpack(SPACES.obs_layout, rows[number])
        assert list(found) == list(one)
        assert [part.dtype for part in found.values()] == [np.uint8, np.uint8, np.float32]
        for key in one:
            np.testing.assert_array_equal(found[key], one[key])


def test_spaces_know_the_parts():
    assert (SPACES.obs_shape, SPACES.obs_dtype) == ((BYTES,), "uint8")
    shapes = {"camera": (8, 8, 3), "map": (2, 8, 16), "speed": (2,)}
    assert dict(SPACES.obs_layout) == shapes
    assert Spaces(**json.loads(json.dumps(SPACES.to_json()))) == SPACES
    for made in (make_env(Both), make_env(Both, 2), Both(), make_env(ENV, 2)):
        assert Spaces.of(made) == SPACES
    with pytest.raises(ValueError, match="obs_layout does not fit"):
        Spaces(
            obs_shape=(BYTES + 1,), obs_dtype="uint8", num_actions=2, obs_layout=SPACES.obs_layout
        )


@pytest.mark.parametrize(
    "layout",
    [3, [], [["a"]], [["a", [8]]], [[1, [1, 2, 4]]], [["a", [1, 2, -4]]], [["a", [1, 2, 4.0]]],
     [["a", [1, 2, 2]], ["a", [1, 1, 4]]], [["a", [1 << 40, 1 << 40, 1 << 40]]]],
)  # fmt: skip
def test_a_file_with_another_layout_is_refused(layout):
    with pytest.raises(ValueError, match="obs_layout does not fit"):
        Spaces(obs_shape=(8,), obs_dtype="uint8", num_actions=2, obs_layout=layout)


def test_nested_spaces_and_images_that_are_none():
    class Deep(Both):
        observation_space = Dict(
            {"a": Tuple([Box(0, 255, (8, 8, 1), np.uint8), Box(-1, 1, (), np.float32)])}
        )

        def _see(self, action, reward):
            return {"a": (np.full((8, 8, 1), 7, np.uint8), np.float32(0.5))}

    assert Spaces.of(Deep).obs_layout == (("a/_index_0", (8, 8, 1)), ("a/_index_1", ()))
    seen = make_env(Deep).reset()["observation"]
    assert seen[:64].tolist() == [7] * 64
    assert seen[64:].view(torch.float32).item() == 0.5

    class Plain(Both):  # gymnasium's own check lets a sequence of numbers pass as a Box
        def _see(self, action, reward):
            seen = super()._see(action, reward)
            return seen | {"speed": tuple(seen["speed"].tolist())}

    one, other = (open_gym(made).reset(seed=0)[0] for made in (Plain, Both))
    np.testing.assert_array_equal(one, other)

    class Floats(Both):
        observation_space = Dict({"x": Box(0, 1, (8, 8, 3), np.float32)})

    with pytest.raises(ValueError, match=r"x of an observation has.*must be an image of uint8"):
        open_gym(Floats)


@pytest.mark.parametrize("stock", [False, True])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_records_hold_what_was_seen_together(num_envs, stock):
    """Each record's map tells its time and the action before it, its speed the reward; that
    reward follows from the camera and the speed of the record before."""
    if stock:
        collector = Collector(
            RecordEnv(make_env(Both, num_envs), 0), frames_per_batch=num_envs,
            total_frames=-1, postproc=to_records,
        )  # fmt: skip
    else:
        collector = RecordCollector(make_env(Both, num_envs), seed=0)
    replay = TensorDictReplayBuffer(
        storage=PackedStorage(50 * num_envs), sampler=SequenceSampler(19, num_envs), batch_size=8
    )
    for _ in range(60):
        replay.extend(collector.next().reshape(-1))
    batch = replay.sample()
    assert batch["observation"].dtype == torch.uint8
    world = world_model(SPACES, "debug")
    camera, field, speed = (x.unflatten(0, (8, 20)) for x in world.inputs(batch["observation"]))
    assert camera.shape == (8, 20, 3, 8, 8)
    assert field.shape == (8, 20, 2, 8, 16)
    assert speed.shape == (8, 20, 2)
    colours = camera.amax((3, 4)) * 255
    torch.testing.assert_close(colours, torch.tensor([200.0, 100, 50]).expand(8, 20, 3))
    torch.testing.assert_close(field[:, :, 1, 0, 0] * 255, 100.0 * (1 + batch["action"]))
    torch.testing.assert_close(symexp(speed)[..., 1], batch["reward"])
    assert torch.equal(field[:, :, 0].amax((2, 3)) == 0, batch["first"])
    bright, positive = camera[:, :, 0, 0, -1] > 0.5, speed[..., 0] > 0
    right = (batch["action"][:, 1:] == (bright == positive)[:, :-1]).float()
    follows = ~batch["first"][:, 1:]
    assert torch.equal(right[follows], batch["reward"][:, 1:][follows])
    assert batch["terminal"].any()
    assert batch["reward"].mean() > 0.2


def test_the_loss_is_the_sum_of_the_parts(actor):
    """Images by their squared distance in [0, 1], vectors by that of their symlog."""
    world = actor.world_network
    records = collect(RecordCollector(make_env(Both, 2), actor, seed=1), 9)
    loss = WorldModelLoss(world, context=0, reduction="none")
    torch.manual_seed(2)
    out = loss(records.clone())
    torch.manual_seed(2)
    seen = world.observe(world.inputs(records["observation"]), records["action"], records["first"])
    guess = world.decoder(seen.latent.features.flatten(0, 1))
    raw = unpack(SPACES.obs_layout, records["observation"].flatten(0, 1).numpy())
    camera = torch.from_numpy(raw["camera"]).permute(0, 3, 1, 2) / 255
    field, speed = torch.from_numpy(raw["map"]) / 255, symlog(torch.from_numpy(raw["speed"]))
    expected = sum(
        (one - other).square().flatten(1).sum(1)
        for one, other in zip(guess, (camera, field, speed), strict=True)
    )
    torch.testing.assert_close(out["loss_observation"].flatten(), expected)
    # what the mean observation leaves unexplained is the spread of all parts together
    spread = sum((x - x.mean(0)).square().sum() / len(x) for x in (camera, field, speed))
    torch.testing.assert_close(out["unexplained"].flatten(), expected / spread)
    out["loss_observation"].sum().backward()
    for part in (*world.encoder.parts, *world.decoder.parts):
        assert all(weight.grad is not None for weight in part.parameters())


def test_what_is_read_depends_on_every_part(actor):
    seen = make_env(Both).reset()["observation"].unsqueeze(0)
    features = actor.world_network.encoder(actor.world_network.inputs(seen))
    for byte in (10, 8 * 8 * 3 + 5, BYTES - 1):  # the last: 0 becomes 2
        other = seen.clone()
        other[0, byte] ^= 64
        changed = actor.world_network.encoder(actor.world_network.inputs(other))
        assert not torch.equal(changed, features)


def test_policy_round_trip(actor, tmp_path):
    policy = Policy(actor, ENV)
    loaded = composerl.load(policy.save(tmp_path / "policy.safetensors"), env=ENV)
    assert loaded.spaces == policy.spaces
    assert loaded.evaluate(5, 3) == policy.evaluate(5, 3)
    env, actions = Both(), []
    seen, _ = env.reset(seed=0)
    for _ in range(4):
        action = loaded.predict(seen)
        assert action == policy.predict(pack(SPACES.obs_layout, seen))
        actions.append(int(action))
        seen = env.step(int(action))[0]
    # a batch of Dicts is a Dict of batches
    policy.reset()
    first = Both().reset(seed=0)[0]
    assert (
        policy.predict({k: np.stack([v, v]) for k, v in first.items()}).tolist() == [actions[0]] * 2
    )


def test_bytes_and_named_tensors_are_the_same_to_the_model(actor):
    records = collect(RecordCollector(make_env(Both, 2), seed=1), 3)["observation"].flatten(0, 1)
    found = unpack(SPACES.obs_layout, records.numpy())
    named = actor.world_network.inputs({k: torch.from_numpy(v) for k, v in found.items()})
    for one, other in zip(named, actor.world_network.inputs(records), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_exports_take_each_part_by_its_name(actor, format, tmp_path):
    policy, seen = Policy(actor, ENV), Both().reset(seed=0)[0]
    seen = {k: v[None] if v.dtype == np.uint8 else v[None].astype("f4") for k, v in seen.items()}
    state = {key: value.numpy() for key, value in actor.initial(1).items()}
    first = np.ones(1, bool)
    if format == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        path = policy.export(tmp_path / "policy.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        given = {f"observation_{key}": value for key, value in seen.items()}
        given |= {"first": first} | {f"state_{key}": value for key, value in state.items()}
        action = session.run(["action"], given)[0]
        shapes = json.loads(session.get_modelmeta().custom_metadata_map["observation_shape"])
        assert shapes == {"camera": [8, 8, 3], "map": [2, 8, 16], "speed": [2]}
    else:
        path = policy.export(tmp_path / "policy.pt2", "pt2")
        module = torch.export.load(path).module()
        tensors = {key: torch.from_numpy(value) for key, value in seen.items()}
        action = module(tensors, torch.from_numpy(first), *map(torch.from_numpy, state.values()))[0]
    np.testing.assert_array_equal(action, policy.predict(seen))


def test_what_predict_refuses(actor):
    policy, seen = Policy(actor, ENV), Both().reset(seed=0)[0]
    cases = [
        ({"speed": np.zeros(3)}, ValueError, r"speed of observation has shape \(3,\)"),
        ({"speed": np.array([0.0, np.nan])}, ValueError, "speed of observation must be finite"),
        ({"camera": np.zeros((8, 8, 3))}, TypeError, "camera of observation must be uint8"),
        ({"speed": np.zeros((2, 2))}, ValueError, "batches that differ"),
        (
            {"more": 1},
            ValueError,
            "must have the parts camera, map, speed, got camera, map, speed, more",
        ),
    ]
    for change, kind, message in cases:
        with pytest.raises(kind, match=message):
            policy.predict({**seen, **change})


def test_films_and_strips_show_the_first_image(actor):
    frames, _ = film_frames(Policy(actor, ENV), 0)
    assert frames.shape[1:] == (8, 8 + 2 + 8, 3)  # and what is imagined of it
    assert {tuple(pixel) for pixel in frames[0, :, :8].reshape(-1, 3)} == {
        (0, 0, 0),
        (200, 100, 50),
    }
    theirs, _ = film_frames(Policy(actor, lambda: make_env(Both)), 0)
    assert theirs.shape[1:] == frames.shape[1:]
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    np.testing.assert_array_equal(first_image((("a", (8, 8, 1)),), grey.ravel())[0], grey[..., 0])
    records = collect(RecordCollector(make_env(Both, 2), actor, seed=1), 6)
    assert open_loop(actor.world_network, records).shape == (2 * 3 * 9, 6 * 8, 3)


def test_others_refuse_with_advice():
    uses = (
        lambda: iqn_network(make_env(Both), (8, 8)),
        lambda: gaussian_actor(make_env(lambda: Both(continuous=True)), (8,)),
        lambda: generate(Both, "random", 10, 0),
    )
    for use in uses:
        with pytest.raises(ValueError, match=r"images \(camera\) together.*TransformObservation"):
            use()
    inner = Both.observation_space["map"]
    kept = make_env(lambda: gym.wrappers.TransformObservation(Both(), lambda o: o["map"], inner))
    assert kept.reset()["observation"].shape == (2, 8, 16)


@pytest.mark.parametrize("continuous", [False, True])
def test_kill_and_resume_equals_run(continuous, tmp_path):
    options = {"env": ENV, "env_kwargs": {"continuous": continuous}}
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert run_in_process(CATCH, whole, **options) == 0
    assert run_in_process(CATCH, run, kill_at="checkpoint:2", **options) == -9
    assert run_in_process(CATCH, run, resume=True, **options) == 0
    assert metrics(run) == metrics(whole)
    assert weights(run) == weights(whole)
    assert summary(run) == summary(whole)


def test_the_loss_of_actor_and_critic_takes_it(actor):
    loss = DreamerLoss(
        actor.world_network, actor.actor_network, dreamer_critic(SPACES, "debug"), horizon=2
    )
    zero = torch.zeros(2, 5)
    seen = torch.zeros(2, 5, BYTES, dtype=torch.uint8)
    batch = TensorDict({"observation": seen, "action": zero.long(), "reward": zero,
                        "first": zero.bool(), "terminal": zero.bool()}, [2, 5])  # fmt: skip
    out = loss(batch)
    assert torch.isfinite(out["loss_actor"])


def test_predict_from_the_command_line(actor, tmp_path, capsys):
    path = Policy(actor, ENV).save(tmp_path / "policy.safetensors")
    seen = Both().reset(seed=0)[0]
    given = json.dumps({"observation": {key: value.tolist() for key, value in seen.items()}})
    predict(path, obs=given, env=ENV)
    assert json.loads(capsys.readouterr().out) == {"action": int(Policy(actor, ENV).predict(seen))}
