"""Read back what a W&B run wrote to its ``.wandb`` file, record by record, without a server.

The file is a LevelDB log (blocks of 32 KiB, records split into first/middle/last pieces, each
with a checksum) of protobuf records; wandb 0.31 has no Python reader for it.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADER = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
BLOCK = 32768
FULL, _FIRST, _MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class WandbRun:
    """What one ``.wandb`` file says."""

    path: Path
    run_id: str = ""
    project: str = ""
    group: str = ""
    job_type: str = ""
    name: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    kinds: set[str] = field(default_factory=set)


def read_wandb(directory: Path) -> list[WandbRun]:
    """Every W&B run below ``directory``, oldest first.

    Ends the W&B service of this process: `run.finish()` returns before the service has written
    its file, and only the end of the service is a promise that it has.
    """
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()
    paths = sorted(Path(directory).glob("**/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [_read_run(path) for path in paths]


def _read_run(path: Path) -> WandbRun:
    from wandb.proto import wandb_internal_pb2

    run = WandbRun(path)
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        run.kinds.add(kind)
        if kind == "run":
            run.run_id, run.project = record.run.run_id, record.run.project
            run.group, run.name = record.run.run_group, record.run.display_name
            run.tags, run.job_type = list(record.run.tags), record.run.job_type
            run.config.update(_items(record.run.config.update))
        elif kind == "config":
            run.config.update(_items(record.config.update))
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "summary":
            run.summary.update(_items(record.summary.update))
        elif kind == "metric":
            name = record.metric.name or record.metric.glob_name
            run.step_metrics[name] = record.metric.step_metric
        elif kind == "artifact":
            item = record.artifact
            files = {entry.path: entry.local_path for entry in item.manifest.contents}
            run.artifacts.append(
                {
                    "name": item.name,
                    "type": item.type,
                    "aliases": list(item.aliases),
                    "files": files,
                }
            )
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _records(data: bytes) -> Iterator[bytes]:
    if data[: len(HEADER)] != HEADER:
        raise ValueError(f"not a W&B file: it starts with {data[:7]!r}")
    position, pieces = len(HEADER), b""
    while position + 7 <= len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, position)
        piece = data[position + 7 : position + 7 + length]
        if len(piece) < length:
            return  # the run is still writing, or was killed while it did
        if zlib.crc32(bytes([kind]) + piece) != checksum:
            raise ValueError(f"the record at byte {position} has a wrong checksum")
        position += 7 + length
        pieces += piece
        if kind in (FULL, LAST):
            yield pieces
            pieces = b""


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
