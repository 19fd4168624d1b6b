"""A recipe without torch, whose processes start in a moment, and which dies when told to."""

import json
import os
import signal
import time
from dataclasses import dataclass

from composerl.config import RunConfig, config_to_dict


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "Toy-v0"
    steps: int = 3
    lr: float = 0.1
    tau: float = 0.5
    width: int = 8
    hidden: tuple[int, ...] = (8, 8)
    deaths: int = 0
    """So many attempts end by SIGKILL."""
    saves: bool = True
    """Whether these leave a checkpoint."""
    pause: float = 0.0
    """Seconds of a step."""


def main(cfg):
    if cfg.seed == 1 and cfg.lr == 0.1:
        raise OSError("seed 1 is unlucky")
    (cfg.out / "checkpoints").mkdir(parents=True, exist_ok=True)
    (cfg.out / "config.yaml").write_text(json.dumps(config_to_dict(cfg)))
    with open(cfg.out / "attempts", "a") as file:
        file.write("resumed\n" if cfg.resume else "new\n")
    attempts = len((cfg.out / "attempts").read_text().splitlines())
    if attempts <= cfg.deaths:
        if cfg.saves:
            (cfg.out / "checkpoints" / f"step-{attempts:012d}.safetensors").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    value = -abs(cfg.lr - 0.3) - cfg.tau + 0.001 * cfg.seed
    with open(cfg.out / "metrics.jsonl", "a") as file:
        for step in range(1, cfg.steps + 1):
            try:
                time.sleep(cfg.pause)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"stopped at step {step}") from None
            row = {"step": step, "eval/return": value, "time/seconds": step * 0.5}
            file.write(json.dumps(row) + "\n")
            file.flush()
    final = {"return": value, "hidden": cfg.hidden, "resumed": cfg.resume}
    final["group"] = os.environ.get("WANDB_RUN_GROUP")
    (cfg.out / "summary.json").write_text(json.dumps({"final": final}))
