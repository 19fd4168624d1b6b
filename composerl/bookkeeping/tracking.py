"""The metrics of one training run: metrics.jsonl always, W&B and TensorBoard when asked.

``wandb``, ``torch`` and ``tensorboard`` are imported where they are first needed: a run that
uses none of them should not wait for them.
"""

import os
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from composerl.bookkeeping.metrics import MetricsFile
from composerl.bookkeeping.wandb_run import MODES, scrub, start_wandb

__all__ = ["Tracker", "require_tensorboard"]


class Tracker:
    """Where the metrics of one run go: metrics.jsonl and, when asked, W&B and TensorBoard.

    All files are inside ``directory``. ``mode`` is what :func:`wandb_mode` returned. ``run_id``
    belongs in the checkpoint: a resumed run that passes it on continues the same W&B run. W&B's
    own variables (WANDB_RUN_GROUP, WANDB_JOB_TYPE, WANDB_TAGS), by which ``composerl run --seeds``
    and sweep agents speak, come before what is said here, except for what is ``chosen``: W&B's
    ``entity``, ``group`` and ``name``. ``system`` also sends what the machine is busy with.

    Attributes:
        metrics: the file metrics.jsonl.
        run_id: the id of the W&B run, also when W&B is disabled.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        config: Mapping[str, Any],
        mode: str = "disabled",
        run_id: str | None = None,
        project: str = "composerl",
        group: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        chosen: Mapping[str, str | None] | None = None,
        system: bool = False,
        tensorboard: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"the W&B mode must be one of {', '.join(MODES)}, got {mode!r}")
        # A sweep agent has already given the run its id. A new one must not move `random`.
        self.run_id = run_id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        # The id becomes part of a directory name.
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.run_id):
            raise ValueError(
                f"a W&B run id is 1 to 64 letters, digits, - and _, got {self.run_id!r}"
            )
        if tensorboard:
            require_tensorboard()
        self._tensorboard = tensorboard
        self._writer: Any = None
        self._run: Any = None
        # W&B notes absolute paths, so that `wandb sync` works from anywhere.
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.metrics = MetricsFile(self.directory / "metrics.jsonl")
        if mode == "disabled":
            return
        options = {
            "project": project,
            "group": os.environ.get("WANDB_RUN_GROUP") or group,
            "job_type": os.environ.get("WANDB_JOB_TYPE") or "train",
            "name": name,
            "tags": [*tags, *filter(None, os.environ.get("WANDB_TAGS", "").split(","))] or None,
            "config": scrub(config),
            "id": self.run_id,
            "dir": str(self.directory),
        }
        options |= {key: value for key, value in (chosen or {}).items() if value is not None}
        try:
            self._run = start_wandb(mode, options, system)
        except BaseException:
            self.metrics.close()
            raise

    def where(self) -> tuple[str, str | None]:
        """Where W&B has the run, and the command that uploads it, if it is not there yet."""
        if self._run is None:
            return "off", None
        if not self._run.offline:
            return str(self._run.url), None
        # All of them: each start of a run that was resumed left one.
        pieces = shlex.quote(os.path.relpath(Path(self._run.dir).parents[1]))
        return "offline", f"wandb sync {pieces}/offline-run-*"

    def log(self, row: Mapping[str, Any]) -> None:
        """Send one row, which has an integer "step", to every sink."""
        row = self.metrics.write(row)
        if self._run is not None:
            self._run.log(row)
        if self._tensorboard and self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # TensorBoard forgets what a killed run logged after its last checkpoint.
            self._writer = SummaryWriter(self.directory / "tensorboard", purge_step=row["step"])
        if self._writer is not None:
            for key, value in row.items():
                if key != "step" and not isinstance(value, str):
                    self._writer.add_scalar(key, value, global_step=row["step"])

    def show(self, step: int, name: str, kind: str, *content: Any, **options: Any) -> None:
        """Log W&B's ``Image``, ``Video`` or ``Table`` of some content; no-op when disabled."""
        if self._run is not None:
            import wandb

            self._run.log({"step": step, name: getattr(wandb, kind)(*content, **options)})

    def summary(self, **evaluations: Any) -> None:
        """Set entries of the W&B summary, the row that stands for the run in its tables."""
        if self._run is not None:
            for name, values in evaluations.items():
                for key in ("return", "std", "step"):
                    self._run.summary[f"{name}/{key}"] = values[key]

    def artifact(self, kind: str, alias: str, *files: Path) -> None:
        """Log files, as they are now, as W&B's artifact ``<run_id>-<kind>``; no-op when disabled.

        They keep their places relative to the first one's directory.
        """
        if self._run is None:
            return
        if missing := [path for path in files if not path.exists()]:
            raise FileNotFoundError(
                f"the artifact {kind!r} needs {missing[0]}, which does not exist"
            )
        import wandb

        artifact = wandb.Artifact(f"{self.run_id}-{kind}", kind)
        # Uploads happen later (offline: at `wandb sync`) and would otherwise find a newer file,
        # or none. Our copy keeps them inside the run directory; W&B's own goes to the home.
        parent = self.directory / "wandb" / "artifacts"
        parent.mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=parent))
        for file in files:
            place = copy / file.relative_to(files[0].parent)
            place.parent.mkdir(exist_ok=True)
            shutil.copy2(file, place)
        artifact.add_dir(str(copy), policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact, aliases=[alias])

    def sync(self) -> int:
        """Force what was logged to the disk; return the offset for ``metrics.truncate``."""
        if self._writer is not None:
            self._writer.flush()
        return self.metrics.sync()

    def close(self, exit_code: int = 0) -> None:
        """Finish every sink; a W&B run with a non-zero ``exit_code`` is marked as failed."""
        self.metrics.close()
        if self._writer is not None:
            self._writer.close()
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=exit_code)


def require_tensorboard() -> None:
    """Say early, and without importing it, that TensorBoard is missing."""
    if find_spec("tensorboard") is None:
        raise ValueError("TensorBoard is not installed: pip install 'composerl[tensorboard]'")
