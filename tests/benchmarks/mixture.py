"""The online phase of an offline learner: CPU microseconds of a step, by what is stored.

A step is ``extend`` by one transition and ``sample`` of 256, half of each buffer; every 200th ends
an episode, whose rows are then stored. By hand there are four tensors in a ring of a fixed size,
and the same draws; it knows no episodes and keeps no index.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import torch
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer

from composerl.data import MixedReplayBuffer, PackedStorage, WholeEpisodes

from .timing import Case, Step

EPISODE, SIZES = 200, (10_000, 100_000, 400_000)


def transitions(number: int) -> TensorDict:
    """Of HalfCheetah's sizes; each goes on where the last one ended."""
    t = torch.arange(number).float().unsqueeze(1)
    done = t % EPISODE == EPISODE - 1
    following = {"observation": (t + 1).expand(-1, 17).clone(), "reward": torch.randn(number, 1)}
    following |= {"terminated": torch.zeros_like(done), "truncated": done, "done": done.clone()}
    values = {"observation": t.expand(-1, 17).clone(), "action": torch.randn(number, 6)}
    return TensorDict({**values, "next": following}, [number])


def ours(stored: int) -> tuple[Step, Step]:
    """To extend and to sample, with so many rows in each buffer."""
    rows = transitions(stored)
    offline = TensorDictReplayBuffer(storage=PackedStorage(stored))
    offline.extend(rows)
    online = TensorDictReplayBuffer(storage=PackedStorage(1_000_000), transform=WholeEpisodes(0.99))
    for part in rows.split(10 * EPISODE):
        online.extend(part)
    buffer = MixedReplayBuffer(offline, online, batch_size=256)
    steps = cycle(transitions(EPISODE).split(1))
    return lambda: buffer.extend(next(steps)), buffer.sample


def by_hand(stored: int) -> tuple[Step, Step]:
    """The same on plain tensors."""
    offline = dict(transitions(stored).flatten_keys().items())
    online = {key: torch.cat([x, x]) for key, x in offline.items()}
    steps = cycle(dict(step.flatten_keys().items()) for step in transitions(EPISODE).split(1))
    newest = cycle(range(2 * stored))

    def extend() -> None:
        row = next(newest)
        for key, value in next(steps).items():
            online[key][row] = value[0]

    def sample() -> dict[str, torch.Tensor]:
        halves = torch.randint(0, stored, (2, 128))
        return {key: torch.cat([offline[key][halves[0]], online[key][halves[1]]]) for key in online}

    return extend, sample


def name(what: str, size: int) -> str:
    """Of a case."""
    return f"{what}, {size:,} rows in each"


def benchmark() -> Iterator[Case]:
    """Going online: a step into whole episodes, a batch mixed from two buffers; 1e4 to 4e5 rows."""
    for size in SIZES:
        kinds = {"by hand": by_hand(size), "composerl": ours(size)}

        def repeated(way: Step) -> Step:
            return lambda: [way() for _ in range(EPISODE)]

        for what, part in (("extend", 0), ("sample", 1)):
            ways = {kind: repeated(pair[part]) for kind, pair in kinds.items()}
            yield Case(name(what, size), ways, each=EPISODE)
