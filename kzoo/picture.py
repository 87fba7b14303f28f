"""How the project's pictures are written."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kzoo.errors import KzooError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_picture(draw: Callable[[], "Figure"], path: str | os.PathLike[str]) -> None:
    """Draws a picture and writes it; what was at the path is replaced.

    Args:
        draw: makes the figure.
        path: a `.svg` or `.png`. The same figure gives the same SVG, byte for byte.

    Raises:
        KzooError: if the picture cannot be written.
    """
    path = os.fspath(path)
    kind = os.path.splitext(path)[1].lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise KzooError(f"a picture is a .svg or .png; received {path}")

    import matplotlib

    matplotlib.use("agg")
    partial = f"{path}.partial"
    with matplotlib.rc_context({"svg.hashsalt": "kzoo", "font.family": "DejaVu Sans"}):
        figure = draw()
        try:
            figure.savefig(
                partial, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
            )
            os.replace(partial, path)
        except OSError as error:
            raise KzooError(f"cannot write {path}: {error.strerror}") from error
