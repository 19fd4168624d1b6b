"""Pictures of what a world model imagines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

__all__ = ["open_loop"]


@torch.no_grad()
def open_loop(world: Any, records: TensorDictBase, *, shown: int = 5, rows: int = 4) -> np.ndarray:
    """A strip of what a world model expects to see, uint8 ``(height, width, 3)``.

    Time goes from left to right. Each sequence takes three lines: what happened, what the model
    says, and the difference (grey is none). The model sees the first ``shown`` frames of a
    sequence, and again of each episode that starts in it; what follows it imagines from the
    actions alone, with the likeliest latents.

    Args:
        world: a :class:`~composerl.modules.WorldModel`.
        records: ``(batch, time)``, as a :class:`~composerl.data.SequenceReplay` samples them.
        shown: frames that the model sees; a white line above them says so.
        rows: how many of the sequences to draw.
    """
    records = records[:rows].to(world.gates.weight.device)
    action, first = records["action"], records["first"]
    images = world.image(records["observation"]).unflatten(0, records.shape)
    rows, time = records.shape
    latent, age = world.initial(rows), torch.zeros(rows, dtype=torch.int64, device=action.device)
    states, seen = [], []
    for t in range(time):
        age = torch.where(first[:, t], 0, age)
        watched = world.observe(
            images[:, t], action[:, t : t + 1], first[:, t : t + 1], latent, sample=False
        ).latent
        imagined = world.imagine(latent, action[:, t], sample=False)
        sees = (age < shown).unsqueeze(1)
        latent = type(latent)(
            *(torch.where(sees, a.squeeze(1), b) for a, b in zip(watched, imagined, strict=True))
        )
        states.append(latent.features)
        seen.append(sees)
        age = age + 1
    features = torch.stack(states, 1).flatten(0, 1)
    model = world.decoder(features).clamp(0, 1).unflatten(0, (rows, time))
    lines = torch.stack([images, model, (model - images + 1) / 2], 1)
    # A pixel of white above what the model was shown, of black above what it imagined.
    mark = torch.stack(seen, 1).to(lines.dtype).view(rows, 1, time, 1, 1, 1)
    mark = mark.expand(rows, 3, time, lines.shape[3], 1, lines.shape[5])
    return _paper(torch.cat([mark, lines], 4))


def _paper(frames: Tensor) -> np.ndarray:
    """Frames ``(rows, lines, time, channels, height, width)`` side by side, in colour."""
    channels = frames.shape[3]
    if channels != 3:  # of a stack of grey frames the newest, last one
        frames = frames[:, :, :, -1:].expand(-1, -1, -1, 3, -1, -1)
    sheet = frames.permute(0, 1, 4, 2, 5, 3).flatten(0, 2).flatten(1, 2)
    return (sheet * 255).round().to(torch.uint8).cpu().numpy()
