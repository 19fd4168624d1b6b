"""The metrics of one training run: metrics.jsonl always, W&B and TensorBoard when asked.

``wandb``, ``torch`` and ``tensorboard`` are imported where they are first needed: a run that
uses none of them should not wait for them.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import string
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from composerl.bookkeeping.metrics import MetricsFile, plain_row, read_metrics
from composerl.bookkeeping.wandb_run import MODES, scrub, start_wandb, wandb_mode

__all__ = [
    "MetricsFile",
    "Tracker",
    "read_metrics",
    "require_tensorboard",
    "scrub",
    "wandb_mode",
]

_NO_TENSORBOARD = "TensorBoard is not installed: pip install 'composerl[tensorboard]'"


class Tracker:
    """Where the metrics of one run go: metrics.jsonl and, when asked, W&B and TensorBoard.

    All files are inside ``directory``. ``mode`` is what :func:`wandb_mode` returned. ``run_id``
    belongs in the checkpoint: a resumed run that passes it on continues the same W&B run. W&B's
    own variables (WANDB_RUN_GROUP, WANDB_JOB_TYPE, WANDB_TAGS), by which ``composerl run --seeds``
    and sweep agents speak, come before the arguments of these names.
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
        job_type: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        tensorboard: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"the W&B mode must be one of {', '.join(MODES)}, got {mode!r}")
        # A sweep agent has already given the run its id.
        self._run_id = run_id or os.environ.get("WANDB_RUN_ID") or _new_id()
        # The id becomes part of a directory name.
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self._run_id):
            raise ValueError(
                f"a W&B run id is 1 to 64 letters, digits, - and _, got {self._run_id!r}"
            )
        self._writer_class = _summary_writer() if tensorboard else None
        self._writer: Any = None
        self._run: Any = None
        self._media: dict[str, Any] = {}
        self._step = 0
        # W&B notes absolute paths, so that `wandb sync` works from anywhere.
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.metrics = MetricsFile(self.directory / "metrics.jsonl")
        if mode == "disabled":
            return
        options = {
            "project": project,
            "group": os.environ.get("WANDB_RUN_GROUP") or group,
            "job_type": os.environ.get("WANDB_JOB_TYPE") or job_type,
            "name": name,
            "tags": [*tags, *filter(None, os.environ.get("WANDB_TAGS", "").split(","))] or None,
            "config": scrub(config),
            "id": self._run_id,
            "dir": str(self.directory),
        }
        try:
            self._run = start_wandb(mode, options)
        except BaseException:
            self.metrics.close()
            raise

    @property
    def run_id(self) -> str:
        """The id of the W&B run, also when W&B is disabled."""
        return self._run_id

    def log(self, row: Mapping[str, Any]) -> None:
        """Send one row, which has an integer "step", to every sink.

        What :meth:`table` and :meth:`video` have noted since the last row goes to W&B with it.
        """
        row = plain_row(row)
        self._step = row["step"]
        self.metrics.write(row)
        if self._run is not None:
            self._run.log({**row, **self._media})
            self._media = {}
        if self._writer_class is not None:
            if self._writer is None:
                # TensorBoard then forgets what a killed run logged after its last checkpoint.
                self._writer = self._writer_class(
                    self.directory / "tensorboard", purge_step=row["step"]
                )
            for key, value in row.items():
                if key != "step" and not isinstance(value, str):
                    self._writer.add_scalar(key, value, global_step=row["step"])

    def image(self, name: str, path: Path, step: int) -> None:
        """Show a picture in W&B; no-op when disabled."""
        if self._run is not None:
            import wandb

            self._run.log({"step": step, f"images/{name}": wandb.Image(str(path))})

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set entries of the W&B summary, the row that stands for the run in its tables."""
        if self._run is not None:
            self._run.summary.update(dict(values))

    def artifact(
        self,
        path: Path,
        name: str,
        type: str,
        aliases: Sequence[str] = (),
        beside: Sequence[Path] = (),
    ) -> None:
        """Log a file or a directory, as it is now, as a W&B artifact; no-op when disabled.

        ``beside`` are further files below the same directory, which keep their place.
        """
        if self._run is None:
            return
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"the artifact {name!r} needs {path}, which does not exist")
        import wandb

        artifact = wandb.Artifact(name, type)
        # Uploads happen later (offline: at `wandb sync`) and would otherwise find a newer file,
        # or none. Our copy keeps them inside the run directory; W&B's own goes to the home.
        parent = self.directory / "wandb" / "artifacts"
        parent.mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        if path.is_dir():
            shutil.copytree(path, copy, dirs_exist_ok=True)
        else:
            shutil.copy2(path, copy)
        for file in beside:
            place = copy / file.relative_to(path.parent)
            place.parent.mkdir(exist_ok=True)
            shutil.copy2(file, place)
        artifact.add_dir(str(copy), policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact, aliases=list(aliases))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Note a table for W&B, which gets it with the next row; no-op when disabled."""
        if self._run is not None:
            import wandb

            self._media[name] = wandb.Table(columns=list(columns), data=[list(row) for row in rows])

    def video(self, name: str, path: Path) -> None:
        """Note an animated GIF for W&B, which gets it with the next row; no-op when disabled."""
        if self._run is not None:
            import wandb

            self._media[f"videos/{name}"] = wandb.Video(str(path), format="gif")

    def sync(self) -> int:
        """Force what was logged to the disk; return the offset for :meth:`truncate`."""
        if self._writer is not None:
            self._writer.flush()
        return self.metrics.sync()

    def truncate(self, offset: int) -> None:
        """Drop the rows of metrics.jsonl that a killed run wrote after its checkpoint."""
        self.metrics.truncate(offset)

    def close(self, exit_code: int = 0) -> None:
        """Finish every sink; a W&B run with a non-zero ``exit_code`` is marked as failed."""
        self.metrics.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._run is not None:
            run, self._run = self._run, None
            if self._media:  # noted after the last row
                run.log({"step": self._step, **self._media})
            run.finish(exit_code=exit_code)


def _new_id() -> str:
    # Not from `random`: the id must neither depend on the seed nor move the generator.
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))


def require_tensorboard() -> None:
    """Say early, and without importing it, that TensorBoard is missing."""
    if find_spec("tensorboard") is None:
        raise ValueError(_NO_TENSORBOARD)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(_NO_TENSORBOARD) from error
    return SummaryWriter
