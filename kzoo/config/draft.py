"""A configuration while it is put together: what the sources say so far, and where."""

import difflib
from typing import Any

from kzoo.config import keys, model_on_disk, wording
from kzoo.config.schema import Model
from kzoo.config.sources import Source
from kzoo.errors import KzooError

_MODEL_ARGUMENTS = Model.model_fields.keys() - {"preset"}


class Draft:
    """Merges sources in order and remembers where each key was given last.

    Attributes:
        sections: section → key → value.
        problems: what is wrong so far, each with its place.
        lacks_preset: there is no model, or no such preset; that its arguments are missing too need
            not be said.
    """

    def __init__(self):
        self.sections: dict[str, dict[str, Any]] = {name: {} for name in keys.SECTIONS}
        self.problems: list[str] = []
        self.lacks_preset = False
        self._places: dict[tuple[str, ...], str] = {}
        self._files: list[str] = []

    def merge(self, source: Source) -> None:
        """Takes over every key of a source; one that was there already gets the new value."""
        if source.is_file:
            self._files.append(source.name)
        for name, section in source.value.items():
            place = source.place(str(name))
            if name not in keys.SECTIONS:
                self.problems.append(f"{place}: {name}: unknown section; {keys.advice(str(name))}")
            elif isinstance(section, dict):
                if source.is_file:  # A --set is no place to look for a key that is missing.
                    self._places[name,] = place
                self._merge_section(name, section, source)
            elif section is not None:  # A section of which every key is commented out is null.
                problem = f"{name}: expected keys with values, {wording.received(section)}"
                self.problems.append(f"{place}: {problem}")

    def _merge_section(self, name: str, section: dict, source: Source) -> None:
        if name == "model":
            self._check_effect_of_preset(section, source)
        for key in self._words(section, (name,), source):
            self.sections[name][key] = section[key]
            if isinstance(section[key], dict):
                languages = self._words(section[key], (name, key), source)
                self.sections[name][key] = {word: section[key][word] for word in languages}

    def _words(self, mapping: dict, path: tuple[str, ...], source: Source) -> list[str]:
        """The keys of a mapping, their places noted; those that are not strings are reported."""
        for key in mapping:
            place = source.place(*path, str(key))
            self._places[(*path, str(key))] = place
            if not isinstance(key, str):
                problem = f"a key must be a string, {wording.received(key)}; put it in quotes"
                self.problems.append(f"{place}: {'.'.join(path)}: {problem}")
        return [key for key in mapping if isinstance(key, str)]

    def _check_effect_of_preset(self, new: dict, source: Source) -> None:
        """Refuses a preset laid over a complete model (that of a run), where it changes nothing."""
        old = self.sections["model"]
        names_another = new.get("preset") not in (None, old.get("preset"))
        complete_before = old.keys() | new.keys() >= _MODEL_ARGUMENTS
        if names_another and complete_before and not new.keys() >= _MODEL_ARGUMENTS:
            self.problems.append(
                f"{source.place('model', 'preset')}: model.preset: has no effect, for every "
                "argument of the model is given by the files before; change the arguments instead"
            )

    def fill_in_model(self) -> None:
        """Adds the model's arguments that only its preset gives, or the model it goes on from."""
        preset, source = (
            self.sections[section].get(key)
            for section, key in (("model", "preset"), ("init_from", "path"))
        )
        if preset is not None:
            self._fill_in(self._arguments_of_preset(preset), ("model", "preset"), preset)
        elif isinstance(source, str) and not self.sections["model"].keys() >= _MODEL_ARGUMENTS:
            self._fill_in(self._arguments_of_source(source), ("init_from", "path"), source)
        elif not _MODEL_ARGUMENTS & self.sections["model"].keys():
            self.lacks_preset = True
            advice = "name a model.preset (python -m kzoo.zoo lists them) or give the arguments"
            self.problems.append(f"{self.place_of(('model',))}: model: missing; {advice}")

    def _fill_in(self, arguments: dict[str, Any] | None, key: tuple[str, str], value: Any) -> None:
        """Puts arguments of the model where no source gives them; None if there are none."""
        if arguments is None:
            self.lacks_preset = True
            return
        self.sections["model"] = {**arguments, **self.sections["model"]}
        place = f"{self.place_of(key)} ({key[1]} {value})"
        for argument in arguments:
            self._places.setdefault(("model", argument), place)

    def _arguments_of_preset(self, name: Any) -> dict[str, Any] | None:
        from kzoo.models.presets import PRESETS

        if isinstance(name, str) and name in PRESETS:
            preset = PRESETS[name]
            return {**preset.backbone, "output_embedding_dim": preset.output_embedding_dim}
        if isinstance(name, str):
            near = difflib.get_close_matches(name, PRESETS, n=3)
            advice = f"near it: {', '.join(near)}" if near else "python -m kzoo.zoo lists all"
            place = self.place_of(("model", "preset"))
            self.problems.append(f"{place}: model.preset: no preset is {name!r}; {advice}")
        return None

    def _arguments_of_source(self, path: str) -> dict[str, Any] | None:
        """The arguments of a model on disk; of an encoder alone, without the head's."""
        try:
            cache_dir = self.sections["runtime"].get("cache_dir")
            return model_on_disk.read_arguments(
                path, cache_dir if isinstance(cache_dir, str) else None
            )
        except KzooError as error:
            place = self.place_of(("init_from", "path"))
            self.problems.append(
                f"{place}: init_from.path: {error}. The arguments of the model, not all of which "
                "are given here, are read from there"
            )
            return None

    def place_of(self, *paths: tuple[str, ...]) -> str:
        """Where the first of these keys that any source gives stands, or else its section."""
        prefixes = [path[:length] for length in (3, 2, 1) for path in paths]
        everywhere = ", ".join(self._files) or "configuration"
        return next((self._places[path] for path in prefixes if path in self._places), everywhere)
