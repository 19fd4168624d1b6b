"""The metrics of one training run: metrics.jsonl always, W&B and TensorBoard when asked.

``wandb``, ``torch`` and ``tensorboard`` are imported where they are first needed: a run that
uses none of them should not wait for them.
"""

from __future__ import annotations

import configparser
import json
import math
import netrc
import os
import re
import secrets
import shutil
import string
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["MetricsFile", "Tracker", "read_metrics", "scrub", "wandb_mode"]

MODES = ("online", "offline", "disabled")
INIT_TIMEOUT = 30.0  # seconds until an unreachable W&B server means: go on offline
FINISH_TIMEOUT = 600.0  # seconds for the last uploads; what is left stays on disk

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class MetricsFile:
    """Append-only JSON lines, one ``{"step": n, ...}`` per row, in strict JSON.

    JSON has no NaN and no infinities: they are written as the strings "nan", "inf" and "-inf",
    and :func:`read_metrics` turns these back into floats.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = self.path.open("ab+")
        # A kill can leave half a line, which the next row would otherwise be glued to.
        self._file.seek(0)
        content = self._file.read()
        if not content.endswith(b"\n"):
            self._file.truncate(content.rfind(b"\n") + 1)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it must have an integer "step"."""
        row = {key: _as_json(value) for key, value in _plain(row).items()}
        line = json.dumps(row, allow_nan=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Force the rows to the disk; return the offset at which a resumed run goes on."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, offset: int) -> None:
        """Drop everything after ``offset``, a value that :meth:`sync` returned."""
        self._file.flush()
        size = os.fstat(self._file.fileno()).st_size
        if not 0 <= offset <= size:
            raise ValueError(
                f"{self.path} cannot be cut back to byte {offset}: it has {size} bytes, so it is "
                "not the file this checkpoint was written with"
            )
        self._file.seek(max(offset - 1, 0))
        if offset and self._file.read(1) != b"\n":
            raise ValueError(
                f"{self.path} cannot be cut back to byte {offset}: no row ends there, so it is "
                "not the file this checkpoint was written with"
            )
        self._file.truncate(offset)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; half a last line, as a kill leaves it, is not a row."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no metrics file at {path}")
    lines = Path(path).read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is not a JSON object: {error}") from error
        # Only strings can be one of the three; an unhashable value must not be looked up.
        rows.append({k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in row.items()})
    return rows


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with "step" first and one-element arrays or tensors as Python numbers."""
    step = row.get("step")
    step = step.item() if hasattr(step, "item") else step
    if not isinstance(step, int) or isinstance(step, bool):
        raise ValueError(f'a row of metrics needs an integer "step", got {step!r}')
    plain: dict[str, Any] = {"step": step}
    for key, value in row.items():
        if hasattr(value, "item") and math.prod(value.shape) == 1:
            value = value.item()
        if not isinstance(value, int | float | str):
            raise ValueError(f"metric {key!r} must be a number or a string, got {value!r}")
        plain[key] = value
    return plain


def _as_json(value: Any) -> Any:
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


# --- W&B: mode and secrets ---------------------------------------------------------------------

# The address of W&B's own server changed between releases; `wandb login` may have noted either.
_WANDB_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")


def wandb_mode(choice: str, environ: Mapping[str, str] = os.environ) -> str:
    """Resolve ``auto|online|offline|disabled`` to what W&B will do, without ever prompting.

    ``auto`` follows WANDB_MODE, then a ``wandb offline`` in W&B's settings file, and otherwise
    is online exactly when an API key is configured.
    """
    if choice not in ("auto", *MODES):
        raise ValueError(f"wandb must be auto, online, offline or disabled, got {choice!r}")
    settings = _wandb_settings(environ)
    if choice == "auto":
        if asked := environ.get("WANDB_MODE"):
            choice = {"run": "online", "dryrun": "offline"}.get(asked.lower(), asked.lower())
            if choice not in MODES:
                raise ValueError(f"WANDB_MODE must be one of {', '.join(MODES)}, got {asked!r}")
        elif settings.get("mode") in ("offline", "disabled"):
            return settings["mode"]
        else:
            return "online" if _has_key(environ, settings) else "offline"
    if choice == "online" and not _has_key(environ, settings):
        raise ValueError(
            "W&B is to be online but no API key is configured: run `wandb login`, "
            "or use --wandb offline"
        )
    return choice


def _wandb_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What W&B's user-wide settings file and the one of this directory say, as W&B reads them."""
    user = environ.get("WANDB_CONFIG_DIR") or _home(environ) / ".config" / "wandb"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read([Path(user).expanduser() / "settings", Path("wandb", "settings")])
    except (configparser.Error, UnicodeDecodeError) as error:
        warnings.warn(f"W&B's settings file is not readable: {error}", stacklevel=3)
    return dict(parser["default"]) if parser.has_section("default") else {}


def _has_key(environ: Mapping[str, str], settings: Mapping[str, str]) -> bool:
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if settings.get("api_key"):
        return True
    base = environ.get("WANDB_BASE_URL") or settings.get("base_url")
    hosts = (urlsplit(base).netloc,) if base else _WANDB_HOSTS
    hosts = _WANDB_HOSTS if set(hosts) & set(_WANDB_HOSTS) else hosts
    home = _home(environ)
    named = environ.get("NETRC")
    paths = [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return False
    try:
        entries = netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError) as error:
        warnings.warn(f"{path} is not readable, no key is taken from it: {error}", stacklevel=3)
        return False
    return any(host in entries and entries[host][2] for host in hosts)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


_SECRET = re.compile(
    r"(^|_)(passwords?|passwd|passphrase|secrets?|token|api_?keys?|credentials?|private_?keys?"
    r"|access_?keys?|o?auth|authorization)(_|$)"
)
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#]*@")
_QUERY = re.compile(r"([?&;])([\w.-]+)=([^&;#\s]+)")


def scrub(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``config`` with everything that looks like a secret replaced by "***".

    Key names count by whole words (``wandb_token`` and ``apiKey`` do, ``tokens_per_batch`` and
    ``author`` do not); in strings, user names, passwords and secret parameters of URLs.
    """
    return {
        key: "***" if _is_secret(str(key)) else _scrub_value(value) for key, value in config.items()
    }


def _is_secret(key: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key)
    return bool(_SECRET.search(re.sub(r"[^a-z0-9]+", "_", words.lower())))


def _scrub_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return scrub(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_scrub_value(item) for item in value]
    if isinstance(value, str | os.PathLike):
        text = _USERINFO.sub(r"\1***@", os.fspath(value))
        return _QUERY.sub(lambda m: f"{m[1]}{m[2]}=***" if _is_secret(m[2]) else m[0], text)
    return value


# --- all sinks of a run ------------------------------------------------------------------------


class Tracker:
    """Where the metrics of one run go: metrics.jsonl and, when asked, W&B and TensorBoard.

    All files are inside ``directory``. ``mode`` is what :func:`wandb_mode` returned. ``run_id``
    belongs in the checkpoint: a resumed run that passes it on continues the same W&B run.
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
        # W&B notes absolute paths, so that `wandb sync` works from anywhere.
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.metrics = MetricsFile(self.directory / "metrics.jsonl")
        if mode == "disabled":
            return
        options = {
            "project": project,
            "group": group,
            "name": name,
            "tags": list(tags) or None,
            "config": scrub(config),
            "id": self._run_id,
            "dir": str(self.directory),
        }
        try:
            self._run = _start_wandb(mode, options)
        except BaseException:
            self.metrics.close()
            raise

    @property
    def run_id(self) -> str:
        """The id of the W&B run, also when W&B is disabled."""
        return self._run_id

    def log(self, row: Mapping[str, Any]) -> None:
        """Send one row, which has an integer "step", to every sink."""
        row = _plain(row)
        self.metrics.write(row)
        if self._run is not None:
            self._run.log({**row})
        if self._writer_class is not None:
            if self._writer is None:
                # TensorBoard then forgets what a killed run logged after its last checkpoint.
                self._writer = self._writer_class(
                    self.directory / "tensorboard", purge_step=row["step"]
                )
            for key, value in row.items():
                if key != "step" and not isinstance(value, str):
                    self._writer.add_scalar(key, value, global_step=row["step"])

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set entries of the W&B summary, the row that stands for the run in its tables."""
        if self._run is not None:
            self._run.summary.update(dict(values))

    def artifact(self, path: Path, name: str, type: str, aliases: Sequence[str] = ()) -> None:
        """Log a file or a directory, as it is now, as a W&B artifact; no-op when disabled."""
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
        artifact.add_dir(str(copy), policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact, aliases=list(aliases))

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
            run.finish(exit_code=exit_code)


def _new_id() -> str:
    # Not from `random`: the id must neither depend on the seed nor move the generator.
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            "TensorBoard is not installed: pip install 'composerl[tensorboard]'"
        ) from error
    return SummaryWriter


def _start_wandb(mode: str, options: dict[str, Any]) -> Any:
    """Start a W&B run that prints nothing; when the server does not answer, an offline one."""
    # W&B's own error telemetry: it contacts the server in offline mode too, and an exit without
    # a network waits seconds for it. Only the environment can switch it off.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    wanted = {
        "silent": True,
        "quiet": True,
        "console": "off",
        "reinit": "create_new",
        "disable_git": True,
        "disable_code": True,
        "disable_job_creation": True,
        # The command line is part of the metadata and may hold secrets.
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_disable_stats": True,
        "x_save_requirements": False,
        # A SIGKILL takes the service along: what it has not written yet is lost.
        "x_transaction_log_flush_interval": 1.0,
        "init_timeout": INIT_TIMEOUT,
        "finish_timeout": FINISH_TIMEOUT,
    }
    settings = {k: v for k, v in wanted.items() if k in wandb.Settings.model_fields}

    def start(mode: str) -> Any:
        # Silent before init already: a silent W&B never asks for a key.
        wandb.setup(wandb.Settings(silent=True))
        return wandb.init(
            **options,
            mode=mode,
            resume="allow",
            save_code=False,
            settings=wandb.Settings(**settings),
        )

    try:
        run = start(mode)
    except Exception as error:
        if mode != "online":
            raise
        reason = " ".join(str(error).split())
        warnings.warn(
            f"W&B did not start online, the run goes on offline ({reason}); upload it later "
            f"with `wandb sync {options['dir']}/wandb/offline-run-*`",
            stacklevel=3,
        )
        # The service still holds the id of the failed attempt and would refuse it.
        wandb.teardown(exit_code=1)
        run = start("offline")
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run
