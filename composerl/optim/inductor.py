"""The compiler, told what it needs to know before the first graph."""

import os

from composerl._files import cache_dir

__all__ = ["prepare"]


def prepare() -> None:
    """Have backward in the graph, a cache that outlives the process, and no trial of the CPU."""
    # Compiling takes half a minute, loading seconds.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "inductor"))
    import torch._dynamo
    from torch._inductor import config

    torch._dynamo.config.trace_autograd_ops = True
    # Networks of one class share a count: Dreamer's heads, with gradients and without, have seven.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    # For each kind of vector instructions that the CPU has, inductor would compile, link and load
    # a program, 8 of 38 s, to learn if the C++ compiler knows them. One that knows the C++ of
    # torch's headers does.
    if config.cpp.vec_isa_ok is None:
        config.cpp.vec_isa_ok = True
