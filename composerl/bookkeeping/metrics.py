"""metrics.jsonl: one JSON row per logged step, safe to cut back when a run is resumed."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composerl._files import replace_file

__all__ = ["MetricsFile", "read_metrics"]

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

    def write(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append one row, with an integer "step"; returns it with Python's numbers only."""
        plain = _plain(row)
        strict = {key: _as_json(value) for key, value in plain.items()}
        line = json.dumps(strict, allow_nan=False, separators=(",", ":"))
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        return plain

    def sync(self) -> int:
        """Force the rows to the disk; return the offset at which a resumed run goes on."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, offset: int) -> None:
        """Go on with a copy of what is before ``offset``, a value that :meth:`sync` returned.

        A copy, because an earlier writer that was taken for dead still has the old file open.
        """
        self._file.seek(0)
        kept = self._file.read(offset)
        if len(kept) != offset or not (kept or b"\n").endswith(b"\n"):
            raise ValueError(
                f"{self.path} cannot be cut back to byte {offset}: no row ends there, so it is not "
                "the file this checkpoint was written with (to start over delete the run's "
                "checkpoints)"
            )
        self._file.close()
        replace_file(self.path, lambda file: file.write_bytes(kept))
        self._file = self.path.open("ab+")

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
    step: Any = row.get("step")
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
