"""Pre-trains a masked language model with decoupled embeddings.

    python -m kzoo.pretrain --config configs/sample.yaml --model_dir runs/sample

Where the examples that the configuration names are not there yet, they are made from its corpus
first. Stopped or killed at any moment, the same command goes on from the last checkpoint.

    python -m kzoo.pretrain --config configs/sample.yaml --model_dir runs/sample --mode=eval_loop

follows that training from another process: it measures every checkpoint on held-out text, writes
what it finds to MODEL_DIR/eval, and keeps the best checkpoint in MODEL_DIR/eval/best.

With --dry_run nothing is trained or written: it prints what the run would take of devices, memory,
disk and time.
"""

import sys
from typing import TYPE_CHECKING

from absl import flags

from kzoo import command
from kzoo.errors import KzooError

if TYPE_CHECKING:
    from kzoo.config.schema import Config

FLAGS = flags.FlagValues()

flags.DEFINE_multi_string(
    "config", None, "YAML file; may be repeated, later ones win key by key.", flag_values=FLAGS
)
flags.DEFINE_multi_string(
    "set",
    [],
    "section.key=value, which wins over the files; may be repeated.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "model_dir",
    None,
    "Folder of the run, here or on object storage (gs://…): checkpoints, metrics, and in the end "
    "the preset.",
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval_loop"],
    "Train, or measure the checkpoints of a training as they appear.",
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "eval_timeout_seconds",
    None,
    "How long --mode=eval_loop waits for the next checkpoint; by default 3600.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.DEFINE_bool(
    "dry_run", False, "Say what the run would take, and do nothing.", flag_values=FLAGS
)
flags.DEFINE_integer(
    "dry_run_steps",
    0,
    "With --dry_run: take so many steps on made-up windows, and compare.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "replicas",
    None,
    "With --dry_run: devices in all, for a plan of other machines than this one.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "peak_tflops",
    None,
    "With --dry_run: peak of one device, in 10^12 operations a second; by default this machine's "
    "is measured.",
    lower_bound=1e-6,
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "utilization",
    0.4,
    "With --dry_run: share of the peak that the run is assumed to reach.",
    lower_bound=1e-6,
    upper_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "device_memory_gb",
    None,
    "With --dry_run: memory of one device, to see whether a step fits.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.mark_flags_as_required(["config", "model_dir"], flag_values=FLAGS)


# Flags that have an effect with another one alone.
_ONLY_WITH = {
    "--mode=eval_loop": ["eval_timeout_seconds"],
    "--dry_run": ["dry_run_steps", "replicas", "peak_tflops", "utilization", "device_memory_gb"],
}


def main() -> None:
    """Loads the configuration, which costs nothing, before TensorFlow, which costs seconds."""
    from kzoo.config import loader
    from kzoo.storage.paths import folder_name

    _check_flags()
    config = loader.load(FLAGS.config, FLAGS.set)
    model_dir = folder_name(FLAGS.model_dir)
    if FLAGS.dry_run:
        _dry_run(config, model_dir)
    elif FLAGS.mode == "eval_loop":
        from kzoo.training.eval_loop import evaluate_run

        timeout = FLAGS.eval_timeout_seconds
        evaluate_run(config, model_dir, timeout_seconds=3600.0 if timeout is None else timeout)
    else:
        from kzoo.training.pretraining import pretrain

        pretrain(config, model_dir)


def _check_flags() -> None:
    if FLAGS.dry_run and FLAGS.mode != "train":
        raise KzooError(f"--dry_run is of the training; leave out --mode={FLAGS.mode}")
    chosen = {"--mode=eval_loop": FLAGS.mode == "eval_loop", "--dry_run": FLAGS.dry_run}
    for needed, names in _ONLY_WITH.items():
        for name in names:
            if FLAGS[name].present and not chosen[needed]:
                raise KzooError(f"--{name} has an effect with {needed} only")


def _dry_run(config: "Config", model_dir: str) -> None:
    from kzoo.training.dry_run import Assumptions, dry_run

    assumptions = Assumptions(
        num_replicas=FLAGS.replicas,
        peak_tflops=FLAGS.peak_tflops,
        utilization=FLAGS.utilization,
        memory_gigabytes=FLAGS.device_memory_gb,
    )
    dry_run(config, model_dir, assumptions=assumptions, num_steps=FLAGS.dry_run_steps)


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
