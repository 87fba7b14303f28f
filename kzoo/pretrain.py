"""Pre-trains a masked language model with decoupled embeddings.

    python -m kzoo.pretrain --config configs/sample.yaml --model_dir runs/sample

Where the examples that the configuration names are not there yet, they are made from its corpus
first. Stopped or killed at any moment, the same command goes on from the last checkpoint.

    python -m kzoo.pretrain --config configs/sample.yaml --model_dir runs/sample --mode=eval_loop

follows that training from another process: it measures every checkpoint on held-out text, writes
what it finds to MODEL_DIR/eval, and keeps the best checkpoint in MODEL_DIR/eval/best.
"""

import sys

from absl import flags

from kzoo import command
from kzoo.errors import KzooError

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
flags.mark_flags_as_required(["config", "model_dir"], flag_values=FLAGS)


def main() -> None:
    """Loads the configuration, which costs nothing, before TensorFlow, which costs seconds."""
    from kzoo.config import loader
    from kzoo.storage.paths import folder_name

    if FLAGS.eval_timeout_seconds is not None and FLAGS.mode != "eval_loop":
        raise KzooError("--eval_timeout_seconds has an effect with --mode=eval_loop only")
    config = loader.load(FLAGS.config, FLAGS.set)
    model_dir = folder_name(FLAGS.model_dir)
    if FLAGS.mode == "eval_loop":
        from kzoo.training.eval_loop import evaluate_run

        timeout = FLAGS.eval_timeout_seconds
        evaluate_run(config, model_dir, timeout_seconds=3600.0 if timeout is None else timeout)
    else:
        from kzoo.training.pretraining import pretrain

        pretrain(config, model_dir)


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
