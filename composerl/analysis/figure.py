"""A matplotlib figure that a notebook shows as it is."""

from io import BytesIO
from typing import Any

__all__ = ["new_figure"]


def new_figure(**options: Any) -> Any:
    """A figure without pyplot, which keeps every figure for ever; it shows itself as PNG.

    A notebook draws plain figures only once pyplot has been imported there: before that it prints
    ``<Figure size ...>``.
    """
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            file = BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return Picture(**options)
