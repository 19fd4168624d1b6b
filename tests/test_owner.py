"""One owner of a run directory: a lock here, a token everywhere, also when the dead come back."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from composerl import Run, RunConfig
from composerl.bookkeeping import checkpoint, trees
from composerl.bookkeeping.metrics import read_metrics
from composerl.bookkeeping.owner import Owner, grant, owner_of, withdraw
from composerl.envs.spaces import Spaces
from composerl.modules import gaussian_actor

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["composerl.run", "composerl.modules"])


def test_a_killed_process_no_longer_owns_its_directory(tmp_path):
    code = (
        "import sys, pathlib; from composerl.bookkeeping.owner import Owner\n"
        "owner = Owner(pathlib.Path(sys.argv[1])); owner.take()\n"
        "print('owned', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "owned\n"
        assert owner_of(tmp_path)["pid"] == process.pid
        with pytest.raises(ValueError, match=f"another process is training in {tmp_path}"):
            Owner(tmp_path)
        process.kill()
    owner = Owner(tmp_path)
    with pytest.raises(ValueError, match="another process"):
        Owner(tmp_path)
    owner.release()
    Owner(tmp_path).release()


@pytest.mark.parametrize("took", [False, True])
def test_what_was_released_is_another_s(tmp_path, took):
    """A run that was refused may be collected, and so released again, while the next one trains."""
    first = Owner(tmp_path)
    if took:
        first.take()
    first.release()
    second = Owner(tmp_path)
    second.take()
    first.release()
    with pytest.raises(ValueError, match="another process is training"):
        Owner(tmp_path)
    second.release()


def test_who_is_granted_a_directory_has_it_and_nobody_else(tmp_path, monkeypatch):
    first = Owner(tmp_path)
    first.take()
    first.check()
    _, late = grant(tmp_path)
    _, environ = grant(tmp_path)
    with pytest.raises(RuntimeError, match="was taken over: this process ends"):
        first.check()
    monkeypatch.setattr(os, "environ", {**os.environ, **late})
    outdated = Owner(tmp_path)
    with pytest.raises(RuntimeError, match="was taken over"):  # of the grant before
        outdated.take()
    del outdated
    monkeypatch.setattr(os, "environ", {**os.environ, **environ})
    second = Owner(tmp_path)
    second.take()
    second.check()
    with pytest.raises(RuntimeError, match=f"was taken over by .*, process {os.getpid()}"):
        first.check()
    first.release()  # has nothing to release any more
    with pytest.raises(ValueError, match="another process"):
        Owner(tmp_path)
    other = Owner(tmp_path / "other")  # the grant is for one directory
    other.take()
    other.check()
    second.release()
    other.release()


def test_a_granted_directory_that_was_never_taken_is_given_back(tmp_path):
    owner = Owner(tmp_path)
    owner.take()
    owner.release()
    before = content(tmp_path)
    grant(tmp_path)  # to a process that died before it began
    token, _ = grant(tmp_path)
    withdraw(tmp_path, "another")
    assert content(tmp_path) != before
    withdraw(tmp_path, token)
    assert content(tmp_path) == before
    token, _ = grant(tmp_path / "new")
    withdraw(tmp_path / "new", token)
    assert content(tmp_path / "new") == {}


def test_no_picture_is_drawn_into_a_directory_that_was_taken_over(tmp_path):
    run = Run(Config(out=tmp_path), name="toy")
    steps = run.steps(6, by=3)
    assert next(steps) == 3  # where an evaluation is due
    grant(tmp_path)
    with pytest.raises(RuntimeError, match="was taken over"):
        run.image("grey", lambda: np.zeros((2, 2), np.uint8))
    assert not (tmp_path / "images").exists()


# ---- workers that are paused, replaced, and come back


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "Pendulum-v1"
    steps: int = 6
    log_every: int = 1
    eval_every: int = 3
    eval_episodes: int = 1
    save_every: int = 2
    wandb: str = "disabled"


class Sum:
    """Something with state, and with a tensor large enough to be stored in blocks."""

    def __init__(self):
        self.table = torch.zeros(1 << 22)

    def state_dict(self):
        return {"table": self.table}

    def load_state_dict(self, state):
        self.table.copy_(state["table"])


def train(out, pause=0, environ=None):
    """A small run; after the ``pause``-th look at its token it stops as by SIGSTOP."""
    os.environ.update(environ or {})
    sys.stderr = open(f"{out}.log", "a")  # noqa: SIM115
    check, looks = Owner.check, 0

    def check_and_pause(self):
        nonlocal looks
        check(self)
        looks += 1
        if looks == pause:
            os.kill(os.getpid(), signal.SIGSTOP)

    Owner.check = check_and_pause
    run = Run(Config(out=out, resume=(out / "config.yaml").exists()), name="toy")
    total, actor = Sum(), gaussian_actor(Spaces.of("Pendulum-v1"), (4,))
    run.track(total=total)
    for step in run.steps(6):
        total.table[step] += torch.rand(())
        run.log({"loss_x": total.table.sum()})
        run.evaluate(actor)
    run.finish(actor)
    (out.parent / f"{out.name}.looks").write_text(str(looks))


def start(*args):
    process = _context.Process(target=train, args=args)
    process.start()
    return process


def ended(process):
    process.join(120)
    return process.exitcode


def wait_until_stopped(pid):
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def content(directory):
    files = [path for path in sorted(directory.glob("**/*")) if path.is_file()]
    return {path.relative_to(directory): path.read_bytes() for path in files}


def unused(run, files):
    kept = checkpoint.checkpoints(run)[: checkpoint.KEPT]
    kept += [block for path in kept for block in trees.block_files(path)]
    checkpoints = {path for path in files if path.parts[0] == "checkpoints"}
    return (
        checkpoints
        - {path.relative_to(run) for path in kept}
        - {Path("checkpoints/best.safetensors")}
    )


def numbers(run):
    rows = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert ended(start(out)) == 0
    return out


#: How often a run looks at its token, see test_every_look_is_tried.
LOOKS = 23


def test_every_look_is_tried(whole):
    assert int((whole.parent / "run.looks").read_text()) == LOOKS


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to see who is stopped"
)
@pytest.mark.parametrize("pause", range(1, LOOKS + 1))
def test_who_comes_back_writes_nothing(whole, pause, tmp_path):
    """It is stopped in the worst moment: when it has just seen that the directory is its own."""
    out = tmp_path / "run"
    late = start(out, pause, grant(out)[1])
    wait_until_stopped(late.pid)
    assert ended(start(out, 0, grant(out)[1])) == 0
    before = content(out)
    os.kill(late.pid, signal.SIGCONT)
    code = ended(late)
    if pause < LOOKS:  # after the last there is nothing left to do but that write
        assert code == 1
        assert "was taken over by" in (tmp_path / "run.log").read_text()
    # Only what no resume needs may go: removing it was the very next thing to be done.
    needed = {path: before[path] for path in before if path not in unused(out, before)}
    assert needed.items() <= content(out).items() <= before.items()
    assert numbers(out) == numbers(whole)
    policies = [run / "policy.safetensors" for run in (out, whole)]
    assert policies[0].read_bytes() == policies[1].read_bytes()
