"""The command that runs an exported model on texts: here, by gRPC and by REST."""

import http.server
import io
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import urllib.request
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest

from kzoo import command, predict
from kzoo.saved_model.prediction_progress import PredictionProgress
from tests.saved_model.exports import TEXTS, UNUSUAL_TEXTS, packed
from tests.saved_model.fake_servers import ServedModel, grpc_server, rest_server

ALL_TEXTS = TEXTS + [text for text in UNUSUAL_TEXTS if "\n" not in text]
FILL = "The [MASK] is late and [MASK] full"


@pytest.fixture(scope="module")
def models(served) -> dict[str, ServedModel]:
    return {"encoder": ServedModel(served.serving), "masked_lm": ServedModel(served.masked_lm)}


@pytest.fixture(scope="module")
def grpc_address(models):
    with grpc_server(models) as address:
        yield address


@pytest.fixture(scope="module")
def rest_url(models):
    with rest_server(models) as url:
        yield url


@pytest.fixture(params=["model", "server", "rest"])
def where(request, served, grpc_address, rest_url) -> dict[str, list[str]]:
    """The flags that choose each model, for each way of running it."""
    if request.param == "model":
        return {
            "encoder": [f"--model={served.serving}"],
            "masked_lm": [f"--model={served.masked_lm}"],
        }
    address = {"server": grpc_address, "rest": rest_url}[request.param]
    return {
        name: [f"--{request.param}={address}", f"--model_name={name}"]
        for name in ("encoder", "masked_lm")
    }


@pytest.fixture
def run(capsys):
    """Runs the command in this process: exit status, JSON lines, stderr."""

    def run(*arguments: str) -> tuple[int, list[dict], str]:
        for name in predict.FLAGS:
            predict.FLAGS[name].unparse()
        status = command.run(predict.main, predict.FLAGS, predict.__doc__, arguments)
        printed = capsys.readouterr()
        return status, [json.loads(line) for line in printed.out.split("\n")[:-1]], printed.err

    return run


@pytest.fixture
def texts_file(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in ALL_TEXTS), "utf-8")
    return path


def expected_vectors(served, texts: list[str]) -> np.ndarray:
    return served.model.backbone(packed(served.vocabulary, texts))["pooled_output"].numpy()


def test_every_text_gets_its_vector_in_order(where, run, served, texts_file):
    flags = [*where["encoder"], f"--input={texts_file}", "--batch_size=3"]
    status, results, errors = run(*flags)
    assert (status, errors) == (0, "")
    assert [result["text"] for result in results] == ALL_TEXTS
    vectors = [result["pooled_output"] for result in results]
    np.testing.assert_allclose(vectors, expected_vectors(served, ALL_TEXTS), atol=1e-5)


def test_vectors_of_tokens_come_without_those_of_padding(where, run, served):
    texts = [f"--text={text}" for text in TEXTS]
    status, results, _ = run(*where["encoder"], *texts, "--signature=sequence_output")
    assert status == 0
    inputs = packed(served.vocabulary, TEXTS)
    expected = served.model.backbone(inputs)["sequence_output"].numpy()
    for row, result in enumerate(results):
        assert set(result) == {"text", "sequence_output"}
        num_tokens = inputs["padding_mask"][row].sum()
        assert len(result["sequence_output"]) == num_tokens
        np.testing.assert_allclose(result["sequence_output"], expected[row, :num_tokens], atol=1e-5)


def test_masks_are_filled_readably(where, run):
    status, results, _ = run(*where["masked_lm"], f"--text={FILL}", "--text=no mask")
    assert status == 0
    assert [result["text"] for result in results] == [FILL, "no mask"]
    assert [len(result["masks"]) for result in results] == [2, 0]
    for mask in results[0]["masks"]:
        assert set(mask) == {"position", "candidates"}
        probabilities = [candidate["probability"] for candidate in mask["candidates"]]
        assert len(probabilities) == 5
        assert probabilities == sorted(probabilities, reverse=True)
        assert all(candidate["piece"] for candidate in mask["candidates"])


def test_as_many_candidates_are_printed_as_are_asked_for(where, run):
    status, results, _ = run(*where["masked_lm"], f"--text={FILL}", "--top_k=7")
    assert status == 0
    assert [len(mask["candidates"]) for mask in results[0]["masks"]] == [7, 7]


def test_masks_beyond_the_end_are_said(where, run):
    text = "the train " * 40 + "[MASK]"
    status, results, _ = run(*where["masked_lm"], f"--text={text}")
    assert status == 0
    assert results == [{"text": text, "masks": [], "num_masks_cut_off": 1}]


def test_an_unknown_signature_is_named_with_those_that_there_are(where, run):
    status, results, errors = run(*where["encoder"], "--text=a", "--signature=pooled")
    assert (status, results) == (2, [])
    assert "has no signature 'pooled'; it has from_ids, sequence_output, serving_def" in errors
    assert errors.count("\n") == 1


def test_a_signature_that_takes_ids_is_refused(where, run):
    status, _, errors = run(*where["encoder"], "--text=a", "--signature=from_ids")
    assert status == 2
    assert "takes input_mask, input_type_ids, input_word_ids" in errors
    assert "those that take it: sequence_output, serving_default" in errors


def test_top_k_is_refused_where_nothing_takes_it(where, run):
    status, _, errors = run(*where["encoder"], "--text=a", "--top_k=3")
    assert status == 2
    assert "has no signature that takes text, top_k" in errors


@pytest.mark.parametrize("where", ["server", "rest"], indirect=True)
def test_a_model_that_is_not_served_is_an_error(where, run):
    status, _, errors = run(where["encoder"][0], "--model_name=other", "--text=a")
    assert status == 2
    assert "Servable not found for request: Latest(other)" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(("flag", "port"), [("server", "8500"), ("rest", "8501")])
def test_a_server_that_is_not_there_is_an_error(flag, port, run):
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        url = f"http://{address}" if flag == "rest" else address
        status, results, errors = run(f"--{flag}={url}", "--text=a")
    assert (status, results) == (2, [])
    assert errors.startswith(f"error: no TensorFlow Serving answers at {url}")
    assert port in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("flag", ["server", "rest"])
def test_a_server_that_does_not_answer_is_waited_for_no_longer_than_said(flag, run):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        url = f"http://{address}" if flag == "rest" else address
        status, _, errors = run(f"--{flag}={url}", "--text=a", "--timeout_seconds=0.5")
    assert status == 2
    assert "0.5 seconds" in errors
    assert address in errors


def test_a_program_that_is_not_tensorflow_serving_is_an_error(tmp_path, run):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *arguments):
            """Tests print nothing."""

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        status, _, errors = run(f"--rest=http://127.0.0.1:{server.server_address[1]}", "--text=a")
        server.shutdown()
        thread.join()
    assert status == 2
    assert "does not answer as TensorFlow Serving does. Received: <html>hello</html>" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text=a"], "one of --model, --server and --rest says what runs the model"),
        (["--model=m", "--rest=http://a", "--text=a"], "Received: --model and --rest"),
        (["--rest=localhost:8501", "--text=a"], "must begin with http:// or https://"),
        (["--model=nowhere", "--text=a"], "nowhere: no such folder"),
        (["--model=m", "--text=a", "--input=b"], "from --text or from --input. Received: both"),
        (["--model=m", "--input=nowhere.txt"], "nowhere.txt: cannot be read: No such file"),
        (["--model=m", "--text=a", "--output=nowhere/a"], "there is no folder"),
        (["--model=m", "--text=a\udce9"], r"--text number 1 is not UTF-8. Received: 'a\udce9'"),
        (["--model=m", "--text=a", "--batch_size=0"], "batch_size"),
        (["--model=m", "--text=a", f"--batch_size={10**30}"], "batch_size"),
        (["--model=m", "--text=a", f"--top_k={2**31}"], "top_k"),
        (["--rest=http://a", "--text=a", "--timeout_seconds=inf"], "timeout_seconds"),
        (["--rest=http://a", "--text=a", "--timeout_seconds=nan"], "Received: nan"),
        (["--rest=http://a:b", "--text=a"], "no URL of a server"),
        (["--model=m", "--text=a", "--output=/dev/null", "--overwrite"], "is a device or a pipe"),
        (["--server=", "--text=a"], "the server's address is host:port"),
        (["--model=m", "--text=a", "--output=/"], "--output is a file. Received: '/'"),
        (["--model=m", "--text=a", "--output=", "--overwrite"], "--output is a file. Received: ''"),
        (["--model=m", "--input=/"], "/: cannot be read: Is a directory"),
    ],
)
def test_mistakes_are_one_line(arguments, message, run):
    status, results, errors = run(*arguments)
    assert (status, results) == (2, [])
    assert errors.startswith("error: ")
    assert message in errors
    assert errors.count("\n") == 1


def test_closed_standard_input_holds_no_text():
    command = f"{sys.executable} -m kzoo.predict --model=m <&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    errors = "error: standard input holds no text; give one text a line, or --text\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", errors)


def test_the_folder_of_versions_is_no_model_and_the_newest_is_named(served, run):
    status, _, errors = run(f"--model={served.serving.parent}", "--text=a")
    assert status == 2
    assert f"did you mean {served.serving}?" in errors
    _, _, errors = run(f"--model={served.serving.parent.parent}", "--text=a")
    assert f"did you mean {served.serving}?" in errors


def test_a_result_is_a_line_for_whatever_program(served, capsys):
    text = "a\u2028b\u2029c\x85d"
    for name in predict.FLAGS:
        predict.FLAGS[name].unparse()
    flags = [f"--model={served.serving}", f"--text={text}"]
    assert command.run(predict.main, predict.FLAGS, predict.__doc__, flags) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["text"] == text


def test_a_broken_model_is_an_error(tmp_path, run):
    (tmp_path / "saved_model.pb").write_bytes(b"no protocol buffer")
    status, _, errors = run(f"--model={tmp_path}", "--text=a")
    assert status == 2
    assert f"{tmp_path}: cannot load this SavedModel; export it again" in errors
    assert errors.count("\n") == 1


def test_input_that_holds_nothing_is_an_error(tmp_path, run):
    empty = tmp_path / "empty.txt"
    empty.touch()
    status, results, errors = run("--model=m", f"--input={empty}")
    assert (status, results) == (2, [])
    assert errors == f"error: {empty} holds no text; give one text a line, or --text\n"


def test_bytes_that_are_not_utf_8_are_an_error_that_names_the_line(where, tmp_path, run):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"one\ntwo\ncaf\xe9\nfour\n")
    output = tmp_path / "out.jsonl"
    status, _, errors = run(*where["encoder"], f"--input={path}", f"--output={output}")
    assert status == 2
    assert f"{path}, line 3: byte 4 of the line (0xe9) is not UTF-8" in errors
    assert not output.exists()


def test_only_lf_and_crlf_end_a_text(where, tmp_path, run):
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufeffa\r\n\nb\u2028c\x0bd\re\nlast".encode())
    _, results, _ = run(*where["encoder"], f"--input={path}")
    assert [result["text"] for result in results] == ["a", "", "b\u2028c\x0bd\re", "last"]


def test_output_is_written_whole_and_replaced_only_when_told(served, tmp_path, run, texts_file):
    output = tmp_path / "vectors.jsonl"
    flags = [f"--model={served.serving}", f"--input={texts_file}", f"--output={output}"]
    assert run(*flags) == (0, [], "")
    written = output.read_text("utf-8")
    assert [json.loads(line)["text"] for line in written.splitlines()] == ALL_TEXTS
    assert "مرحبا" in written
    status, _, errors = run(*flags, "--signature=sequence_output")
    assert status == 2
    assert f"{output} is there already; --overwrite replaces it" in errors
    assert output.read_text("utf-8") == written
    assert run(*flags, "--signature=sequence_output", "--overwrite")[0] == 0
    assert output.read_text("utf-8") != written


def test_numbers_are_as_short_as_float32_allows(served, run):
    _, [result], _ = run(f"--model={served.serving}", "--text=The train")
    values = result["pooled_output"]
    assert all(np.float32(value) == np.float32(f"{value:.9g}") for value in values)
    assert max(len(repr(value)) for value in values) <= 16


def test_the_command_needs_tensorflow_and_tensorflow_text_alone(served):
    """In a process of its own, from standard input to standard output."""
    code = """
import sys
from kzoo import command, predict
status = command.run(predict.main, predict.FLAGS, predict.__doc__)
# Keras itself is part of `import tensorflow`.
models = {"kzoo.models", "kzoo.layers", "keras_hub", "tf_keras"} & set(sys.modules)
sys.exit(status or (f"imported: {models}" if models else 0))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, f"--model={served.serving}"],
        input="".join(f"{text}\n" for text in ALL_TEXTS).encode(),
        capture_output=True,
        check=False,
        # Output is UTF-8 whatever the locale.
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    results = [json.loads(line) for line in done.stdout.decode("utf-8").split("\n")[:-1]]
    assert [result["text"] for result in results] == ALL_TEXTS


def test_rest_needs_no_tensorflow(rest_url):
    code = """
import sys
from kzoo import command, predict
status = command.run(predict.main, predict.FLAGS, predict.__doc__)
sys.exit(status or 100 * ("tensorflow" in sys.modules or "grpc" in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, f"--rest={rest_url}", "--text=مرحبا"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["text"] == "مرحبا"


def rest_predict(url: str, body: dict, model: str = "encoder") -> dict:
    request = urllib.request.Request(
        f"{url}/v1/models/{model}:predict", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_rest_takes_rows_and_columns(rest_url, served):
    texts = [*TEXTS, *UNUSUAL_TEXTS]
    expected = expected_vectors(served, texts)
    bodies = [
        {"instances": texts},
        {"instances": [{"text": text} for text in texts]},
        {"inputs": texts},
        {"inputs": {"text": texts}},
        {"inputs": {"text": [{"b64": b64encode(text.encode()).decode()} for text in texts]}},
    ]
    for body in bodies:
        answer = rest_predict(rest_url, body)
        vectors = answer["predictions" if "instances" in body else "outputs"]
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_rest_takes_rows_with_masks(rest_url):
    rows = [{"text": FILL, "top_k": 2}, {"text": "a [MASK]", "top_k": 3}]
    body = {"signature_name": "fill_mask_top_k", "instances": rows}
    answer = rest_predict(rest_url, body, "masked_lm")["predictions"]
    assert [row["num_masks"] for row in answer] == [2, 1]
    assert [sum(map(bool, row["pieces"][0])) for row in answer] == [2, 3]


def test_rest_survives_bytes_that_are_not_utf_8(rest_url, served):
    broken = b"caf\xe9 \xff\xfe"
    [vector] = rest_predict(rest_url, {"instances": [{"b64": b64encode(broken).decode()}]})[
        "predictions"
    ]
    [expected] = expected_vectors(served, [broken.decode(errors="replace")])
    np.testing.assert_allclose(vector, expected, atol=1e-5)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal():
    stream = Terminal()
    with PredictionProgress(2, bar=True, stream=stream) as progress:
        progress.done()
        progress.done()
    assert "2/2" in stream.getvalue()


def test_progress_is_a_line_now_and_then_elsewhere(monkeypatch):
    now = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    stream = io.StringIO()
    with PredictionProgress(40_000, bar=True, stream=stream) as progress:
        for _ in range(4):
            progress.done()
    assert stream.getvalue().splitlines() == [
        "predict: 2 of 40,000 texts, 0 texts/s",
        "predict: 4 of 40,000 texts, 0 texts/s",
    ]


def test_no_bar_gets_between_results_on_the_same_terminal():
    stream = Terminal()
    with PredictionProgress(2, bar=False, stream=stream) as progress:
        progress.done()
    assert stream.getvalue() == ""
