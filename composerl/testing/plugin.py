"""For pytest: ``pytest --composerl-losses mypackage.losses``, each check a test of its own.

It is there when composerl is installed, and imports torch only if it is asked for something.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from composerl import testing

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names modules of losses."""
    parser.getgroup("composerl").addoption(
        "--composerl-losses", action="append", default=[], metavar="MODULE",
        help="check every TorchRL loss of a module, and run no other tests unless they are named; "
        "losses with uncommon networks need its dictionary 'examples' of functions that return "
        "(loss, batch); can be repeated",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Leave out the tests that pytest would look for where none are named."""
    if config.option.composerl_losses and config.args_source != config.ArgsSource.ARGS:
        config.args, config.args_source = [], config.ArgsSource.ARGS


@pytest.hookimpl(tryfirst=True)  # before -k and its like make their choice
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the checks."""
    for name in session.config.option.composerl_losses:
        items.extend(session.genitems(_Losses.from_parent(session, name=name, nodeid=name)))


class _Losses(pytest.Collector):
    """A module of losses."""

    def collect(self) -> Iterator["_Loss"]:
        try:
            examples = testing.loss_examples(self.name)
        except ModuleNotFoundError as error:
            raise self.CollectError(
                f"{error} (python -m pytest finds what is in the working directory)"
            ) from error
        if not examples:
            raise self.CollectError(f"there are no losses in {self.name}")
        for name, make in examples.items():
            loss = _Loss.from_parent(self, name=name)
            loss.make = make
            yield loss


class _Loss(pytest.Collector):
    """One loss of it."""

    make: Callable[[], tuple[Any, ...]]

    def collect(self) -> Iterator["_Check"]:
        try:
            _, _, *_ = self.make()
        except Exception:  # which the test of that name raises again, with its traceback
            names: Sequence[str] = ["example"]
        else:
            names = testing.LOSS_CHECKS
        for name in names:
            yield _Check.from_parent(self, name=name)


class _Check(pytest.Item):
    """One check of it."""

    parent: _Loss

    def runtest(self) -> None:
        loss, batch, *options = self.parent.make()
        testing.check_loss(loss, batch, only=self.name, **dict(*options))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The sentence of a check; the traceback of an error inside the loss."""
        if isinstance(excinfo.value, AssertionError):
            return str(excinfo.value).partition("\nassert ")[0]  # pytest's own explanation
        excinfo.traceback = excinfo.traceback.cut(path=__file__)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """What stands above a failure."""
        return self.path, None, self.nodeid
