"""A matplotlib figure that a notebook shows as it is."""

from io import BytesIO

from matplotlib.figure import Figure

__all__ = ["Picture"]


class Picture(Figure):
    """A figure without pyplot, which keeps every figure for ever; so it shows itself as PNG.

    A notebook draws plain figures only once pyplot has been imported there: before that it prints
    ``<Figure size ...>``.
    """

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
