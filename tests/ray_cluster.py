"""A small Ray cluster on this machine, and somebody who kills its workers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

#: Ray's token: that of a test is no business of the home directory.
ENVIRON = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    # A node that answers nothing is taken for dead after a quarter of a minute.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2500",
    "RAY_health_check_failure_threshold": "5",
}


class SmallCluster:
    """Two nodes of one core each. A process of its own has them: Ray reads its environment once."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=os.environ | ENVIRON, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._hear()

    def _hear(self):
        said = json.loads(self._process.stdout.readline())
        self.address, self._raylets = said["address"], said["raylets"]

    def add_node(self):
        """Another node in place of the second, which is dead."""
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        self._hear()

    def workers(self):
        """Process ids and titles of the workers that do a task of ours; nobody else's."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                title = (entry / "cmdline").read_bytes().rstrip(b"\0").decode()
                parent = _parent(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent in self._raylets and re.match(r"ray::.*seed", title):
                found[int(entry.name)] = title.removeprefix("ray::")
        return found

    def node_of(self, pid):
        """0 or 1, and the process id of that node's raylet."""
        raylet = _parent(pid)
        return self._raylets.index(raylet), raylet

    def close(self):
        self._process.communicate(timeout=60)


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def serve():
    """The process that has the cluster."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster()
    nodes = [cluster.add_node(include_dashboard=False, **small), cluster.add_node(**small)]

    def tell():
        raylets = [p.process.pid for node in nodes for p in node.all_processes["raylet"]]
        print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)

    tell()
    for _ in sys.stdin:
        nodes[1] = cluster.add_node(**small)
        tell()
    cluster.shutdown()


class Killer(threading.Thread):
    """Kills workers with SIGKILL, up to so many: one at a random moment, one at a checkpoint, ...

    Moments alone would mostly hit the start of a process, and miss a short run altogether.
    A run is spared after eight deaths without a new checkpoint: a fleet gives up after ten.
    """

    def __init__(self, cluster, place, kills, pause, seed=0):
        super().__init__(daemon=True)
        self._cluster, self._place, self._kills, self._pause = cluster, place, kills, pause
        self._random, self._over = random.Random(seed), threading.Event()
        self._deaths = Counter()
        self.victims = []

    def run(self):
        while len(self.victims) < self._kills and not self._over.is_set():
            if len(self.victims) % 2:
                before = self._phases()
                while not self._over.wait(0.05):
                    now = self._phases()
                    if pids := [pid for pid in now if now[pid] != before.get(pid, now[pid])]:
                        break
                    before = now
            else:
                self._over.wait(self._random.uniform(*self._pause))
                now = self._phases()
                pids = [pid for pid in sorted(now) if self._deaths[now[pid]] < 8]
            if pids and not self._over.is_set():
                pid = self._random.choice(pids)
                with suppress(ProcessLookupError):  # it was done before
                    os.kill(pid, signal.SIGKILL)
                    self.victims.append(now[pid][0])
                    self._deaths[now[pid]] += 1

    def _phases(self):
        """The run of each worker, and its newest checkpoint."""
        return {pid: (name, self._saved(name)) for pid, name in self._cluster.workers().items()}

    def _saved(self, name):
        steps = (self._place / name / "checkpoints").glob("step-*")
        return max((path.name for path in steps), default="")

    def stop(self):
        self._over.set()
        self.join()


def composerl(*words, cwd, environ=None):
    """A composerl command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "composerl", *map(str, words)], cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | ENVIRON | (environ or {}),
    )  # fmt: skip


def wait_for(condition, seconds=120):
    """Until the condition holds; what it gives."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


if __name__ == "__main__":
    serve()
