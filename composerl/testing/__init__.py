"""Checks for your own blocks as much as for ours: does it behave as TorchRL expects?

from composerl.testing import check_loss

def test_my_loss():
    check_loss(my_loss, batch)
"""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.testing.conformance import check_loss

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
