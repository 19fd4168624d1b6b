"""Weights & Biases: whether to use it, what it may see, and how to start it quietly."""

import configparser
import netrc
import os
import re
import sys
import warnings
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["MODES", "scrub", "start_wandb", "wandb_mode"]

MODES = ("online", "offline", "disabled")
INIT_TIMEOUT = 30.0  # seconds until an unreachable W&B server means: go on offline
FINISH_TIMEOUT = 120.0  # seconds for the last uploads; what is left stays on disk

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
        parser.read([Path(user).expanduser() / "settings", Path("wandb", "settings")], "utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        warnings.warn(f"W&B's settings file is not readable: {error}", stacklevel=3)
    return dict(parser["default"]) if parser.has_section("default") else {}


def _has_key(environ: Mapping[str, str], settings: Mapping[str, str]) -> bool:
    keys = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
    if settings.get("api_key") or any(environ.get(key) for key in keys):
        return True
    base = environ.get("WANDB_BASE_URL") or settings.get("base_url")
    host = urlsplit(base or "").netloc
    hosts = _WANDB_HOSTS if not base or host in _WANDB_HOSTS else (host,)
    home, named = _home(environ), environ.get("NETRC")
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


def start_wandb(mode: str, options: dict[str, Any], system: bool = False) -> Any:
    """Start a W&B run that prints nothing; when the server does not answer, an offline one.

    With ``system`` W&B also records what CPU, memory and GPU do.
    """
    # W&B's own error telemetry: it contacts the server in offline mode too, and an exit without
    # a network waits seconds for it. Only the environment can switch it off.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    _look_for_launch_only_if_loaded()
    wanted: dict[str, Any] = {
        "silent": True,
        "quiet": True,
        "console": "off",
        "reinit": "create_new",
        "disable_git": True,
        "disable_code": True,
        "disable_job_creation": True,
        # The command line is part of the metadata and may hold secrets.
        "x_disable_meta": True,
        "x_disable_machine_info": not system,
        "x_disable_stats": not system,
        "x_save_requirements": False,
        # A SIGKILL takes the service along: what it has not written yet is lost.
        "x_transaction_log_flush_interval": 1.0,
        "init_timeout": INIT_TIMEOUT,
        "finish_timeout": FINISH_TIMEOUT,
    }
    settings = {k: v for k, v in wanted.items() if k in wandb.Settings.model_fields}

    def start(mode: Any) -> Any:
        # Silent before init already: a silent W&B never asks for a key.
        wandb.setup(wandb.Settings(silent=True))
        chosen = wandb.Settings(**settings)
        return wandb.init(**options, mode=mode, resume="allow", save_code=False, settings=chosen)

    show = sys.excepthook
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
    # Its own prints a traceback and has torch's print it again; that a run failed we tell it.
    sys.excepthook = show
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def _look_for_launch_only_if_loaded() -> None:
    """Spare a run W&B's search for inputs of Launch, where nobody can have given any.

    To search, W&B imports Launch and all of its public API with it: more than half of the CPU time
    of its start once torch is loaded, 0.5 to 0.9 s.
    """
    from wandb.sdk.wandb_run import Run

    search = getattr(Run, "_detect_and_apply_job_inputs", None)
    if search is None or hasattr(search, "__wrapped__"):
        return

    @wraps(search)
    def only_if_loaded(run: Any) -> None:
        if "wandb.sdk.launch" in sys.modules:
            search(run)

    Run._detect_and_apply_job_inputs = only_if_loaded  # type: ignore[assignment, method-assign]
