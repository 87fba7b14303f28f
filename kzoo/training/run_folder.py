"""What is where in the folder of a run."""

from kzoo.config.model_on_disk import RUN_FILE

CONFIG_FILE = RUN_FILE
PRESET_FOLDER = "preset"
CHECKPOINT_FOLDER = "checkpoints"
EVAL_FOLDER = "eval"
# In EVAL_FOLDER.
BEST_FOLDER = "best"
