"""Values that nobody expects, and trees with some of them inside."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

DEEP = 3000
ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"
WORDS = ("", "x", ESCAPE, "../elsewhere/letter.txt", "/etc/passwd", "evil_env:Evil-v0", r"$\frac{",
         "<script>x</script>", "nan", "inf", "1e999", "Pendulum-v1", "CartPole-v1", "a\nb", "%s{}",
         "\x00", "none", "cuda:7", "C:\\x", "a" * 5000, "é" * 50, "step-000000000009")  # fmt: skip
NUMBERS = (0, 1, -1, 2, 7, 255, 2**31, 2**32, 2**62, 2**63, -(2**63) - 1, 10**30, 10**39, 0.5, -0.0,
           1e-320, 1e38, 1e308, -1e308, math.nan, math.inf, -math.inf, True, False)  # fmt: skip


def value(rng: random.Random) -> Any:
    """A value of any kind that JSON and YAML have."""
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 7:
        return rng.choice(WORDS)
    if kind == 7:
        return None
    few = rng.randrange(4)
    if kind == 8:
        return [value(rng) for _ in range(few)]
    return {str(value(rng)): value(rng) for _ in range(few)}


def tensor(rng: random.Random) -> torch.Tensor:
    """A tensor of any type and shape, not large."""
    shape = [rng.choice((0, 1, 2, 3, 17)) for _ in range(rng.randrange(4))]
    kind = rng.choice((torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64,
                       torch.int8, torch.uint8, torch.bool))  # fmt: skip
    made = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(rng.randrange(99)))
    made = made.to(kind)
    return made * math.nan if kind.is_floating_point and rng.random() < 0.3 else made


def changed(rng: random.Random, tree: Any, tensors: bool = False) -> tuple[Any, str]:
    """A copy of a tree of dicts and lists with one place changed, and where that is."""
    places = list(_places(tree, ()))
    # Near the root there are few places, and most is decided there.
    place = rng.choice(places if rng.random() < 0.5 else [p for p in places if len(p) <= 2])
    new = tensor(rng) if tensors and rng.random() < 0.5 else value(rng)
    what = f"{'/'.join(map(str, place))} = {str(new)[:60]!r}"
    how = rng.random()
    if not place:
        return new, what
    if how < 0.1:
        return _with(tree, place, _GONE), f"no {'/'.join(map(str, place))}"
    if how < 0.2:
        return _with(tree, (*place[:-1], str(value(rng))), new), f"more: {what}"
    return _with(tree, place, new), what


_GONE = object()


def _places(tree: Any, above: tuple[Any, ...]) -> Any:
    yield above
    items = tree.items() if isinstance(tree, dict) else (
        enumerate(tree[:5]) if isinstance(tree, (list, tuple)) else ()
    )  # fmt: skip
    for key, below in items:
        yield from _places(below, (*above, key))


def _with(tree: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    key, *rest = place
    if isinstance(tree, (list, tuple)):
        made = list(tree)
        if isinstance(key, int) and key < len(made):
            made[key] = _with(made[key], tuple(rest), new)
        return (
            type(tree)(x for x in made if x is not _GONE) if type(tree) in (list, tuple) else made
        )
    made = dict(tree) if isinstance(tree, dict) else {}
    made[key] = _with(made.get(key), tuple(rest), new)
    return {key: below for key, below in made.items() if below is not _GONE}


def text(rng: random.Random) -> str:
    """What is no sensible file of JSON or YAML."""
    deep = rng.choice((60, DEEP, 100 * DEEP))
    return rng.choice((
        "", "\n", "null", "[]", "{}", "{" * deep, "[" * deep, "a: " + "[" * deep, '{"a":' * deep,
        "[" * deep + "]" * deep, "9" * 5000, '{"step": ' + "9" * 400 + "}", '{"step": 1e999}',
        "\ufeff{}", "a: &a [*a]", "!!python/object/apply:os.system [x]", "? {a: b}\n: c",
        "a: 2024-99-99", "a: !!binary x", "- " * 1000, "<<: *x", "a: 1\na: 2", "%YAML 9.9\n---\n{}",
        "x" * 300_000, '{"a": "\\ud800"}', "a: 0x" + "f" * 5000, "a: 1:2:3:4:5:6:7:8:9", "a: .inf",
        "a: |\n  x", "---\na: 1\n---\nb: 2", "a: 'x", '{"a": 1, "a": 2}', "\x00", "a: \x1b[31m",
        "a: &x " + "[" + ", ".join(["1"] * 9) + "]\n" + "\n".join(f"b{i}: *x" for i in range(99)),
        '{"step": 1}\n' * 3 + '{"step": 0}', '{"step": -1}', '{"step": 5, "eval/return": "nan"}',
    ))  # fmt: skip
