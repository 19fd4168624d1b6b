"""Many runs at once: processes of this machine, or tasks on a Ray cluster. Imports no torch."""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.fleet.driver import Fleet
    from composerl.fleet.jobs import Ended, Job, Workers
    from composerl.fleet.progress import Progress, read_progress

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
