"""Apache Beam's runners and their options, read as strictly as kzoo's own flags."""

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import NoReturn

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners import PipelineRunner, create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from kzoo.corpora.beam_local import multi_process_runner
from kzoo.errors import KzooError

_UNLISTED_RUNNERS = {"DaskRunner": "apache_beam.runners.dask.dask_runner.DaskRunner"}
_LOCAL_RUNNERS = ("DirectRunner", "FnApiRunner", "PrismRunner", "DaskRunner")


def pipeline_options(runner: str, arguments: Sequence[str]) -> PipelineOptions:
    """Checks a runner and its options.

    Args:
        runner: the name of one of Beam's, or the path of a class.
        arguments: as on a command line. What stands behind `--` is not checked: job servers take
            options that the Python side of Beam does not know.

    Raises:
        KzooError: there is no such runner, or it lacks a package; or an option is wrong.
    """
    # First, since its module makes its options known.
    created = _create(runner)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    known, unchecked = list(arguments[:end]), list(arguments[end + 1 :])
    _check(known)
    options = PipelineOptions([f"--runner={runner}", *known, *unchecked])
    if missing := PipelineOptionsValidator(options, created).validate():
        raise KzooError(f"--runner={runner}: {' '.join(missing)}")
    return options


def make_runner(
    runner: str, options: PipelineOptions, worker_log: str, on_death: Callable[[], None]
) -> PipelineRunner:
    """The runner that does what was asked for.

    Args:
        runner: as the user named it.
        options: what else was asked for, as `pipeline_options` has checked it.
        worker_log: a file for what processes say that are started here.
        on_death: called when one of them ends before its time.
    """
    direct = options.view_as(DirectOptions)
    if runner != "DirectRunner" or not direct.get_all_options(drop_default=True, current_only=True):
        return _create(runner)
    # Beam's DirectRunner tries Prism first, which it downloads, and which takes no notice of
    # `--direct_…`: it would work in the threads of one process.
    if direct.direct_running_mode != "multi_processing":
        return FnApiRunner()
    direct.direct_running_mode = "in_memory"  # Else it would take Beam's environment, not ours.
    return multi_process_runner(worker_log, on_death)


def is_local(runner: str) -> bool:
    """Whether a runner works here, and says nothing that a user needs."""
    return runner in _LOCAL_RUNNERS


def _create(runner: str) -> PipelineRunner:
    try:
        return create_runner(_UNLISTED_RUNNERS.get(runner, runner))
    except (ValueError, ImportError, AttributeError) as error:
        message = " ".join(str(error).split())
        if isinstance(error, ImportError) and runner in _UNLISTED_RUNNERS:
            message += "; it comes with pip install 'apache-beam[dask]==2.77.*'"
        raise KzooError(f"--runner={runner}: {message}") from error


def _check(arguments: list[str]) -> None:
    unknown: list[str] = []
    names: list[str] = []

    def look(parser: argparse.ArgumentParser) -> None:
        parser.error = _refuse
        unknown.extend(parser.parse_known_args(arguments)[1])
        names.extend(name for action in parser._actions for name in action.option_strings)

    PipelineOptions([]).get_all_options(add_extra_args_fn=look)
    if unknown:
        name = unknown[0].partition("=")[0]
        near = difflib.get_close_matches(name, names, 1)
        advice = f"did you mean {near[0]}?" if near else "behind `--` options are not checked"
        raise KzooError(
            f"{unknown[0]} is neither a flag of this command nor a pipeline option of Apache Beam;"
            f" {advice}"
        )


def _refuse(message: str) -> NoReturn:
    raise KzooError(f"Apache Beam's pipeline options: {message}")
