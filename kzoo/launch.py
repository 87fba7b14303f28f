"""Runs a command on several workers, which train one model together.

    python -m kzoo.launch --workers 2 -- kzoo.pretrain --config mine.yaml --model_dir runs/mine

starts two processes of kzoo.pretrain on this machine, each with its place in the cluster
(TF_CONFIG), a share of the GPUs and runtime.strategy=multi_worker_mirrored; shows what they print
line by line; passes SIGTERM and Ctrl-C on, so that they save; and ends them all when one fails,
with the status of that one. On several machines, each starts its own worker:

    python -m kzoo.launch --hosts a:2222,b:2222 --index 0 -- kzoo.pretrain …

with index 0 on the first host and 1 on the second.
"""

import copy
import importlib
import math
import os
import sys
from collections.abc import Sequence

from absl import flags

from kzoo import command

# Commands whose work several workers can share, and the strategy by which they do.
DISTRIBUTED = ("kzoo.pretrain",)
STRATEGY = "multi_worker_mirrored"

FLAGS = flags.FlagValues()

flags.DEFINE_integer(
    "workers", None, "Processes to start on this machine.", lower_bound=1, flag_values=FLAGS
)
flags.DEFINE_integer(
    "devices_per_worker",
    None,
    "GPUs for each of them; by default as many as there are for each. Without GPUs they share the "
    "CPU.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_list(
    "hosts",
    None,
    "host:port of the workers of all machines, in the same order on each; instead of --workers.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "index",
    None,
    "Which of --hosts this machine's worker is, counted from 0.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "log_dir",
    None,
    "Folder in which each worker's output is kept besides, as worker-INDEX.log.",
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "grace_seconds",
    30,
    "How long the others may take to end when one has failed, before they are killed.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.register_validator(
    "grace_seconds",
    lambda seconds: not math.isnan(seconds),
    "must be a number of seconds",
    flag_values=FLAGS,
)


def main(command_line: Sequence[str]) -> int:
    """Starts the workers and waits for them.

    Args:
        command_line: the module and its arguments.

    Returns:
        The exit status: 0, or that of the worker that failed first.
    """
    from kzoo.storage.paths import local_folder
    from kzoo.training import local_cluster
    from kzoo.training.worker_processes import Worker, run_workers

    arguments = _checked(command_line)
    log_dir = local_folder(FLAGS.log_dir, "--log_dir") if FLAGS.log_dir else None
    addresses, indices, ports = _cluster()
    try:
        gpus = local_cluster.share_gpus(
            local_cluster.visible_gpus(), len(indices), FLAGS.devices_per_worker
        )
        workers = [
            Worker(
                str(index),
                [sys.executable, "-m", *arguments],
                local_cluster.worker_environment(
                    addresses,
                    index,
                    gpus=gpus[place] if gpus else None,
                    shares_port=bool(ports),
                ),
            )
            for place, index in enumerate(indices)
        ]
        return run_workers(workers, grace_seconds=FLAGS.grace_seconds, log_dir=log_dir)
    finally:
        for port in ports:
            port.close()


def _checked(command_line: Sequence[str]) -> list[str]:
    """The workers' command line, after every check that needs no worker.

    A slip in it is then one message, and comes before TensorFlow is started several times.
    """
    from kzoo.config import loader
    from kzoo.errors import KzooError

    module, arguments = (command_line[0], list(command_line[1:])) if command_line else ("", [])
    if module not in DISTRIBUTED:
        raise KzooError(
            f"expected one of {', '.join(DISTRIBUTED)} and its flags behind ' -- '; received "
            f"{module or 'nothing'}. See --help"
        )
    # Not imported above: commands know nothing of each other. A copy, since these are not ours.
    values = copy.deepcopy(importlib.import_module(module).FLAGS)
    rest = command.parse(values, arguments)
    if rest:
        raise KzooError(f"{module}: unexpected argument {rest[0]!r}")
    if values.dry_run or values.mode != "train":
        alone = "--dry_run" if values.dry_run else f"--mode={values.mode}"
        raise KzooError(f"{alone} is the work of one process: start python -m {module} itself")
    asked = loader.load(values.config, values.set).runtime.strategy
    if asked == STRATEGY:
        return [module, *arguments]
    overrides = [text.partition("=")[0].strip() for text in values.set]
    if "runtime.strategy" in overrides:
        raise KzooError(
            f"workers compute with runtime.strategy={STRATEGY}, not {asked}: leave that --set out"
        )
    setting = f"runtime.strategy={STRATEGY}"
    loader.load(values.config, [*values.set, setting])
    print(f"runtime.strategy: {asked} → {STRATEGY}, for several workers", file=sys.stderr)
    return [module, *arguments, f"--set={setting}"]


def _cluster() -> tuple[list[str], list[int], list]:
    """The addresses of all workers, which of them run here, and sockets that keep their ports."""
    from kzoo.errors import KzooError
    from kzoo.training import local_cluster

    if os.environ.get("TF_CONFIG"):
        raise KzooError(
            "TF_CONFIG is set, so something else has put this process into a cluster: start "
            f"{DISTRIBUTED[0]} itself, or unset TF_CONFIG"
        )
    if (FLAGS.workers is None) == (FLAGS.hosts is None):
        raise KzooError("give either --workers, or --hosts and --index")
    if (FLAGS.index is None) != (FLAGS.hosts is None):
        raise KzooError("--hosts and --index go together")
    if FLAGS.workers is not None:
        ports = local_cluster.reserve_ports(FLAGS.workers)
        return local_cluster.local_addresses(ports), list(range(FLAGS.workers)), ports
    local_cluster.check_addresses(FLAGS.hosts)
    if FLAGS.index >= len(FLAGS.hosts):
        raise KzooError(
            f"--index counts from 0 to {len(FLAGS.hosts) - 1} for {len(FLAGS.hosts)} hosts; "
            f"received {FLAGS.index}"
        )
    return FLAGS.hosts, [FLAGS.index], []


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before the first ` -- ` of a command line, and what stands behind it."""
    arguments = list(arguments)
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], arguments[place + 1 :]


if __name__ == "__main__":
    own, passed_on = _split(sys.argv[1:])
    sys.exit(command.run(lambda: main(passed_on), FLAGS, __doc__, own))
