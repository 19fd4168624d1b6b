"""Exported policies act as predict does, in onnxruntime and in torch alone."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import composerl
from composerl import Policy
from composerl.cli import main
from composerl.envs.spaces import Spaces
from composerl.modules import (
    categorical_actor,
    deterministic_actor,
    dreamer_actor,
    fqf_network,
    gaussian_actor,
    iqn_network,
    q_network,
    tanh_gaussian_actor,
)

BOX = Spaces(obs_shape=(3,), low=(-2.0, 0.0), high=(2.0, 5.0))
DISCRETE = Spaces(obs_shape=(4,), num_actions=3)
PIXELS = Spaces(obs_shape=(2, 10, 10), obs_dtype="uint8", num_actions=3)
STATS = (torch.tensor([100.0, 0.0, -5.0]), torch.tensor([0.01, 2.0, 1.0]))

ACTORS = {
    "gaussian": (gaussian_actor, BOX, {"normalize": STATS}),
    "tanh": (tanh_gaussian_actor, BOX, {"layer_norm": True}),
    "deterministic": (deterministic_actor, BOX, {"normalize": STATS}),
    "values": (q_network, DISCRETE, {}),
    "categorical": (categorical_actor, DISCRETE, {}),
    "iqn": (iqn_network, DISCRETE, {"dueling": True, "layer_norm": True}),
    "fqf": (fqf_network, DISCRETE, {}),
    "pixels": (iqn_network, PIXELS, {}),
}


def make(name):
    factory, spaces, options = ACTORS[name]
    torch.manual_seed(0)
    policy = Policy(factory(spaces, (16, 16), **options).eval(), None, spaces)
    generator = np.random.default_rng(1)
    if spaces.obs_dtype == "uint8":
        observations = generator.integers(256, size=(50, *spaces.obs_shape), dtype=np.uint8)
    else:
        observations = generator.normal(size=(50, *spaces.obs_shape)).astype(np.float32)
    if "normalize" in options:
        observations = observations * STATS[1].numpy() + STATS[0].numpy()
    return policy, observations


@pytest.mark.parametrize("name", ACTORS)
def test_onnxruntime_acts_as_predict_does(name, tmp_path):
    import onnxruntime

    policy, observations = make(name)
    path = policy.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (observations, observations[:1]):
        (actions,) = session.run(["action"], {"observation": batch})
        np.testing.assert_allclose(actions, policy.predict(batch), atol=1e-5)
    assert [item.name for item in tmp_path.iterdir()] == ["policy.onnx"]


@pytest.mark.parametrize("name", ACTORS)
def test_pt2_acts_as_predict_does(name, tmp_path):
    policy, observations = make(name)
    path = policy.export(tmp_path / "policy.pt2", "pt2")
    module = torch.export.load(path).module()  # our own file: it is known to be harmless
    actions = module(torch.from_numpy(observations)).detach().numpy()
    np.testing.assert_allclose(actions, policy.predict(observations), atol=1e-5)


def test_files_need_nothing_of_ours(cli, run, tmp_path):
    """Both are used where composerl cannot be imported."""
    observation = [[0.3, -0.2, 1.5]]
    expected = composerl.load(run).predict(observation)
    for name in ("a.onnx", "a.pt2"):
        assert cli("export", run, "-o", tmp_path / name).out.strip().endswith(name)
    code = (
        "import sys; sys.modules['composerl'] = sys.modules['torchrl'] = None\n"
        "import onnxruntime, numpy, torch\n"
        f"x = numpy.array({observation}, 'float32')\n"
        "print(onnxruntime.InferenceSession('a.onnx').run(None, {'observation': x})[0].item())\n"
        "print(torch.export.load('a.pt2').module()(torch.from_numpy(x)).item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [float(line) for line in done.stdout.split()] == pytest.approx(
        [expected.item()] * 2, abs=1e-5
    )


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_an_export_that_acts_otherwise_is_not_written(format, tmp_path, monkeypatch):
    policy, _ = make("gaussian")
    right = policy.predict
    monkeypatch.setattr(policy, "predict", lambda observation: right(observation) + 1e-4)
    with pytest.raises(RuntimeError, match=r"differs from predict by 0\.0001"):
        policy.export(tmp_path / f"policy.{format}", format)
    assert not list(tmp_path.iterdir())


def test_the_check_looks_where_the_policy_is_not_saturated():
    from composerl.bookkeeping.exported import _observations

    policy, _ = make("gaussian")
    normalised = (_observations(policy, 200) - STATS[0].numpy()) / STATS[1].numpy()
    assert np.abs(normalised).max() < 5
    assert normalised.std() == pytest.approx(1, abs=0.1)


REMEMBERING = {
    "images": (Spaces(obs_shape=(1, 16, 16), obs_dtype="uint8", num_actions=3), False),
    "floats": (BOX, False),
    "pooled": (Spaces(obs_shape=(3, 16, 16), obs_dtype="uint8", num_actions=3), True),
}


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_a_memory_goes_in_and_out(name, format, tmp_path):
    """Over 200 steps with resets, each side with the state that it gave itself."""
    spaces, pooled = REMEMBERING[name]
    torch.manual_seed(0)
    size = {"deter": 16, "hidden": 8, "latents": 3, "classes": 4, "units": 8, "layers": 1,
            "depth": 2, "blocks": 2, "pooled": pooled}  # fmt: skip
    actor = dreamer_actor(spaces, size)
    with torch.no_grad():
        actor.actor_network.head.last.weight.normal_()
    policy = Policy(actor.eval(), None, spaces)
    path = policy.export(tmp_path / f"policy.{format}", format)
    assert policy.state is None
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        assert names == ["observation", "first", "state_deter", "state_stoch", "state_action"]
        outs = [value.name for value in session.get_outputs()]
        assert outs == ["action", "next_state_deter", "next_state_stoch", "next_state_action"]

        def act(*given):
            return session.run(None, dict(zip(names, given, strict=True)))
    else:
        module = torch.export.load(path).module()

        def act(*given):
            return [x.detach().numpy() for x in module(*map(torch.from_numpy, given))]

    rng = np.random.default_rng(0)
    state, actions = [x.numpy() for x in actor.initial(3).values()], []
    for t in range(200):
        seen = rng.normal(size=(3, *spaces.obs_shape)).astype(np.float32)
        if spaces.obs_dtype == "uint8":
            seen = rng.integers(256, size=seen.shape, dtype=np.uint8)
        first = (rng.random(3) < 0.05) | (t == 0)
        action, *state = act(seen, first, *state)
        np.testing.assert_allclose(policy.predict(seen, first), action, rtol=1e-4, atol=1e-4)
        actions.append(action)
    assert np.std(actions) > 0


def test_a_policy_that_draws_is_refused(tmp_path):
    spaces = REMEMBERING["images"][0]
    policy = Policy(dreamer_actor(spaces, "debug", sampled=True), None, spaces)
    with pytest.raises(ValueError, match="draws its actions cannot be exported"):
        policy.export(tmp_path / "policy.onnx")


def test_predict_follows_a_file_in_sequence(tmp_path, capsys):
    """One line for each observation; a memory starts anew where the file says first."""
    spaces = REMEMBERING["images"][0]
    torch.manual_seed(0)
    actor = dreamer_actor(spaces, "debug")
    with torch.no_grad():
        actor.actor_network.head.last.weight.normal_(std=3.0)
    policy = Policy(actor.eval(), None, spaces)
    policy.save(tmp_path / "policy.safetensors")
    rows = np.random.default_rng(0).integers(256, size=(30, 1, 16, 16), dtype=np.uint8)
    rows[20:] = rows[:10]
    first = np.arange(30) == 20
    for flags in ({}, {"first": first}):
        np.savez(tmp_path / "rows.npz", observations=rows, **flags)
        main(["predict", str(tmp_path), "--npz", str(tmp_path / "rows.npz")])
        lines = capsys.readouterr().out.splitlines()
        found = [json.loads(line)["action"] for line in lines]
        policy.reset()
        starts = first if flags else np.zeros(30, bool)
        assert found == [int(policy.predict(r, bool(f))) for r, f in zip(rows, starts, strict=True)]
    assert found[20:] == found[:10]
    assert len(set(found)) > 1
    np.savez(tmp_path / "rows.npz", observations=rows, first=first[:5])
    with pytest.raises(SystemExit):
        main(["predict", str(tmp_path), "--npz", str(tmp_path / "rows.npz")])
    assert "5 flags in first, but 30 observations" in capsys.readouterr().err


def test_the_policy_itself_is_left_alone(tmp_path):
    policy, _ = make("tanh")
    policy.actor.train()
    policy.export(tmp_path / "a.pt2", "pt2")
    assert all(module.training for module in policy.actor.modules())


def test_unknown_formats_are_refused(tmp_path):
    policy, _ = make("gaussian")
    with pytest.raises(ValueError, match="format must be one of onnx, pt2, got 'tflite'"):
        policy.export(tmp_path / "a", "tflite")


def test_an_onnx_file_says_what_it_is_for(tmp_path):
    """Its batch axis is called batch, and its metadata hold environment, bounds and version."""
    onnx = pytest.importorskip("onnx")
    actor = gaussian_actor(Spaces.of("Pendulum-v1"), (8,)).eval()
    policy = Policy(actor, "Pendulum-v1", env_kwargs={"g": 5})
    model = onnx.load(policy.export(tmp_path / "a.onnx"))
    onnx.checker.check_model(model)
    for value in (*model.graph.input, *model.graph.output):
        axes = value.type.tensor_type.shape.dim
        assert (value.name, axes[0].dim_param) in {("observation", "batch"), ("action", "batch")}
    assert {prop.key: prop.value for prop in model.metadata_props} == {
        "composerl_version": composerl.__version__,
        "environment": "Pendulum-v1",
        "environment_arguments": '{"g": 5}',
        "observation_shape": "[3]",
        "observation_dtype": "float32",
        "action_low": "[-2.0]",
        "action_high": "[2.0]",
    }
    policy.env, policy.env_kwargs, policy.trained_in = None, {}, "mine:Own-v0"  # as it is loaded
    model = onnx.load(policy.export(tmp_path / "b.onnx"))
    assert ("environment", "mine:Own-v0") in {(p.key, p.value) for p in model.metadata_props}
