"""Runs as tasks on a Ray cluster. Ray is imported when one is asked for, and not before."""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from composerl._ray import connect
from composerl.bookkeeping.owner import NODE, owner_of
from composerl.bookkeeping.rundir import versions
from composerl.fleet.jobs import Ended, Job

__all__ = ["RayWorkers", "differences", "installed"]


class RayWorkers:
    """A task for each run, in a worker process of its own.

    Ray retries nothing by itself: who drives the fleet does, because it has to take the directory
    from a worker that may only seem dead.

    Args:
        address: of a cluster, or ``auto`` for the one of this machine; None starts one here.
        mark: a file that the workers must see.
        gpus: of each run; may be a fraction.
    """

    def __init__(self, address: str | None, mark: Path, gpus: float = 0) -> None:
        self._ray = connect(f"--on ray={address}" if address else "--on ray", address)
        self._mark, self._gpus = mark, gpus
        # A process ends with its task: nothing of one run is left for the next.
        once = {"num_gpus": gpus, "max_retries": 0, "max_calls": 1}
        self._task = self._ray.remote(**once)(_task())
        self._jobs: dict[Any, Job] = {}
        self._asked, self._known = -math.inf, list[dict[str, Any]]()

    def slots(self, job: Job) -> int:
        """How many fit on the nodes that are alive; their helpers may be on any of them."""
        fit, cores = 0, 0
        for has in self._nodes():
            here = int(has.get("CPU", 0) // job.cores)
            if self._gpus:
                here = min(here, int(has.get("GPU", 0) / self._gpus))
            fit, cores = fit + here, cores + int(has.get("CPU", 0))
        return min(fit, cores // (job.cores + job.helpers))

    def have(self) -> str:
        """The cores and GPUs of each node."""
        nodes = [f"{n.get('CPU', 0):g} cores and {n.get('GPU', 0):g} GPUs" for n in self._nodes()]
        return ", ".join(nodes)

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._cluster() if node["Alive"]]

    def _cluster(self) -> list[dict[str, Any]]:
        """All nodes, dead ones too, as of a second ago at most: it is asked for each run."""
        if time.monotonic() - self._asked > 1.0:
            self._asked, self._known = time.monotonic(), self._ray.nodes()
        return self._known

    def start(self, job: Job, environ: Mapping[str, str]) -> Any:
        """Submit the task."""
        known = {name: value for name, value in os.environ.items() if _is_ours(name)}
        order = {
            "job": vars(job),  # plain values: what is wrong on a node shall not be how it is told
            "cwd": os.getcwd(),
            "mark": self._mark.absolute(),
            "environ": {**known, **environ},
        }
        ref = self._task.options(num_cpus=job.cores, name=job.name).remote(order, installed())
        self._jobs[ref] = job
        return ref

    def ended(self, handle: Any) -> Ended | None:
        """By what the task returned, or what Ray says became of it."""
        if not self._ray.wait([handle], timeout=0)[0]:
            return self._lost(handle)
        job, errors = self._jobs.pop(handle), self._ray.exceptions
        try:
            result = self._ray.get(handle)
        except errors.TaskCancelledError:
            return Ended("stopped")
        except errors.OutOfMemoryError as error:
            how = re.search(r"\S+ used / \S+ limit", str(error))
            much = f" ({how[0]})" if how else ""
            why = f"its node ran out of memory{much}: run fewer at a time (--jobs)"
            return Ended("died", why, tries=3)
        except errors.LocalRayletDiedError:
            raise RuntimeError(
                "the Ray node of this machine has died: start it again, then go on with --resume"
            ) from None
        except errors.RayTaskError as error:
            return Ended("failed", f"failed before it began: {_first_line(error.cause)}")
        except errors.WorkerCrashedError:
            return Ended("died", "its worker was killed or crashed")
        except errors.RayError as error:
            return Ended("died", _first_line(error))
        if isinstance(result, str):  # true of all runs there, not of this one
            raise ValueError(result)
        return Ended.by_code(job, result)

    def _lost(self, handle: Any) -> Ended | None:
        """Whether a task is on a node that is dead; Ray itself waits while a connection is open."""
        dead = {node["NodeID"] for node in self._cluster() if not node["Alive"]}
        if dead and owner_of(self._jobs[handle].directory).get("node") in dead:
            del self._jobs[handle]
            return Ended("died", "its node does not answer any more")
        return None

    def stop(self, handle: Any) -> None:
        """As by Ctrl-C, if it runs; out of the queue, if it waits."""
        self._ray.cancel(handle)

    def close(self) -> None:
        """Leave the cluster, which ends our tasks; one that was started here ends with us."""
        self._ray.shutdown()


def _task() -> Callable[[dict[str, Any], dict[str, str]], int | str]:
    """What a worker is sent; defined inside, so that Ray sends the code and not only its name."""
    variable = NODE

    def train(order: dict[str, Any], expected: dict[str, str]) -> int | str:
        import os
        import socket
        from importlib import import_module

        import ray

        host = socket.gethostname()
        os.environ[variable] = ray.get_runtime_context().get_node_id()
        try:
            cluster = import_module("composerl.fleet.cluster")
            worker = import_module("composerl.fleet.worker")
        except ImportError as error:
            return f"{host} has no composerl like the driver's ({error}): install the same there"
        return cluster.differences(expected, host) or worker.work(order, host)

    return train


def differences(expected: Mapping[str, str], host: str) -> str:
    """What is installed otherwise than on the driver's machine, as a sentence, or nothing."""
    here = installed()
    wrong = [
        f"{name} {here[name]} instead of {version}"
        for name, version in expected.items()
        if here[name] != version
    ]
    exact = "install the same versions everywhere, or results would depend on the node"
    return f"{host} has {', '.join(wrong)}: {exact}" if wrong else ""


def installed() -> dict[str, str]:
    """Versions of Python and packages; a build for another device is the same version."""
    found = {name: str(version).partition("+")[0] for name, version in versions().items()}
    return {"python": platform.python_version()} | found


def _is_ours(variable: str) -> bool:
    """What a run's behaviour depends on; a W&B key is not sent around, a node has its own."""
    secret = variable.endswith(("_KEY", "_TOKEN_FILE"))
    return variable.startswith(("COMPOSERL_", "WANDB_")) and not secret


def _first_line(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
