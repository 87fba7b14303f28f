"""The best checkpoint of a run, as a run of its own that nobody else deletes from."""

import errno
import os
import shutil

from kzoo.config import loader
from kzoo.config.schema import Config
from kzoo.errors import KzooError
from kzoo.storage.remote import reason
from kzoo.training import checkpoint_files
from kzoo.training.checkpoint_files import STATE_FILE
from kzoo.training.checkpoints import BEST_FILE, Best, Checkpoints
from kzoo.training.run_folder import CHECKPOINT_FOLDER, CONFIG_FILE

_NEW, _OLD = "new", "old"
# What a file system says that has no hard links, or not from this folder to that one.
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)


class CheckpointGoneError(Exception):
    """The run has removed the checkpoint in the meantime, as it may."""


class BestRun:
    """A folder that looks like a run with one checkpoint: commands that take a run take it.

        config.yaml                      of the run that it comes from
        checkpoints/step-00000020/       weights and the optimizer's state
        checkpoints/best.json            its step, and its loss on held-out text

    A checkpoint is first held, then kept or let go. To hold one makes hard links to its files,
    where the file system has them: that takes no time and no room, and what is linked stays
    though the run removes it. (A run never changes the files of a checkpoint once they are there.)

    What is kept takes its place by one rename. Killed at any moment, the folder is the old one or
    the new one after `recover`.
    """

    def __init__(self, folder: str, config: Config) -> None:
        """
        Args:
            folder: where it is or will be; its parent exists.
            config: of the run.
        """
        self.folder = folder
        self._config = config
        parent, name = os.path.split(folder)
        self._aside = os.path.join(parent, f".{name}.partial")

    def best(self) -> Best | None:
        """Step and loss of the checkpoint that is kept; None if there is none."""
        return Checkpoints(os.path.join(self.folder, CHECKPOINT_FOLDER)).best()

    def recover(self) -> None:
        """Clears what a killed process has left half-done, and lets go what it held."""
        old = os.path.join(self._aside, _OLD)
        if os.path.isdir(old) and not os.path.exists(self.folder):
            os.rename(old, self.folder)
        shutil.rmtree(self._aside, ignore_errors=True)

    def hold(self, path: str, step: int) -> str:
        """Makes a checkpoint stay.

        Args:
            path: its folder, a local one.
            step: its step.

        Returns:
            The folder in which its files can be read until it is kept or let go.

        Raises:
            CheckpointGoneError: it is not there any more.
            KzooError: its files can neither be linked nor copied.
        """
        self.recover()
        checkpoints = os.path.join(self._aside, _NEW, CHECKPOINT_FOLDER)
        held = Checkpoints(checkpoints).path(step)
        try:
            os.makedirs(held)
            # A run that removes a checkpoint begins with this file: if it is there when all others
            # have been linked, all others were.
            names = sorted(os.listdir(path), key=lambda name: name == STATE_FILE)
            for name in names:
                _link(os.path.join(path, name), os.path.join(held, name))
        except (FileNotFoundError, NotADirectoryError) as error:
            self.recover()
            raise CheckpointGoneError(path) from error
        except OSError as error:
            self.recover()
            raise KzooError(
                f"cannot hold the checkpoint {path} in {self._aside}: {reason(error)}"
            ) from error
        if STATE_FILE not in names:
            self.recover()
            raise CheckpointGoneError(path)
        return held

    def keep(self, step: int, loss: float) -> None:
        """Puts the checkpoint that is held in the place of the best one.

        Args:
            step: its step.
            loss: its loss on held-out text, a finite number.

        Raises:
            KzooError: it cannot be written.
        """
        new = os.path.join(self._aside, _NEW)
        mark = os.path.join(new, CHECKPOINT_FOLDER, BEST_FILE)
        config = os.path.join(new, CONFIG_FILE)
        try:
            checkpoint_files.write_json(mark, Best(step, loss)._asdict())
            with open(config, "w", encoding="utf-8") as file:
                file.write(loader.dump(self._config))
            checkpoint_files.sync(config)
            if os.path.exists(self.folder):
                os.rename(self.folder, os.path.join(self._aside, _OLD))
            os.rename(new, self.folder)
            checkpoint_files.sync(os.path.dirname(self.folder))
        except OSError as error:
            raise KzooError(f"cannot write {self.folder}: {reason(error)}") from error
        self.recover()


def _link(source: str, target: str) -> None:
    """Makes a file appear under a second name; as a copy where there are no hard links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
        checkpoint_files.sync(target)
