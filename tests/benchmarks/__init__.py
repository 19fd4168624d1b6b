"""How fast everything is, beside what one would write by hand and what others wrote.

    OMP_NUM_THREADS=1 python -m tests.benchmarks --list
    OMP_NUM_THREADS=1 python -m tests.benchmarks iql sac --rounds 15 --json found.json

A benchmark is a function that yields cases; a case has ways of doing the same work, by name, the
first of which the others are compared with. All ways of a case take turns in one process, on one
thread, with the allocator set as a run of composerl sets it; what is counted is CPU time, that of
processes they start included. A hand-written update does what ours does, from the same weights:
``tests/test_benchmarks.py`` compares their losses and gradients. Other libraries take part where
they can be imported.

``results.json`` holds what was found, when, where and with which versions; ``--tables`` makes
recipes/SPEED.md of it.
"""
