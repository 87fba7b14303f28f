"""The checkpoints of a run: written aside, kept by age and by merit, found again after any end."""

import contextlib
import json
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.storage import files
from kzoo.storage.paths import clean, is_remote
from kzoo.storage.remote import reason
from kzoo.training import checkpoint_files, folder_lock
from kzoo.training.checkpoint_files import BrokenCheckpointError, Variable
from kzoo.training.memory import available_memory_bytes

_LOG = logging.getLogger(__name__)

_STEP = re.compile(r"step-(\d+)")
# A folder that is being written, or that makes way for a new one of the same step.
_PARTIAL = re.compile(r"\.step-\d+\.partial")
_REPLACED = re.compile(r"\.(step-\d+)\.replaced")
BEST_FILE = "best.json"

# Free memory that values may wait in, as a multiple of their own size.
_MEMORY_MARGIN = 1.5


class Best(NamedTuple):
    """The checkpoint that did best, and its loss on held-out text."""

    step: int
    loss: float


class Checkpoints:
    """A folder of checkpoints, `step-00000020/` and so on (see `checkpoint_files`).

    A checkpoint appears by one rename, after all of it has reached the disk; on object storage,
    where a rename copies, it counts once its `state.json` is there. A process may be killed at
    any moment: what it left half-written is removed at the next save.

    Saving step s makes s the newest: later ones, of an attempt that could not be continued, are
    removed. But only those that `restore_latest` has passed over or gone on from, or that were
    saved here: a run that has begun anew, for whatever reason, destroys nothing.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 5) -> None:
        """
        Args:
            folder: where the checkpoints are or will be; made at the first save.
            keep: how many of the newest stay, 1 or more. The best one stays besides.
        """
        if keep < 1:
            raise ValueError(f"keep must be 1 or more; received {keep}")
        self._folder = clean(folder)
        self._keep = keep
        self._known: set[int] = set()
        self._writing: _Writing | None = None

    def path(self, step: int) -> str:
        """The folder of a step's checkpoint, whether or not it is there."""
        return os.path.join(self._folder, f"step-{step:08d}")

    def steps(self) -> list[int]:
        """The steps with a complete checkpoint, ascending.

        Raises:
            KzooError: the storage cannot be asked.
        """
        return [step for step in self._all_steps() if checkpoint_files.is_complete(self.path(step))]

    def latest(self) -> str | None:
        """The folder of the newest complete checkpoint; its files have not been checked.

        Raises:
            KzooError: the storage cannot be asked.
        """
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def best(self) -> Best | None:
        """The best checkpoint so far, if one has been marked and is there.

        Raises:
            KzooError: the storage cannot be asked.
        """
        path = os.path.join(self._folder, BEST_FILE)
        if not files.exists(path):
            return None
        try:
            with _user_errors(f"cannot read {path}"), tf.io.gfile.GFile(path) as file:
                best = Best(**json.loads(file.read()))
        except (ValueError, TypeError) as error:
            _LOG.warning("%s is damaged and not used: %s", path, error)
            return None
        return best if checkpoint_files.is_complete(self.path(best.step)) else None

    def claim(self) -> None:
        """Takes the folder for this process and clears what a dead one left half-done.

        Every save does this; calling it when a run starts refuses a second run at once.

        Raises:
            KzooError: if another process writes checkpoints there, or the folder cannot be made.
        """
        with _user_errors(f"cannot write checkpoints into {self._folder}"):
            tf.io.gfile.makedirs(self._folder)
            if not is_remote(self._folder):
                folder_lock.claim(self._folder)
            for name in self._names():
                path = os.path.join(self._folder, name)
                if _PARTIAL.fullmatch(name):
                    checkpoint_files.remove(path)
                elif replaced := _REPLACED.fullmatch(name):
                    original = os.path.join(self._folder, replaced[1])
                    if files.exists(original):
                        checkpoint_files.remove(path)
                    else:
                        tf.io.gfile.rename(path, original)

    def save(self, step: int, variables: Sequence[Variable], state: Mapping[str, Any]) -> str:
        """Writes a checkpoint, then removes those that need not be kept.

        Args:
            step, variables, state: see `start_saving`.

        Returns:
            The folder of the checkpoint.

        Raises:
            KzooError: if there is no room for it, or it cannot be written; the checkpoints that
                were there remain, and nothing half-written does.
        """
        self.start_saving(step, variables, state)
        self.wait()
        return self.path(step)

    def start_saving(
        self,
        step: int,
        variables: Sequence[Variable],
        state: Mapping[str, Any],
        loss: float | None = None,
    ) -> None:
        """Begins to save; what the variables hold now is written while the caller changes them.

        The values wait in memory meanwhile. Where that has no room for them, they are written
        before this returns.

        Args:
            step: the number of updates that the variables have had.
            variables: everything that must survive, each under a name of its own.
            state: what else must survive: anything that JSON holds.
            loss: on held-out text, if the checkpoint is to be marked as the best: see `mark_best`.

        Raises:
            KzooError: if there is no room for it, an earlier one could not be written, or there
                are later ones that this run does not go on from.
        """
        self.wait()
        named = checkpoint_files.by_path(variables)
        self.claim()
        self._check_later(step)
        needed_bytes = checkpoint_files.size_bytes(named)
        checkpoint_files.check_free_space(self._folder, needed_bytes)
        has_room = available_memory_bytes() > _MEMORY_MARGIN * needed_bytes
        values = checkpoint_files.snapshot(named)
        self._writing = _Writing(lambda: self._save(step, values, dict(state), loss))
        if has_room:
            self._writing.start()
        else:
            self._writing.run()

    def wait(self) -> None:
        """Returns when nothing is being saved.

        Raises:
            KzooError: if what was being saved could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def check(self) -> None:
        """Raises the `KzooError` of a save that has failed by now; does not wait for any."""
        if self._writing is not None and not self._writing.is_alive():
            self.wait()

    def close(self) -> None:
        """Lets a save that has begun end, on the way out after another failure too."""
        try:
            self.wait()
        except KzooError as error:
            _LOG.warning("%s", error)

    def _save(
        self, step: int, values: Mapping[str, tf.Tensor], state: Mapping[str, Any], loss
    ) -> None:
        final = self.path(step)
        remote = is_remote(self._folder)
        written = final if remote else os.path.join(self._folder, f".step-{step:08d}.partial")
        with _user_errors(f"cannot write the checkpoint {final}"):
            try:
                if remote:
                    checkpoint_files.remove(final)
                checkpoint_files.write(written, values, step, state)
            except (OSError, tf.errors.OpError):
                checkpoint_files.remove(written)
                raise
            if not remote:
                self._publish(written, final)
            self._remove_superseded(step)
        if loss is not None:
            self.mark_best(step, loss)

    def mark_best(self, step: int, loss: float) -> bool:
        """Keeps the checkpoint of a step as the best one if its loss is below the best so far.

        The step that is the best already, taken again since its checkpoint was damaged, is
        marked anew.

        Args:
            step: a step whose checkpoint is there.
            loss: on held-out text; neither NaN nor infinity is ever the best.

        Returns:
            Whether it is the best now.

        Raises:
            KzooError: if the mark cannot be written.
        """
        if step not in self.steps():
            raise ValueError(f"step {step} has no checkpoint in {self._folder}")
        best = self.best()
        to_beat = math.inf if best is None or best.step == step else best.loss
        if not loss < to_beat:
            return False
        path = os.path.join(self._folder, BEST_FILE)
        with _user_errors(f"cannot write {path}"):
            checkpoint_files.write_json(path + ".partial", Best(step, float(loss))._asdict())
            tf.io.gfile.rename(path + ".partial", path, overwrite=True)
            self._remove_superseded(self.steps()[-1])
        return True

    def restore_latest(
        self, variables: Sequence[Variable], *, allow_unused: bool = False
    ) -> dict[str, Any] | None:
        """Restores the newest checkpoint that is whole, with a warning for each passed over.

        Args:
            variables, allow_unused: see `restore`.

        Returns:
            The state that was saved and its `step`, or None if no checkpoint was ever completed;
            then no variable has changed.

        Raises:
            KzooError: if the newest whole checkpoint is of another model, the storage cannot be
                asked, or there are checkpoints and all are broken.
        """
        broken = 0
        for step in reversed(self._all_steps()):
            self._known.add(step)
            try:
                return checkpoint_files.restore(
                    self.path(step), variables, allow_unused=allow_unused
                )
            except BrokenCheckpointError as error:
                _LOG.warning("the checkpoint %s is passed over: %s", self.path(step), error)
                broken += not isinstance(error, checkpoint_files.IncompleteCheckpointError)
        if broken:
            raise KzooError(
                f"none of the checkpoints in {self._folder} can be used; the warnings above say "
                "why. Restore that folder from a copy, or remove it to begin at step 0"
            )
        return None

    @staticmethod
    def restore(
        path: str | os.PathLike[str], variables: Sequence[Variable], *, allow_unused: bool = False
    ) -> dict[str, Any]:
        """Restores one checkpoint: all of it or, if anything is wrong, none.

        Args:
            path: the checkpoint's folder.
            variables: what receives its values, on any strategy; names, shapes and dtypes must
                be the checkpoint's.
            allow_unused: whether the checkpoint may hold more than that, as when a model is
                restored without its optimizer.

        Returns:
            The state that was saved, and its `step`.

        Raises:
            KzooError: if the checkpoint is broken, or of another model (the tensors are named).
        """
        path = os.fspath(path)
        try:
            return checkpoint_files.restore(path, variables, allow_unused=allow_unused)
        except BrokenCheckpointError as error:
            raise KzooError(f"the checkpoint {path} cannot be used: {error}") from error

    def _all_steps(self) -> list[int]:
        """The steps of all checkpoint folders, complete or not, ascending."""
        return sorted(int(found[1]) for name in self._names() if (found := _STEP.fullmatch(name)))

    def _names(self) -> list[str]:
        """What is in the folder."""
        return files.names(self._folder)

    def _publish(self, written: str, final: str) -> None:
        """Renames a finished local checkpoint to its place, in which an older one may be."""
        replaced = os.path.join(self._folder, f".{os.path.basename(final)}.replaced")
        if os.path.exists(final):
            os.rename(final, replaced)
        os.rename(written, final)
        checkpoint_files.sync(self._folder)
        checkpoint_files.remove(replaced)

    def _check_later(self, step: int) -> None:
        """Refuses to write a step in the place of checkpoints that the run does not know of.

        So it is when the folder came to light only after the run had looked for them, as a disk
        that was mounted late, or when another run writes there.
        """
        unknown = [later for later in self._all_steps() if later >= step]
        unknown = [later for later in unknown if later not in self._known]
        if unknown:
            raise KzooError(
                f"step {step} is not saved: in {self._folder} there are checkpoints up to step"
                f" {unknown[-1]} that this run has not gone on from; it did not find them when it"
                " began, or another run writes there. Nothing was removed: the same command goes on"
                " from them"
            )
        self._known.add(step)

    def _remove_superseded(self, newest: int) -> None:
        """Removes all checkpoints but the last `keep` up to `newest`, and the best."""
        kept = [step for step in self.steps() if step <= newest][-self._keep :]
        best = self.best()
        if best is not None and best.step <= newest:
            kept.append(best.step)
        for step in set(self._all_steps()) - set(kept):
            if step > newest:
                if step not in self._known:
                    continue  # It came since the save began, and the next save refuses it.
                _LOG.warning("%s is removed: the run went back before it", self.path(step))
            checkpoint_files.remove(self.path(step))


class _Writing(threading.Thread):
    """Runs a function, in a thread or (by `run`) here, and keeps what it raises for `result`."""

    def __init__(self, function: Callable[[], None]):
        super().__init__(name="checkpoint")
        self._function = function
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._function()
        except Exception as error:
            self._error = error
        # The values that it holds make room.
        del self._function

    def result(self) -> None:
        if self.ident is not None:
            self.join()
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def _user_errors(failure: str) -> Iterator[None]:
    """Turns what the file system reports into one clear message."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise KzooError(f"{failure}: {reason(error)}") from error
