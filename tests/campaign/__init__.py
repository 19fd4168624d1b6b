"""A campaign against composerl: kills, flipped bytes, full disks, hostile files, bad flags.

    python -m tests.campaign                        # the short form: a few of each, in a minute
    python -m tests.campaign kills --count 500      # the long form of one, with another --seed too
    python -m tests.campaign flips --start 37 --count 1    # one that failed, again

Each try is a child forked from this process, which has imported all that takes seconds; every
fiftieth is a process of its own, as a person would start it. What may come of a try is that all is
well, and equal where there is something to compare with, or one sentence and an exit code that says
so. All else is a defect: a traceback, a hang, too much memory, a difference that nobody tells, code
that was executed, a file touched that is not the run's. Needs Linux.
"""
