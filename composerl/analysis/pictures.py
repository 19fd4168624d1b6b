"""Pictures of what a world model imagines."""

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from composerl.modules import WorldModel

__all__ = ["open_loop"]

#: Pixels a side of the square that stands for a number.
SIDE = 8


@torch.no_grad()
def open_loop(
    world: WorldModel, records: TensorDictBase, *, shown: int = 5, rows: int = 4
) -> np.ndarray:
    """A strip of what a world model expects to see, uint8 ``(height, width, 3)``.

    Time goes from left to right. Each sequence takes three lines: what happened, what the model
    says, and the difference (grey is none). Of vectors, a square is a number, from the least of
    it that happened (black) to the largest; of images and vectors together, the first image is
    drawn. The model sees the first ``shown`` frames of a sequence, and again of each episode that
    starts in it; what follows it imagines from the actions alone, with the likeliest latents.

    Args:
        world: what imagines.
        records: ``(batch, time)``, as a :class:`~composerl.data.SequenceSampler` draws them.
        shown: frames that the model sees; a white line above them says so.
        rows: how many of the sequences to draw.
    """
    records = records[:rows].to(world.posterior_norm.weight.device)
    first, images = records["first"], world.inputs(records["observation"])
    rows, time = records.shape
    step = torch.arange(time, device=first.device)
    seen = step - torch.where(first, step, 0).cummax(1).values < shown
    latent = world.observe(images, records["action"], first, sample=False, shown=seen).latent
    model = world.decoder(latent.features.flatten(0, 1))
    if isinstance(images, tuple):
        images, model = images[0], model[0]
    if images.ndim == 2:
        low, high = images.amin(0), images.amax(0)
        images, model = (_squares((x - low) / (high - low + 1e-6)) for x in (images, model))
    model = model.clamp(0, 1)
    lines = torch.stack([images, model, (model - images + 1) / 2]).unflatten(1, (rows, time))
    lines = lines.transpose(0, 1)
    # A pixel of white above what the model was shown, of black above what it imagined.
    mark = seen.to(lines.dtype).view(rows, 1, time, 1, 1, 1)
    mark = mark.expand(rows, 3, time, lines.shape[3], 1, lines.shape[5])
    return _paper(torch.cat([mark, lines], 4))


def _squares(numbers: Tensor) -> Tensor:
    """Vectors ``(n, length)`` as images, one square below the other."""
    square = torch.ones(1, SIDE, SIDE, device=numbers.device)
    return torch.kron(numbers[:, None, :, None], square.unsqueeze(0))


def _paper(frames: Tensor) -> np.ndarray:
    """Frames ``(rows, lines, time, channels, height, width)`` side by side, in colour."""
    channels = frames.shape[3]
    if channels != 3:  # of a stack of grey frames the newest, last one
        frames = frames[:, :, :, -1:].expand(-1, -1, -1, 3, -1, -1)
    sheet = frames.permute(0, 1, 4, 2, 5, 3).flatten(0, 2).flatten(1, 2)
    return (sheet * 255).round().to(torch.uint8).cpu().numpy()
