"""Metrics go to metrics.jsonl always, to W&B and TensorBoard on request."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from wandb_reader import read_wandb

from composerl.bookkeeping import tracking, wandb_run
from composerl.bookkeeping.metrics import MetricsFile, read_metrics
from composerl.bookkeeping.tracking import Tracker
from composerl.bookkeeping.wandb_run import scrub, wandb_mode


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory, monkeypatch):
    """Neither the keys nor the settings of whoever runs the tests may matter or be touched."""
    for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def wandb():
    """W&B with its service process stopped before and after, so that it reads this HOME."""
    import wandb

    wandb.teardown()
    yield wandb
    wandb.teardown()


# --- metrics.jsonl -----------------------------------------------------------------------------


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = [
        {"step": 0, "train/loss_value": 0.1 + 0.2, "note": "ä\n"},
        {"step": 10, "eval/return": -1e-300, "time/fps": 7},
    ]
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    for row in rows:
        metrics.write(row)
    # Each row is readable as soon as it is written.
    assert read_metrics(metrics.path) == rows
    metrics.close()
    metrics.close()
    assert metrics.path.read_bytes().splitlines()[1] == (
        b'{"step":10,"eval/return":-1e-300,"time/fps":7}'
    )


def test_step_stands_first_and_array_scalars_are_numbers(tmp_path):
    torch = pytest.importorskip("torch")
    metrics = MetricsFile(tmp_path / "m")
    metrics.write(
        {"b": np.float32(0.5), "t": torch.tensor([2.0]), "i": np.int64(3), "step": np.int64(4)}
    )
    metrics.close()
    assert (tmp_path / "m").read_text() == '{"step":4,"b":0.5,"t":2.0,"i":3}\n'


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"loss": 1.0}, 'integer "step", got None'),
        ({"step": 1.5}, 'integer "step", got 1.5'),
        ({"step": True}, 'integer "step", got True'),
        ({"step": 1, "loss": [1.0]}, "'loss' must be a number or a string"),
        ({"step": 1, "loss": np.ones(2)}, "'loss' must be a number or a string"),
        ({"step": 1, "loss": None}, "'loss' must be a number or a string"),
    ],
)
def test_a_bad_row_is_refused_and_nothing_written(tmp_path, row, message):
    metrics = MetricsFile(tmp_path / "m")
    with pytest.raises(ValueError, match=message):
        metrics.write(row)
    assert metrics.sync() == 0
    metrics.close()


def test_non_finite_numbers_are_strict_json(tmp_path):
    metrics = MetricsFile(tmp_path / "m")
    metrics.write({"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float32("nan")})
    metrics.close()

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    row = json.loads((tmp_path / "m").read_text(), parse_constant=refuse)
    assert row == {"step": 1, "a": "nan", "b": "inf", "c": "-inf", "d": "nan"}
    (row,) = read_metrics(tmp_path / "m")
    assert math.isnan(row["a"])
    assert math.isnan(row["d"])
    assert (row["b"], row["c"]) == (math.inf, -math.inf)


def test_truncate_drops_rows_after_the_checkpoint_and_half_a_line(tmp_path):
    path = tmp_path / "m"
    metrics = MetricsFile(path)
    metrics.write({"step": 1})
    offset = metrics.sync()
    assert offset == path.stat().st_size
    metrics.write({"step": 2})
    metrics.close()
    with path.open("ab") as file:
        file.write(b'{"step":3,"lo')
    assert [row["step"] for row in read_metrics(path)] == [1, 2]

    metrics = MetricsFile(path)
    metrics.truncate(offset)
    metrics.write({"step": 20})
    assert metrics.sync() == path.stat().st_size
    metrics.close()
    assert path.read_text() == '{"step":1}\n{"step":20}\n'


def test_a_row_is_never_glued_to_half_a_line(tmp_path):
    path = tmp_path / "m"
    path.write_text('{"step":1}\n{"st')
    metrics = MetricsFile(path)
    metrics.write({"step": 2})
    metrics.close()
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("offset", [12, 5, -1])
def test_truncate_refuses_an_offset_of_another_file(tmp_path, offset):
    metrics = MetricsFile(tmp_path / "m")
    metrics.write({"step": 1})
    with pytest.raises(ValueError, match=f"cannot be cut back to byte {offset}: .* checkpoint"):
        metrics.truncate(offset)
    metrics.close()
    assert read_metrics(tmp_path / "m") == [{"step": 1}]


def test_truncate_to_the_start_and_to_the_end(tmp_path):
    metrics = MetricsFile(tmp_path / "m")
    metrics.write({"step": 1})
    metrics.truncate(metrics.sync())
    assert read_metrics(tmp_path / "m") == [{"step": 1}]
    metrics.truncate(0)
    assert read_metrics(tmp_path / "m") == []
    metrics.close()


def test_reading_names_the_broken_line_and_the_missing_file(tmp_path):
    path = tmp_path / "m"
    path.write_text('{"step":1}\nnonsense\n{"step":2}\n')
    with pytest.raises(ValueError, match="m, line 2 is not valid JSON"):
        read_metrics(path)
    with pytest.raises(FileNotFoundError, match=r"no metrics file at .*absent"):
        read_metrics(tmp_path / "absent")


# --- W&B: mode and secrets ---------------------------------------------------------------------

KEY = {"WANDB_API_KEY": "k" * 40}


@pytest.mark.parametrize(
    ("choice", "environ", "mode"),
    [
        ("auto", {}, "offline"),
        ("auto", KEY, "online"),
        ("auto", {"WANDB_IDENTITY_TOKEN_FILE": "/t"}, "online"),
        ("auto", {"WANDB_API_KEY": ""}, "offline"),
        ("auto", {**KEY, "WANDB_MODE": "disabled"}, "disabled"),
        ("auto", {**KEY, "WANDB_MODE": "dryrun"}, "offline"),
        ("auto", {**KEY, "WANDB_MODE": "online"}, "online"),
        ("auto", {**KEY, "WANDB_MODE": ""}, "online"),
        ("online", {**KEY, "WANDB_MODE": "offline"}, "online"),
        ("offline", {**KEY, "WANDB_MODE": "online"}, "offline"),
        ("disabled", KEY, "disabled"),
        ("offline", {}, "offline"),
    ],
)
def test_mode(tmp_path, choice, environ, mode):
    assert wandb_mode(choice, {"HOME": str(tmp_path), **environ}) == mode


@pytest.mark.parametrize(
    ("choice", "environ", "message"),
    [
        ("online", {}, "run `wandb login`, or use --wandb offline"),
        ("auto", {"WANDB_MODE": "online"}, "run `wandb login`"),
        ("auto", {"WANDB_MODE": "sometimes"}, "WANDB_MODE must be one of .* got 'sometimes'"),
        ("yes", {}, "wandb must be auto, online, offline or disabled, got 'yes'"),
    ],
)
def test_mode_errors(tmp_path, choice, environ, message):
    with pytest.raises(ValueError, match=message):
        wandb_mode(choice, {"HOME": str(tmp_path), **environ})


@pytest.mark.parametrize(
    ("host", "environ", "mode"),
    [
        ("api.wandb.ai", {}, "online"),
        ("api.forge.coreweave.com", {}, "online"),
        ("example.org", {}, "offline"),
        ("wandb.example.org", {"WANDB_BASE_URL": "https://wandb.example.org"}, "online"),
        ("api.wandb.ai", {"WANDB_BASE_URL": "https://wandb.example.org"}, "offline"),
        ("localhost:8080", {"WANDB_BASE_URL": "http://localhost:8080"}, "online"),
    ],
)
@pytest.mark.parametrize("name", [".netrc", "_netrc", "NETRC"])
def test_a_netrc_entry_is_a_key(tmp_path, host, environ, mode, name):
    path = tmp_path / name
    path.write_text(f"machine {host}\n  login user\n  password {'k' * 40}\n")
    if name == "NETRC":
        environ = {**environ, "NETRC": str(path)}
    assert wandb_mode("auto", {"HOME": str(tmp_path), **environ}) == mode


def test_a_broken_netrc_is_no_key(tmp_path):
    (tmp_path / ".netrc").write_text("machine\n nonsense here")
    with pytest.warns(UserWarning, match="netrc is not readable"):
        assert wandb_mode("auto", {"HOME": str(tmp_path)}) == "offline"


def test_wandb_settings_files_count(tmp_path, monkeypatch):
    environ = {"HOME": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path / "c")}
    (tmp_path / "c").mkdir()
    settings = tmp_path / "c" / "settings"
    settings.write_text(f"[default]\napi_key = {'k' * 40}\n")
    assert wandb_mode("auto", environ) == "online"
    # What `wandb offline` writes in a project directory.
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    monkeypatch.chdir(tmp_path)
    assert wandb_mode("auto", environ) == "offline"
    assert wandb_mode("online", environ) == "online"


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "db_passwd",
        "SECRET",
        "client-secret",
        "token",
        "wandb_token",
        "api_key",
        "apikey",
        "API_KEY",
        "apiKey",
        "OPENAI_API_KEY",
        "myAPIKey",
        "credentials",
        "aws.credential",
        "private_key",
        "privateKey",
        "auth",
        "http_auth",
        "authToken",
        "accessKey",
        "oauth",
    ],
)
def test_secret_keys_are_scrubbed(key):
    config = {"a": [{"b": {key: "hush", "lr": 1e-3}}]}
    assert scrub(config) == {"a": [{"b": {key: "***", "lr": 1e-3}}]}
    assert config["a"][0]["b"][key] == "hush"


@pytest.mark.parametrize(
    "key",
    [
        "tokens_per_batch",
        "author",
        "num_tokens",
        "tokenizer",
        "authority",
        "secretary",
        "keys",
        "api",
        "monkey",
        "passwordless",
        "key",
        "private",
        "batch_size",
    ],
)
def test_other_keys_stay(key):
    assert scrub({key: "value"}) == {key: "value"}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:pw@host/x", "https://***@host/x"),
        ("see postgres+ssl://u:p@ss@h:5/db now", "see postgres+ssl://***@h:5/db now"),
        ("https://ghp_x@github.com/a", "https://***@github.com/a"),
        ("https://h/x?token=abc&n=1", "https://h/x?token=***&n=1"),
        ("http://h/a@b", "http://h/a@b"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_urls_lose_their_credentials(text, clean):
    assert scrub({"url": text, "urls": (text,), "path": Path("x")}) == {
        "url": clean,
        "urls": [clean],
        "path": "x",
    }


# --- Tracker -----------------------------------------------------------------------------------


def test_import_is_light():
    code = (
        "import sys, composerl.bookkeeping.tracking as t, tempfile\n"
        "tracker = t.Tracker(tempfile.mkdtemp(), config={})\n"
        "tracker.log({'step': 1}); tracker.artifact('a', 'b', 'absent'); tracker.close()\n"
        "print([m for m in ('wandb', 'torch', 'tensorboard', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_disabled_writes_metrics_only(tmp_path):
    tracker = Tracker(tmp_path / "run", config={})
    tracker.log({"step": 1, "loss": 0.5})
    tracker.summary(best={"return": 1.0, "std": 0.0, "step": 1})
    assert tracker.sync() == len('{"step":1,"loss":0.5}\n')
    tracker.close()
    tracker.close()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]
    assert len(tracker.run_id) == 8
    assert tracker.run_id != Tracker(tmp_path, config={}).run_id
    assert Tracker(tmp_path, config={}, run_id="abc").run_id == "abc"


def test_the_run_id_of_a_sweep_agent_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "agent1")
    assert Tracker(tmp_path, config={}).run_id == "agent1"


@pytest.mark.parametrize("options", [{"mode": "auto"}, {"run_id": "../up"}])
def test_bad_arguments_leave_nothing(tmp_path, options):
    with pytest.raises(ValueError, match=r"got '(auto|\.\./up)'"):
        Tracker(tmp_path / "run", config={}, **options)
    assert list(tmp_path.iterdir()) == []


def test_wandb_offline(tmp_path, monkeypatch, capfd, wandb):
    monkeypatch.setattr(sys, "argv", ["recipe.py", "--api-key", "hush-argv"])
    random.seed(1)
    np.random.seed(1)
    drawn = random.getstate(), np.random.get_state()[1].tolist()
    policy = tmp_path / "policy.json"
    policy.write_text("first")
    single = tmp_path / "single.txt"
    single.write_text("one file")

    run = tmp_path / "run"
    tracker = Tracker(
        run,
        config={"lr": 1e-3, "hidden": (64, 64), "api_key": "hush-key", "db": "s://u:hush-url@h"},
        mode="offline",
        project="proj",
        group="g",
        name="n",
        tags=["t1", "t2"],
    )
    for step in (10, 20, 30):
        tracker.log({"step": step, "train/loss": 1 / step, "train/bad": math.inf})
    tracker.log({"step": 30, "eval/return": 5.0})
    tracker.summary(best={"return": 7.5, "std": 0.5, "step": 20, "episodes": 2})
    tracker.artifact("policy", "best", policy)
    policy.write_text("second")
    beside = single.parent / "blocks" / "one.txt"
    beside.parent.mkdir()
    beside.write_text("a block")
    tracker.artifact("notes", "last", single, beside)
    tracker.close(exit_code=3)

    assert capfd.readouterr() == ("", "")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn
    (read,) = read_wandb(run)
    assert read.run_id == tracker.run_id
    assert (read.project, read.group, read.name, read.tags) == ("proj", "g", "n", ["t1", "t2"])
    assert {key: value for key, value in read.config.items() if key != "_wandb"} == {
        "lr": 1e-3,
        "hidden": [64, 64],
        "api_key": "***",
        "db": "s://***@h",
    }
    assert [row["step"] for row in read.history] == [10, 20, 30, 30]
    assert [row.get("train/loss") for row in read.history] == [1 / 10, 1 / 20, 1 / 30, None]
    assert read.history[3]["eval/return"] == 5.0
    assert read.history[0]["train/bad"] == math.inf
    assert read.step_metrics == {"step": "", "*": "step"}
    assert read.summary["best/return"] == 7.5
    assert read.summary["eval/return"] == 5.0
    assert read.exit_code == 3
    # No metadata, no code, no hardware statistics.
    assert not read.kinds & {"files", "stats", "environment"}

    first, second = read.artifacts
    assert (first["name"], first["type"]) == (f"{tracker.run_id}-policy", "policy")
    assert "best" in first["aliases"]
    # The artifact is the file as it was, and lives inside the run.
    (copy,) = first["files"].values()
    assert Path(copy).read_text() == "first"
    assert run in Path(copy).parents
    assert list(second["files"]) == ["blocks/one.txt", "single.txt"]

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    written += [path for path in Path(os.environ["HOME"]).rglob("*") if path.is_file()]
    assert not [path for path in written if b"hush" in path.read_bytes()]
    assert {path.name for path in run.iterdir()} == {"metrics.jsonl", "wandb"}


def test_a_resumed_tracker_continues_the_same_run(tmp_path, wandb):
    first = Tracker(tmp_path, config={"lr": 1}, mode="offline")
    first.log({"step": 1})
    offset = first.sync()
    first.log({"step": 2, "lost": 1})
    first.close()

    second = Tracker(tmp_path, config={"lr": 1}, mode="offline", run_id=first.run_id)
    second.metrics.truncate(offset)
    second.log({"step": 2})
    second.close()
    reads = read_wandb(tmp_path)
    assert [read.run_id for read in reads] == [first.run_id] * 2
    assert [[row["step"] for row in read.history] for read in reads] == [[1, 2], [2]]
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_two_trackers_at_once_do_not_mix(tmp_path, wandb):
    one = Tracker(tmp_path / "1", config={}, mode="offline")
    two = Tracker(tmp_path / "2", config={}, mode="offline")
    one.log({"step": 1})
    two.log({"step": 2})
    one.close()
    two.log({"step": 3})
    two.close()
    steps = [
        [row["step"] for row in read.history]
        for name in "12"
        for read in read_wandb(tmp_path / name)
    ]
    assert steps == [[1], [2, 3]]


def test_a_missing_artifact_is_named(tmp_path, wandb):
    tracker = Tracker(tmp_path, config={}, mode="offline")
    with pytest.raises(FileNotFoundError, match=r"'policy' needs .*absent, which does not exist"):
        tracker.artifact("policy", "best", tmp_path / "absent")
    tracker.close()


def test_an_unreachable_server_means_offline(tmp_path, monkeypatch, capfd, wandb):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr(wandb_run, "INIT_TIMEOUT", 1.0)
    assert wandb_mode("auto") == "online"
    with pytest.warns(UserWarning, match="the run goes on offline .*wandb sync"):
        tracker = Tracker(tmp_path, config={}, mode="online", run_id="same")
    tracker.log({"step": 1, "loss": 2.0})
    tracker.close()
    (read,) = read_wandb(next(tmp_path.glob("wandb/offline-run-*-same")))
    assert read.run_id == "same"
    assert [row["loss"] for row in read.history] == [2.0]
    assert capfd.readouterr() == ("", "")
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"k" * 40 in p.read_bytes()]


def test_offline_means_no_connection_not_even_at_exit(tmp_path):
    code = (
        "import sys; from composerl.bookkeeping.tracking import Tracker\n"
        "tracker = Tracker(sys.argv[1], config={}, mode='offline')\n"
        "tracker.log({'step': 1}); print('shown'); tracker.close()"
    )
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        environ = {**os.environ, "WANDB_BASE_URL": url, "WANDB_API_KEY": "k" * 40}
        environ.pop("WANDB_ERROR_REPORTING", None)
        command = [sys.executable, "-c", code, str(tmp_path)]
        result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stdout, result.stderr) == (0, "shown\n", "")
        with pytest.raises(BlockingIOError):
            server.accept()
    (read,) = read_wandb(tmp_path)
    assert len(read.history) == 1
    # What the run prints is not recorded (inside pytest W&B would not see it anyway).
    assert not read.kinds & {"output", "output_raw"}


def test_a_killed_run_keeps_what_it_logged(tmp_path):
    """W&B's file must fill while the run goes on, long before its default of 15 seconds."""
    code = (
        "import sys; from composerl.bookkeeping.tracking import Tracker\n"
        "tracker = Tracker(sys.argv[1], config={}, mode='offline')\n"
        "tracker.log({'step': 1}); print('logged', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "logged\n"
        deadline = time.monotonic() + 10
        while not read_wandb(tmp_path)[0].history and time.monotonic() < deadline:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.1)
        process.kill()
    (read,) = read_wandb(tmp_path)
    assert [row["step"] for row in read.history] == [1]
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_a_failed_setup_closes_the_metrics(tmp_path, monkeypatch, wandb):
    opened = []

    class Recorded(MetricsFile):
        def __init__(self, path):
            super().__init__(path)
            opened.append(self)

    def fail(*_, **__):
        raise RuntimeError("no service")

    monkeypatch.setattr(tracking, "MetricsFile", Recorded)
    monkeypatch.setattr(wandb, "init", fail)
    with pytest.raises(RuntimeError, match="no service"):
        Tracker(tmp_path, config={}, mode="offline")
    assert opened[0]._file.closed
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


# --- TensorBoard -------------------------------------------------------------------------------


def test_tensorboard_forgets_what_a_killed_run_logged(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = Tracker(tmp_path, config={}, tensorboard=True)
    for step in (10, 20, 30):
        first.log({"step": step, "train/loss": float(step), "note": "text", "n": 3})
    first.sync()
    first.close()
    second = Tracker(tmp_path, config={}, tensorboard=True)
    second.log({"step": 20, "train/loss": -20.0})
    second.log({"step": 30, "train/loss": -30.0})
    second.close()

    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["n", "train/loss"]
    points = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert points == [(10, 10.0), (20, -20.0), (30, -30.0)]


def test_tensorboard_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'composerl\[tensorboard\]'"):
        Tracker(tmp_path / "run", config={}, tensorboard=True)
    assert list(tmp_path.iterdir()) == []
