"""Pictures as PNG files."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

__all__ = ["write_png"]


def write_png(path: str | Path, image: np.ndarray) -> Path:
    """Write an image, uint8 ``(height, width, 3)`` or grey ``(height, width)``, as PNG."""
    grey = image.ndim == 2
    if image.dtype != np.uint8 or not (grey or (image.ndim == 3 and image.shape[2] == 3)):
        raise ValueError(
            "a PNG needs uint8 of shape (height, width) or (height, width, 3), "
            f"got {image.dtype} of shape {image.shape}"
        )
    height, width = image.shape[:2]
    # Each line starts with the number of its filter; 0 is none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], 1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if grey else 2, 0, 0, 0)
    content = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in content))
    return path
