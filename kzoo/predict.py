"""Runs an exported model on texts, here or on TensorFlow Serving, and prints JSON lines.

    python -m kzoo.predict --model export/serving/1 --text "Am Morgen fährt der Zug."
    python -m kzoo.predict --model export/serving/1 --input texts.txt --output vectors.jsonl
    python -m kzoo.predict --server localhost:8500 --input texts.txt
    python -m kzoo.predict --rest http://localhost:8501 < texts.txt

There is one line for each text, in the order of the texts, whatever batches they were run in. A
model that was exported with its output table fills masks:

    python -m kzoo.predict --model export/masked_lm --text "Paris is the [MASK] of France."
"""

import contextlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from absl import flags

from kzoo import command
from kzoo.errors import KzooError
from kzoo.storage import files
from kzoo.storage.paths import clean, is_remote
from kzoo.storage.publishing import publish_file, scratch

if TYPE_CHECKING:
    from kzoo.saved_model.prediction import Client

FLAGS = flags.FlagValues()
# A week; sockets refuse what is much longer.
_LONGEST_SECONDS = 604_800.0

flags.DEFINE_string("model", None, "Folder of a SavedModel to run here.", flag_values=FLAGS)
flags.DEFINE_string(
    "server", None, "host:port of TensorFlow Serving, for gRPC (its port 8500).", flag_values=FLAGS
)
flags.DEFINE_string(
    "rest",
    None,
    "URL of TensorFlow Serving, for REST: http://localhost:8501.",
    flag_values=FLAGS,
)
flags.DEFINE_string("model_name", "encoder", "The model's name on the server.", flag_values=FLAGS)
flags.DEFINE_float(
    "timeout_seconds",
    60.0,
    "How long the server may take for a batch.",
    lower_bound=0.001,
    upper_bound=_LONGEST_SECONDS,
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "signature",
    None,
    "What to run; default serving_default, or fill_mask for a model that fills masks.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "top_k",
    None,
    "How many pieces to print for each mask; default 5.",
    lower_bound=1,
    upper_bound=2**31 - 1,
    flag_values=FLAGS,
)
flags.DEFINE_multi_string("text", None, "A text; may be repeated.", flag_values=FLAGS)
flags.DEFINE_string(
    "input",
    None,
    "File with one text a line; - is standard input, which is also read if there is no --text.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "batch_size",
    32,
    "Texts that are run together.",
    lower_bound=1,
    upper_bound=1_000_000,
    flag_values=FLAGS,
)
flags.DEFINE_string("output", None, "File to write; default standard output.", flag_values=FLAGS)
command.define_cache_dir(FLAGS)
flags.DEFINE_bool("overwrite", False, "Replace the output if it is there.", flag_values=FLAGS)


def main() -> None:
    """Checks everything that can be checked, before TensorFlow, which costs seconds."""
    open_client = _client_opener()
    texts, total = _texts()
    _check_output()

    from kzoo.saved_model.prediction import choose_signature, predict
    from kzoo.saved_model.prediction_progress import PredictionProgress

    client = open_client()
    given = ["text"] if FLAGS.top_k is None else ["text", "top_k"]
    signature = choose_signature(client, FLAGS.signature, given)
    bar = FLAGS.output is not None or not sys.stdout.isatty()
    with _output() as write, PredictionProgress(total, bar) as progress:
        for result in predict(client, signature, texts, FLAGS.batch_size, FLAGS.top_k):
            write(_one_line(json.dumps(result, ensure_ascii=False)))
            progress.done()


def _client_opener() -> Callable[[], "Client"]:
    """What makes the client that the flags ask for."""
    where = [name for name in ("model", "server", "rest") if FLAGS[name].value is not None]
    if math.isnan(FLAGS.timeout_seconds):
        raise KzooError("--timeout_seconds must be a number. Received: nan")
    if len(where) != 1:
        received = " and ".join(f"--{name}" for name in where) or "none of them"
        raise KzooError(
            f"one of --model, --server and --rest says what runs the model. Received: {received}"
        )
    return {"model": _local_client, "server": _grpc_client, "rest": _rest_client}[where[0]]


def _local_client() -> "Client":
    from kzoo.saved_model.local_client import MODEL_FILE, LocalClient
    from kzoo.storage.fetching import fetch_folder

    return LocalClient(fetch_folder(FLAGS.model, FLAGS.cache_dir, last=MODEL_FILE))


def _grpc_client() -> "Client":
    from kzoo.saved_model.grpc_client import GrpcClient

    return GrpcClient(FLAGS.server, FLAGS.model_name, FLAGS.timeout_seconds)


def _rest_client() -> "Client":
    from kzoo.saved_model.rest_client import RestClient

    return RestClient(FLAGS.rest, FLAGS.model_name, FLAGS.timeout_seconds)


def _texts() -> tuple[Iterator[str], int | None]:
    """The texts, of which there is at least one, and their number if it is known."""
    from kzoo.saved_model.text_input import STDIN, count_lines, read_texts

    if FLAGS.text is not None:
        if FLAGS.input is not None:
            raise KzooError("texts come from --text or from --input. Received: both")
        for number, text in enumerate(FLAGS.text, 1):
            if _has_lone_surrogates(text):
                raise KzooError(f"--text number {number} is not UTF-8. Received: {text!a}")
        return iter(FLAGS.text), len(FLAGS.text)

    path = STDIN if FLAGS.input is None else clean(FLAGS.input)
    if path == STDIN and sys.stdin.isatty():
        print("reading one text a line, up to Ctrl-D", file=sys.stderr)
    total = count_lines(path)
    texts = read_texts(path)
    first = next(texts, None)
    if first is None:
        name = "standard input" if path == STDIN else path
        raise KzooError(f"{name} holds no text; give one text a line, or --text")
    return itertools.chain([first], texts), total


def _has_lone_surrogates(text: str) -> bool:
    """Whether Python could not decode an argument, and put surrogates for its bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_output() -> None:
    if FLAGS.output is None:
        return
    FLAGS.output = clean(FLAGS.output)
    if not FLAGS.output or files.is_folder(FLAGS.output):
        raise KzooError(f"--output is a file. Received: {FLAGS.output!r}, which is none")
    is_here = not is_remote(FLAGS.output) and os.path.exists(FLAGS.output)
    if is_here and not os.path.isfile(FLAGS.output):
        # A new file would take its place, for every program on the machine.
        raise KzooError(
            f"--output: {FLAGS.output} is a device or a pipe; leave --output out, and direct "
            "standard output there"
        )
    if files.exists(FLAGS.output) and not FLAGS.overwrite:
        raise KzooError(f"{FLAGS.output} is there already; --overwrite replaces it")
    if is_remote(FLAGS.output):
        return
    folder = os.path.dirname(os.path.abspath(FLAGS.output))
    if not os.path.isdir(folder):
        raise KzooError(f"--output: there is no folder {folder}")


def _one_line(text: str) -> str:
    """JSON without the characters that some programs take for the end of a line."""
    return text.translate({code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)})


@contextlib.contextmanager
def _output() -> Iterator[Callable[[str], None]]:
    """Yields what writes a line, as UTF-8 whatever the locale."""
    from kzoo.corpora.files import written_aside

    if FLAGS.output is None:
        sys.stdout.reconfigure(encoding="utf-8")
        yield lambda line: print(line, flush=True)
        return
    if is_remote(FLAGS.output):
        with scratch(FLAGS.output, FLAGS.cache_dir) as folder:
            path = os.path.join(folder, os.path.basename(FLAGS.output))
            with open(path, "w", encoding="utf-8") as file:
                yield lambda line: print(line, file=file)
            publish_file(path, FLAGS.output)
        return
    try:
        with written_aside(FLAGS.output) as path, open(path, "w", encoding="utf-8") as file:
            yield lambda line: print(line, file=file)
    except OSError as error:
        raise KzooError(f"cannot write {FLAGS.output}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
