"""The effective configuration of a run, beside what it makes."""

import logging
import os

import tensorflow as tf

from kzoo.config import loader
from kzoo.config.schema import Config
from kzoo.errors import KzooError
from kzoo.storage.remote import reason
from kzoo.training.run_folder import CONFIG_FILE

_LOG = logging.getLogger(__name__)


def write_config(config: Config, model_dir: str) -> None:
    """Writes the effective configuration; what differs from an earlier attempt is said."""
    path = os.path.join(model_dir, CONFIG_FILE)
    try:
        if tf.io.gfile.exists(path):
            _warn_of_changes(path, config)
        with tf.io.gfile.GFile(path + ".partial", "w") as file:
            file.write(loader.dump(config))
        tf.io.gfile.rename(path + ".partial", path, overwrite=True)
    except (OSError, tf.errors.OpError) as error:
        raise KzooError(f"cannot write {path}: {reason(error)}") from error


def _warn_of_changes(path: str, config: Config) -> None:
    try:
        changes = _changes(loader.load([path]), config)
    except KzooError as error:
        _LOG.warning("cannot compare with the configuration of the last attempt: %s", error)
        return
    if changes:
        _LOG.warning("changed since the last attempt of this run: %s", "; ".join(changes))


def _changes(old: Config, new: Config) -> list[str]:
    """The keys with another value, each as `section.key: old → new`."""
    old_sections, new_sections = old.model_dump(), new.model_dump()
    return [
        f"{section}.{key}: {old_sections[section][key]} → {value}"
        for section, keys in new_sections.items()
        for key, value in keys.items()
        if old_sections[section][key] != value
    ]
