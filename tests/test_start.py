"""What a run costs before its first step: imports, and little else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Stops at the first step, and tells what was loaded by then and what it took.
CODE = """
import json, resource, runpy, sys
from composerl import run

def steps(self, total, by=1):
    next(all_steps(self, total, by))
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu": own.ru_utime + own.ru_stime, "modules": list(sys.modules)}))
    sys.exit(0)

all_steps, run.Run.steps = run.Run.steps, steps
runpy.run_path(sys.argv[0], run_name="__main__")
"""

#: Heavy, and of no use before the first step, or to most runs at all.
SPARED = {
    "composerl.cli", "composerl.fleet", "cv2", "matplotlib", "minari", "onnx", "onnxruntime",
    "onnxscript", "optuna", "pygame", "tensorboard", "torch._inductor.compile_fx",
    "torch.utils.tensorboard", "triton", "wandb",
}  # fmt: skip


def start(recipe, tmp_path, *flags):
    argv = [f"recipes/{recipe}.py", "--out", str(tmp_path / "run"), "--threads", "1", *flags]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = {argv!r}\n{CODE}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("recipe", ["gail_cartpole", "iqn_cartpole"])
def test_the_first_step_comes_soon(recipe, tmp_path):
    """2.8 to 3.7 CPU s, of which all but 0.4 to 0.7 are torch, tensordict and TorchRL.

    The bound leaves room for a slower machine: what it is about is told by the modules.
    """
    begun = start(recipe, tmp_path, "--wandb", "disabled")
    assert not SPARED & {*begun["modules"]}
    assert begun["cpu"] < 8


def test_wandb_starts_without_what_no_run_uses(tmp_path):
    modules = start("ppo_cartpole", tmp_path, "--wandb", "offline")["modules"]
    assert "wandb" in modules
    assert not {"wandb.sdk.launch", "wandb.apis.public"} & {*modules}
