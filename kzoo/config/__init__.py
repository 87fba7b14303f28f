"""The schema of a run, and how YAML files and `--set` become one checked object."""

from kzoo.config.checks import check_vocabulary
from kzoo.config.loader import dump, load
from kzoo.config.schema import Config

__all__ = ["Config", "check_vocabulary", "dump", "load"]
