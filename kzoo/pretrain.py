"""Pre-trains a masked language model with decoupled embeddings.

    python -m kzoo.pretrain --config configs/sample.yaml --model_dir runs/sample

Where the examples that the configuration names are not there yet, they are made from its corpus
first. Stopped or killed at any moment, the same command goes on from the last checkpoint.
"""

import sys

from absl import flags

from kzoo import command

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
    "Folder of the run: checkpoints, metrics, and in the end the preset.",
    flag_values=FLAGS,
)
flags.mark_flags_as_required(["config", "model_dir"], flag_values=FLAGS)


def main() -> None:
    """Loads the configuration, which costs nothing, before TensorFlow, which costs seconds."""
    from kzoo.config import loader
    from kzoo.corpora.files import local_path

    config = loader.load(FLAGS.config, FLAGS.set)
    model_dir = local_path(FLAGS.model_dir)

    from kzoo.training.pretraining import pretrain

    pretrain(config, model_dir)


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
