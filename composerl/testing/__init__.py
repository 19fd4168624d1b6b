"""Checks for your own blocks as much as for ours: does it behave as TorchRL expects?

``check_loss``, ``check_storage``, ``check_sampler`` and ``check_collector`` raise an AssertionError
that says in one sentence what is broken::

    from composerl.testing import check_collector, check_loss

    def test_my_loss():
        check_loss(my_loss, batch)

    def test_my_collector():
        check_collector(lambda **options: MyCollector(env, policy, frames_per_batch=20, **options))

Each of their checks can be a test of its own, as ``STORAGE_CHECKS`` and its like list them::

    @pytest.mark.parametrize("only", STORAGE_CHECKS)
    def test_my_storage(only):
        check_storage(lambda: MyStorage(100), only=only)

pytest does so for all losses of a module by itself::

    pytest --composerl-losses mypackage.losses

if their constructors take networks of TorchRL's names (``actor_network``, ``qvalue_network``,
``value_network``, ...). For others the module has a dictionary ``examples`` of functions::

    examples = {"MyLoss": lambda: (MyLoss(my_network()), my_batch()), "MyBaseClass": None}

Try it on ``torchrl.objectives`` to see what it finds. Nothing here imports torch before it is used.
"""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.testing.building import loss_examples
    from composerl.testing.collectors import COLLECTOR_CHECKS, check_collector
    from composerl.testing.conformance import LOSS_CHECKS, check_loss
    from composerl.testing.samplers import SAMPLER_CHECKS, check_sampler
    from composerl.testing.storages import STORAGE_CHECKS, check_storage

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
