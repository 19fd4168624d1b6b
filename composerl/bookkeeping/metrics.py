"""metrics.jsonl: one JSON row per logged step, safe to cut back when a run is resumed."""

import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from composerl._files import open_plain, parse_json, replace_file
from composerl._schema import short, typed

__all__ = ["MetricsFile", "metric_rows", "read_metrics", "require_rows"]

_LINE = 1 << 24  # bytes that a row has less than
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class MetricsFile:
    """Append-only JSON lines, one ``{"step": n, ...}`` per row, in strict JSON.

    JSON has no NaN and no infinities: they are written as the strings "nan", "inf" and "-inf",
    and :func:`read_metrics` turns these back into floats.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = open_plain(self.path, "ab+")
        self._digest, end = xxhash.xxh3_128(), 0
        self._file.seek(0)
        # A row has less: neither here nor there is anything read that has no end.
        while (line := self._file.readline(_LINE)).endswith(b"\n"):
            self._digest.update(line)
            end += len(line)
        if line:  # A kill can leave half a line, which the next row would otherwise be glued to.
            self._keep(require_rows(self.path, end))

    def write(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append one row, with an integer "step"; returns it with Python's numbers only."""
        plain = _plain(row)
        strict = {key: _as_json(value) for key, value in plain.items()}
        line = json.dumps(strict, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._digest.update(line)
        return plain

    def sync(self) -> int:
        """Force the rows to the disk; return the offset at which a resumed run goes on."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def digest(self) -> str:
        """Of all rows so far, which a checkpoint keeps: they are part of what is resumed."""
        return self._digest.hexdigest()

    def truncate(self, offset: int) -> None:
        """Go on with a copy of what is before ``offset``, a value that :meth:`sync` returned.

        A copy, because an earlier writer that was taken for dead still has the old file open.
        """
        self._keep(require_rows(self.path, offset))

    def _keep(self, content: bytes) -> None:
        self._file.close()
        replace_file(self.path, lambda file: file.write_bytes(content))
        self._file = open_plain(self.path, "ab+")
        self._digest = xxhash.xxh3_128(content)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()


def require_rows(path: Path, offset: int, digest: str | None = None) -> bytes:
    """The rows before an offset; a ValueError if these are not those with this digest."""
    with open_plain(path) as file:
        kept = file.read(offset) if offset > 0 else b""
    whole = len(kept) == offset and (kept or b"\n").endswith(b"\n")
    if not whole or (digest is not None and xxhash.xxh3_128(kept).hexdigest() != digest):
        what = "it has other rows" if whole else "no row ends there"
        raise ValueError(
            f"{path} cannot be cut back to byte {offset}: {what}, so it is not the file this "
            "checkpoint was written with (to start over delete the run's checkpoints)"
        )
    return kept


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; half a last line, as a kill leaves it, is not a row."""
    return list(metric_rows(path))


def metric_rows(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The same rows, one after the other: a long run has more of them than fit into memory."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no metrics file at {path}")
    with open_plain(Path(path)) as file:
        for number in itertools.count(1):
            where, line = f"{path}, line {number}", file.readline(_LINE)
            if not line:
                return
            if not line.strip():
                continue
            try:
                row = parse_json(line, where)
            except ValueError:
                if not line.endswith(b"\n") and len(line) < _LINE:
                    return
                raise
            yield _checked(row, where)


def _checked(row: Any, where: str) -> dict[str, Any]:
    """A row of numbers and text, with the three strings that stand for numbers turned back."""
    if typed(row, {"step": int}, where).get("step") is None:
        raise ValueError(f"{where} has no step, a whole number")
    for key, value in row.items():
        if not isinstance(value, int | float | str):
            raise ValueError(f"{where}: {key} must be a number or text, got {short(value)}")
        if isinstance(value, str):
            row[key] = _NON_FINITE.get(value, value)
    return row


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
