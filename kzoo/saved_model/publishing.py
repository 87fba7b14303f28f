"""Several files and folders that change together: all are the old ones, or all the new ones.

    export/.kzoo-export/new/    what is being written; may be left half-done
    export/.kzoo-export/plan    once it is there, the new state will come, whatever happens
    export/.kzoo-export/old/    what made way

Renames of several names are not one step, so a plan is written first. A process that dies before
it leaves the old state; one that dies after it leaves a mixture that has no manifest, and the next
export brings it to an end.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from kzoo.errors import KzooError

STAGE = ".kzoo-export"
_NEW, _OLD, _PLAN = "new", "old", "plan"


class Publishing:
    """A place beside the exports where new ones are made, and from which they are published.

    Attributes:
        output: the folder of the exports.
        new: where new files and folders are written, under their later names.
    """

    def __init__(self, output: Path):
        self.output = output
        self.new = output / STAGE / _NEW

    def publish(self, names: Iterable[str], removed: Iterable[str]) -> None:
        """Puts what is in `new` into its place.

        Args:
            names: paths relative to `new`; the last one is what says that all are there.
            removed: paths relative to `output` which make way, whether or not they are replaced.
        """
        _sync_all(self.new)
        names = list(names)
        plan = {"place": names, "remove": [*dict.fromkeys([*names[::-1], *removed])]}
        partial = self.new.parent / f"{_PLAN}.partial"
        partial.write_text(json.dumps(plan), "utf-8")
        _sync(partial)
        partial.rename(self.new.parent / _PLAN)
        _sync(self.new.parent)
        finish(self.output)


@contextlib.contextmanager
def publishing(output: Path) -> Iterator[Publishing]:
    """Makes a place for new exports, alone in the folder; what is not published is removed.

    Raises:
        KzooError: if another process is exporting into this folder, or it cannot be written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(output, os.O_RDONLY)
    except OSError as error:
        raise KzooError(f"cannot write into {output}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KzooError(f"another process is exporting into {output}; wait for it") from None
        except OSError:
            pass  # a file system without locks is used without
        finish(output)
        place = Publishing(output)
        place.new.mkdir(parents=True)
        yield place
    except OSError as error:
        raise KzooError(_explained(error, output)) from error
    finally:
        if not is_unfinished(output):
            shutil.rmtree(output / STAGE, ignore_errors=True)
        os.close(descriptor)


def _explained(error: OSError, output: Path) -> str:
    """What stopped an export: the disk it is written to, or a file elsewhere that was needed."""
    reason = error.strerror or str(error)
    if error.filename is None or Path(error.filename).is_relative_to(output):
        return f"cannot export into {output}: {reason}"
    return f"the export into {output} was given up: {error.filename}: {reason}"


def is_unfinished(output: Path) -> bool:
    """Whether a process died while it put new exports in their place, which `finish` ends."""
    return (output / STAGE / _PLAN).exists()


def finish(output: Path) -> None:
    """Ends what a process that died has begun: forward if there is a plan, else backward."""
    stage = output / STAGE
    try:
        plan = json.loads((stage / _PLAN).read_text("utf-8"))
    except FileNotFoundError:
        shutil.rmtree(stage, ignore_errors=True)
        return
    new, old = stage / _NEW, stage / _OLD
    # Once anything has gone from `new`, all old ones have made way, and what is there is new.
    if all((new / name).exists() for name in plan["place"]):
        for name in plan["remove"]:
            if os.path.lexists(output / name):
                _rename(output / name, old / name)
    for name in plan["place"]:
        if (new / name).exists():
            _rename(new / name, output / name)
    _sync(output)
    (stage / _PLAN).unlink()
    shutil.rmtree(stage, ignore_errors=True)


def _rename(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.is_dir() and not to.is_symlink():
        shutil.rmtree(to)
    path.rename(to)
    _sync(to.parent)


def _sync_all(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent, name))
        _sync(Path(parent))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
