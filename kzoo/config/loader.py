"""How YAML files and `--set` become one checked configuration.

Later files win over earlier ones and `--set` over files, key by key: a value that is itself a list
or a mapping is replaced whole. Relative paths are relative to the working directory, whichever
file they stand in.
"""

from collections.abc import Iterator, Sequence

import pydantic
from pydantic.fields import FieldInfo

from kzoo.config import checks, keys, sources, wording, yaml_core
from kzoo.config.draft import Draft
from kzoo.config.schema import Config
from kzoo.errors import KzooError


def load(files: Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """Reads, merges and checks a configuration.

    Args:
        files: YAML files; later ones win, key by key.
        overrides: `section.key=value` strings, applied in order after the files; the value is
            read as in a file.

    Returns:
        The complete configuration: the arguments of a preset, or of the model that the run goes
        on from, and all defaults are filled in.

    Raises:
        KzooError: a file cannot be read, or keys or values are wrong: every wrong one is listed
            with its file and line.
    """
    draft = Draft()
    for file in files:
        draft.merge(sources.read_file(file))
    for override in overrides:
        draft.merge(sources.parse_override(override))
    draft.fill_in_model()
    config = None
    try:
        config = Config.model_validate(draft.sections)
    except pydantic.ValidationError as error:
        draft.problems.extend(_problems(error, draft))
    if config and not draft.problems:
        for problem in checks.problems(config):
            place = draft.place_of(*(tuple(key.split(".", 2)) for key in problem.keys))
            draft.problems.append(f"{place}: {problem.keys[0]}: {problem.text}")
    if draft.problems:
        raise KzooError(_listed(draft.problems))
    return _with_vocabulary_size(config)


def dump(config: Config) -> str:
    """Writes a configuration, complete, as YAML that `load` reads back as an equal one."""
    sections = config.model_dump()
    return "\n".join(yaml_core.to_yaml({name: section}) for name, section in sections.items())


def _with_vocabulary_size(config: Config) -> Config:
    """Puts the model's number of rows where `corpus.vocabulary_size` is null."""
    size = config.corpus.vocabulary_size or config.model.vocabulary_size
    corpus = config.corpus.model_copy(update={"vocabulary_size": size})
    return config.model_copy(update={"corpus": corpus})


def _problems(error: pydantic.ValidationError, draft: Draft) -> Iterator[str]:
    """Pydantic's findings in our words: one for each key, or for each language of a mapping."""
    findings = {_path(finding["loc"], draft): finding for finding in error.errors()}
    inside = {path[:2] for path in findings if len(path) > 2}
    for path, finding in findings.items():
        section, key, *language = path
        name = ".".join(path)
        problem = f"{draft.place_of(path)}: {name}: "
        if finding["type"] == "extra_forbidden":
            yield problem + f"unknown key; {keys.advice(key, section)}"
        elif finding["type"] == "missing":
            if not (section == "model" and draft.lacks_preset):
                yield problem + f"missing; expected {wording.expected(_field(section, key))}"
        elif language:
            value = draft.sections[section][key][language[0]]
            yield problem + f"expected a path or a list of paths, {wording.received(value)}"
        elif path not in inside:
            value = draft.sections[section][key]
            expected = wording.expected(_field(section, key))
            yield problem + f"expected {expected}, {wording.received(value)}"


def _path(location: tuple[str | int, ...], draft: Draft) -> tuple[str, ...]:
    """Drops what pydantic adds to a key's path: branches of unions, places in lists."""
    section, key, *rest = location
    value = draft.sections[section].get(key)
    languages = [part for part in rest if isinstance(value, dict) and part in value]
    return (section, key, *languages[:1])


def _field(section: str, key: str) -> FieldInfo:
    return keys.SECTIONS[section].model_fields[key]


def _listed(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems in the configuration:" + "".join(
        f"\n  {problem}" for problem in problems
    )
