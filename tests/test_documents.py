"""What the documents say is so: commands, settings, links, tables, messages."""

import ast
import configparser
import copy
import gzip
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import h5py
import pytest
import yaml
from absl import flags

from kzoo import config, sample
from kzoo.saved_model.serving import ServingModule
from kzoo.saved_model.serving_files import BATCHING_PARAMETERS, MODELS_CONFIG
from kzoo.saved_model.signature_names import SERVING
from tests import markdown
from tests.markdown import Command
from tests.paths import REPOSITORY

README = REPOSITORY / "README.md"
PRETRAIN = REPOSITORY / "docs" / "pretrain.md"
EXPORT = REPOSITORY / "docs" / "export_and_serve.md"
CONVERT = REPOSITORY / "docs" / "convert.md"
DISTRIBUTED = REPOSITORY / "docs" / "distributed.md"
DOCUMENTS = markdown.documents()
COMMANDS = [command for path in DOCUMENTS for command in markdown.commands(path)]
PRINTED = re.compile(
    r"<!-- Printed by python -m kzoo.zoo --markdown; do not edit by hand. -->\n\n(.*)\n"
    r"<!-- End of the printed part. -->",
    re.DOTALL,
)
# What shortens a command of the documents that is run here; the last of equal flags wins.
SHORTER = {
    "kzoo.vocabulary": ["--size=2000"],
    "kzoo.prepare": ["--workers=1"],
    "kzoo.pretrain": [
        *("--set=trainer.train_steps=2", "--set=optimizer.warmup_steps=1"),
        *("--set=trainer.log_interval=1", "--set=trainer.validation_steps=1"),
        "--set=data.global_batch_size=8",
    ],
}


# Runs commands in one process, since each would spend most of its time on starting TensorFlow.
ONE_AFTER_THE_OTHER = """
import importlib, json, sys
from kzoo import command

for name, *arguments in json.loads(sys.argv[1]):
    module = importlib.import_module(name)
    for flag in module.FLAGS:
        module.FLAGS[flag].unparse()
    status = command.run(module.main, module.FLAGS, module.__doc__, arguments)
    assert status == 0, (name, arguments)
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A folder in which the documents' commands find what they find in a clone, and `corpus/`."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("configs", "kzoo"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "corpus").mkdir()
    (folder / "docs" / "images").mkdir(parents=True)
    for source in sample.folder().glob("*.txt"):
        documents = source.read_text("utf-8").split("\n\n")
        lines = "".join(json.dumps({"text": document}) + "\n" for document in documents)
        (folder / "corpus" / f"{source.stem}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("my.yaml", "encoder.yaml"):
        (folder / name).write_text(_block_after(PRETRAIN, f"`{name}`"), "utf-8")
    return folder


@pytest.fixture(scope="module")
def sample_run(clone) -> Path:
    """The run that the README's first command makes, with fewer steps."""
    [command] = [c for c in markdown.commands(README) if "configs/sample.yaml" in c.words]
    _run(command, clone)
    return clone / "runs" / "sample"


@pytest.fixture(scope="module")
def export(sample_run, clone) -> Path:
    """What the README's third step makes of that run."""
    [command] = [c for c in markdown.commands(README) if "kzoo.export" in c.words]
    _run(command, clone)
    return clone / "export"


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_command_is_one_that_there_is(command, clone):
    program, *arguments = command.words
    program = program.removeprefix(".venv/bin/")
    if program in ("python", "python3.11"):
        _check_python(arguments, clone)
    elif program == "pip":
        _check_pip(arguments)
    elif program == "docker":
        _check_docker(arguments)
    elif program == "curl":
        _check_curl(arguments)
    else:
        assert program in ("ruff", "tensorboard"), "teach this test what the command does"
        assert shutil.which(program, path=os.path.dirname(sys.executable))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(path):
    dead = []
    for link in markdown.links(path):
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and anchor not in markdown.anchors(file)):
            dead.append(link)
    assert not dead


def test_readme_has_the_table_that_zoo_prints():
    printed = _python("-m", "kzoo.zoo", "--markdown", folder=REPOSITORY)
    found = PRINTED.search(README.read_text("utf-8"))
    assert found, "the marks around the table of models are gone"
    assert found[1].strip() == printed.strip(), "put the output of kzoo.zoo --markdown there"


def test_readme_says_how_many_models_there_are():
    models = PRINTED.search(README.read_text("utf-8"))[1].count("\n| `")
    assert f"<summary>{models} shapes:" in README.read_text("utf-8")


def test_ci_runs_the_second_command_of_the_readme():
    script = (REPOSITORY / ".ci" / "run").read_text("utf-8").replace('"$venv', ".venv")
    script = script.replace('"', "")
    block = markdown.blocks(README, "sh")[1].text.replace("\\\n ", "")
    places = [script.find(f"\n{part.strip()}\n") for part in block.split("&&")]
    assert -1 not in places
    assert places == sorted(places)


def test_first_command_of_the_readme_leaves_what_its_table_says(sample_run):
    cells = markdown.table_column(README.read_text("utf-8"), "in `runs/sample/`")
    names = [name.rstrip("/") for cell in cells for name in markdown.code_spans(cell)]
    assert sorted(names) == sorted(os.listdir(sample_run))


def test_first_command_of_the_readme_says_that_a_finished_run_is_finished(sample_run, clone):
    [command] = [c for c in markdown.commands(README) if "configs/sample.yaml" in c.words]
    assert "is finished" in _run(command, clone)


def test_python_of_the_documents_runs(export, clone):
    # In one process, since each would spend most of its time on starting TensorFlow.
    blocks = [block for path in (README, EXPORT) for block in markdown.blocks(path, "python")]
    assert len(blocks) > 5
    code = "import json, sys\nfor block in json.loads(sys.argv[1]):\n    exec(block, {})"
    _python("-c", code, json.dumps([block.text for block in blocks]), folder=clone)


def test_commands_of_the_guide_to_exporting_run_one_after_the_other(export, clone):
    first, *others = [c for c in markdown.commands(EXPORT) if c.words[:2] == ["python", "-m"]]
    assert first.words in [command.words for command in markdown.commands(README)]
    servers = {"--server", "--rest"}
    commands = [
        command.words[2:]
        for command in others
        if command.words[2] in ("kzoo.export", "kzoo.predict") and not servers & {*command.words}
    ]
    assert len(commands) > 4
    _python("-c", ONE_AFTER_THE_OTHER, json.dumps(commands), folder=clone)
    assert sorted(os.listdir(export / "masked_lm"))


def test_the_guide_to_exporting_names_what_an_export_leaves(export):
    cells = markdown.table_column(EXPORT.read_text("utf-8"), "in `export/`")
    named = {name.rstrip("/") for cell in cells for name in markdown.code_spans(cell)}
    assert not [name for name in named - {"masked_lm"} if not (export / name).exists()]
    there = {name for name in os.listdir(export) if not name.startswith(".")}
    assert there <= {name.split("/")[0] for name in named}


def test_flags_in_the_guide_to_exporting_exist():
    cells = markdown.table_column(EXPORT.read_text("utf-8"), "flag")
    export_flags = importlib.import_module("kzoo.export").FLAGS
    assert len(cells) > 5
    for cell in cells:
        _parse(export_flags, ["--model=runs/sample", *markdown.code_spans(cell)])


def test_the_guide_to_exporting_has_the_signatures_that_there_are():
    text = EXPORT.read_text("utf-8")
    for name, (inputs, outputs) in SERVING.items():
        cells = (", ".join(f"`{tensor}`" for tensor in tensors) for tensors in (inputs, outputs))
        assert f"| `{name}` | {' | '.join(cells)} |" in text


def test_a_run_goes_to_hugging_face_and_back(sample_run, clone):
    routes = [c for c in markdown.commands(CONVERT) if "hugging_face/sample" in c.words]
    assert len(routes) == 2
    for command in routes:
        _run(command, clone)
    there = {path.name for path in (clone / "hugging_face" / "sample").iterdir()}
    cells = markdown.table_column(CONVERT.read_text("utf-8"), "in the output folder")
    assert there == {name for cell in cells for name in markdown.code_spans(cell)}
    for name in ("model.weights.h5", "task.weights.h5"):
        before = _arrays(sample_run / "preset" / name)
        after = _arrays(clone / "presets" / "sample" / name)
        before = {key: value for key, value in before.items() if "pooler" not in key}
        assert before == after


def test_a_run_goes_to_model_garden_and_back(sample_run, clone):
    routes = [c for c in markdown.commands(CONVERT) if "model_garden/sample" in c.words]
    assert len(routes) == 2
    for command in routes:
        _run(command, clone)
    there = {path.name for path in (clone / "model_garden" / "sample").iterdir()}
    cells = markdown.table_column(CONVERT.read_text("utf-8"), "in Model Garden's folder")
    assert there == {name for cell in cells for name in markdown.code_spans(cell)}
    before, after = (
        _arrays(preset / "model.weights.h5")
        for preset in (sample_run / "preset", clone / "presets" / "back")
    )
    # The preset of the run has no dense pooler, which Model Garden's encoder needs.
    assert before == {key: value for key, value in after.items() if "pooler" not in key}


def test_vocabularies_grow_and_shrink_as_the_guide_says(sample_run, clone):
    pieces = _block_after(CONVERT, "`pieces.txt` has", "text")
    (clone / "pieces.txt").write_text(pieces, "utf-8")
    more, fewer = (
        [command for command in markdown.commands(CONVERT) if flag in command.words]
        for flag in ("--add_pieces", "--keep_pieces_from")
    )
    assert "3 new pieces: V 4,000 → 4,003" in _run(*more, clone)
    assert "that the corpus uses" in _run(*fewer, clone)


def test_picture_of_the_readme_is_drawn(sample_run, clone):
    [command] = [c for c in markdown.commands(README) if "kzoo.training.plots" in c.words]
    _run(command, clone)
    output = command.words[command.words.index("--output") + 1]
    assert (clone / output).read_text("utf-8").startswith("<?xml")
    assert f"]({output})" in README.read_text("utf-8")


def test_metrics_are_those_of_the_table_in_the_guide(sample_run):
    lines = map(json.loads, (sample_run / "metrics.jsonl").read_text("utf-8").splitlines())
    written = {name for line in lines for name in line} - {"split"}
    cells = markdown.table_column(PRETRAIN.read_text("utf-8"), "name")
    described = {name for cell in cells for name in markdown.code_spans(cell)}
    languages = "|".join(sample.LANGUAGES)
    assert {re.sub(f"/({languages})$", "/de", name) for name in written} == described


def test_steps_of_the_guide_run_one_after_the_other(clone):
    steps = ("kzoo.vocabulary", "kzoo.prepare", "kzoo.pretrain")
    first = {}
    for command in markdown.commands(PRETRAIN):
        if command.words[:2] == ["python", "-m"] and command.words[2] in steps:
            first.setdefault(command.words[2], command)
    assert tuple(first) == steps
    for command in first.values():
        _run(command, clone)
    assert (clone / "runs" / "mini" / "preset").is_dir()

    # Then it is followed, and its best checkpoint exported.
    [follow] = [c for c in markdown.commands(PRETRAIN) if "--mode=eval_loop" in c.words]
    [export] = [c for c in markdown.commands(PRETRAIN) if "runs/mini/eval/best" in c.words]
    assert "the best is that of step 2" in _run(follow, clone)
    _run(export, clone)
    assert (clone / "export_best" / "MANIFEST.json").exists()


def test_the_plan_of_a_long_run_in_the_guide_is_made(clone):
    [plan] = [c for c in markdown.commands(PRETRAIN) if "--dry_run" in c.words]
    printed = _python(*plan.words[1:], folder=clone)
    assert "estimated peak" in printed
    assert "does not fit" not in printed
    assert not (clone / "runs" / "rembert").exists()


def test_a_run_goes_on_as_the_guide_says(sample_run, clone):
    _, head, whole = [c for c in markdown.commands(PRETRAIN) if "init_from" in str(c)][:3]
    encoder = clone / "presets" / "encoder"
    shutil.copytree(sample_run / "preset", encoder, ignore=shutil.ignore_patterns("task.*"))
    assert "finished 2 steps" in _run(head, clone)
    assert "finished 2 steps" in _run(whole, clone)


def test_yaml_of_the_guide_loads(tmp_path):
    blocks = markdown.blocks(PRETRAIN, "yaml")
    assert blocks
    for block in blocks:
        file = tmp_path / "block.yaml"
        file.write_text(block.text, "utf-8")
        config.load([str(REPOSITORY / "configs" / "mini.yaml"), str(file)])


@pytest.mark.parametrize("path", [README, PRETRAIN, DISTRIBUTED], ids=lambda path: path.stem)
def test_settings_in_running_text_exist(path):
    sections = config.Config.model_fields
    pattern = re.compile(rf"(--set )?(({'|'.join(sections)})\.(\w+).*)")
    found = [pattern.fullmatch(span) for span in markdown.code_spans(markdown.prose(path))]
    assert any(found)
    for is_override, setting, section, key in (match.groups() for match in found if match):
        assert key in sections[section].annotation.model_fields
        if is_override:
            file = str(REPOSITORY / "configs" / "mini.yaml")
            config.load([file], [setting.replace("NAME", "mini")])


def test_messages_in_the_table_of_errors_are_in_the_code():
    code = _strings_of_the_code()
    cells = markdown.table_column(PRETRAIN.read_text("utf-8"), "message")
    missing = [
        part
        for cell in cells
        for part in re.split(r"`…`|`, `", cell.strip("`"))
        if part not in code
    ]
    assert len(cells) > 20
    assert not missing


def test_messages_in_the_guide_to_many_devices_are_in_the_code():
    code = _strings_of_the_code()
    cells = markdown.table_column(DISTRIBUTED.read_text("utf-8"), "what you see")
    spans = [span for cell in cells for span in markdown.code_spans(cell) if " " in span]
    assert len(spans) > 5
    parts = [part for span in spans for part in re.split(" … ?", span)]
    assert not [part for part in parts if part not in code]


def test_the_script_for_slurm_starts_every_worker_in_its_place(tmp_path):
    script = tmp_path / "script"
    script.write_text(_block_after(DISTRIBUTED, "### Slurm", "bash"), "utf-8")
    programs = {
        "scontrol": '[ "$*" = "show hostnames node[7-8]" ] && printf "node7\\nnode8\\n"',
        # Runs its command once for each task, as srun does.
        "srun": 'shift; for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@"; done',
        "python": 'printf "%s\\n" "$*"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[7-8]"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for index, line in enumerate(lines):
        words = line.split()
        assert words[1:4] == ["kzoo.launch", "--hosts", "node7:2222,node8:2222"]
        assert words[4:7] == ["--index", str(index), "--"]
        _check_python(words, REPOSITORY)


def test_the_job_for_kubernetes_starts_a_launcher_in_each_pod():
    service, job = yaml.safe_load_all(_block_after(DISTRIBUTED, "### Kubernetes"))
    pod = job["spec"]["template"]["spec"]
    name = service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == name
    [container] = pod["containers"]
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["command"]]
    hosts = [f"{job['metadata']['name']}-{index}.{name}:2222" for index in range(2)]
    assert job["spec"]["completions"] == len(hosts)
    assert f"--hosts={','.join(hosts)}" in words
    _check_python(words[1:], REPOSITORY)


def test_files_that_the_page_on_the_code_names_exist():
    text = (REPOSITORY / "docs" / "how_it_works.md").read_text("utf-8")
    names = set(re.findall(r"[\w/]+\.py\b", text)) - {"kzoo/NAME.py"}
    folders = (REPOSITORY, REPOSITORY / "kzoo")
    assert len(names) > 40
    assert not [name for name in names if not any((path / name).exists() for path in folders)]


def test_benchmarks_are_all_in_their_table():
    programs = {
        path.name
        for path in (REPOSITORY / "benchmarks").glob("*.py")
        if "__main__" in path.read_text("utf-8")
    }
    linked = set(markdown.links(REPOSITORY / "benchmarks" / "README.md"))
    assert programs <= linked


def _arrays(path: Path) -> dict[str, bytes]:
    """The tensors of a file of weights, as bytes."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update(
                {name: item[()].tobytes()} if hasattr(item, "dtype") else {}
            )
        )
    return found


def _block_after(path: Path, words: str, kind: str = "yaml") -> str:
    """The first block of a kind behind some words."""
    rest = path.read_text("utf-8").partition(words)[2]
    return re.search(rf"```{kind}\n(.*?)```", rest, re.DOTALL)[1]


def _run(command: Command, folder: Path) -> str:
    """Runs a `python -m kzoo.…` of a document, made shorter; returns what it printed."""
    module = command.words[2]
    return _python(*command.words[1:], *SHORTER.get(module, []), folder=folder)


def _python(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _check_python(arguments: list[str], clone: Path) -> None:
    if arguments[0] != "-m":
        _parse(_module_of_file(REPOSITORY / arguments[0]).FLAGS, arguments[1:])
    elif arguments[1] in ("venv", "pytest"):
        paths = [word for word in arguments[2:] if "/" in word]
        assert all((REPOSITORY / path).exists() for path in paths)
    else:
        if "--" in arguments:
            # What stands behind it is a command of its own.
            place = arguments.index("--")
            _check_python(["-m", *arguments[place + 1 :]], clone)
            arguments = arguments[:place]
        module = importlib.import_module(arguments[1])
        if not hasattr(module, "FLAGS"):
            assert not arguments[2:]
            return
        if any(word.startswith("--runner=") for word in arguments):
            _check_options_of_beam(module.FLAGS, arguments[2:])
            return
        values = _parse(module.FLAGS, arguments[2:])
        if "set" in values:
            # Otherwise the arguments would be read from a model that a command before has made.
            own = ["model.preset=mini"] if "encoder.yaml" in values["config"] else []
            config.load([str(clone / file) for file in values["config"]], [*own, *values["set"]])


def _parse(flag_values: flags.FlagValues, arguments: list[str]) -> dict[str, object]:
    """The values of a command's flags, which it must know."""
    parsed = copy.deepcopy(flag_values)
    assert parsed(["program", *arguments])[1:] == []
    return parsed.flag_values_dict()


def _check_options_of_beam(flag_values: flags.FlagValues, arguments: list[str]) -> None:
    """What is no flag of the command must be an option of Beam's, with a value that it takes."""
    from kzoo.corpora.beam_options import pipeline_options

    parsed = copy.deepcopy(flag_values)
    parsed.set_gnu_getopt()
    rest = parsed(["program", *arguments], known_only=True)[1:]
    assert rest
    pipeline_options(parsed.runner, rest)


def _module_of_file(path: Path) -> ModuleType:
    """A benchmark, which is a program and not part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _check_docker(arguments: list[str]) -> None:
    """TensorFlow Serving's image, on the folder where the files say that it is."""
    image = arguments.index("tensorflow/serving")
    [mounted] = [word for word in arguments[:image] if ":/models" in word]
    source, _, target = mounted.partition(":")
    assert (source, target) == ("$PWD/export/serving", f"/models/{ServingModule.model_name}")
    files = {f"{target}/{name}" for name in (MODELS_CONFIG, BATCHING_PARAMETERS)}
    options = dict(word.partition("=")[::2] for word in arguments[image + 1 :])
    assert set(options) <= {
        "--model_config_file",
        "--enable_batching",
        "--batching_parameters_file",
    }
    assert {value for value in options.values() if value} <= files


def _check_curl(arguments: list[str]) -> None:
    """A request that has the inputs of a signature, in one of the two formats."""
    url, flag, body = arguments
    assert url == f"http://localhost:8501/v1/models/{ServingModule.model_name}:predict"
    assert flag == "-d"
    request = json.loads(body)
    inputs, _ = SERVING[request.pop("signature_name", "serving_default")]
    [(form, given)] = request.items()
    rows = {"inputs": lambda: [given], "instances": lambda: given}[form]()
    assert all(sorted(row) == sorted(inputs) for row in rows)


def _check_pip(arguments: list[str]) -> None:
    assert arguments[:3] == ["install", "-c", "constraints.txt"]
    assert (REPOSITORY / "constraints.txt").exists()
    *editable, requirement = arguments[3:]
    if editable:
        assert editable == ["-e"]
        setup = configparser.ConfigParser()
        setup.read(REPOSITORY / "setup.cfg")
        extras = re.fullmatch(r"\.(?:\[(.*)\])?", requirement)[1]
        assert set(extras.split(",") if extras else []) <= set(setup["options.extras_require"])
    else:
        assert requirement == "tensorflow[and-cuda]"


def _strings_of_the_code() -> str:
    """Every string in the package, f-strings as their constant parts."""
    strings = [
        node.value
        for path in (REPOSITORY / "kzoo").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return "\n".join(strings)
