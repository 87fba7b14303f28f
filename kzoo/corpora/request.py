"""What examples are made from, to tell whether two preparations would give the same."""

import hashlib
import json
from collections.abc import Mapping, Sequence

import sentencepiece

from kzoo.corpora.dataset_info import DatasetInfo, DatasetSettings, Split
from kzoo.corpora.records import FileInfo, Record, differences
from kzoo.storage.files import stat
from kzoo.storage.remote import at_once
from kzoo.version import __version__

_SHOWN_FILES = 3

FilesByLanguage = Mapping[str, Sequence[str]]


class Request(Record):
    """Settings, vocabulary and text of a preparation, and the programs that do it.

    Attributes:
        settings: what the examples depend on besides the text and the vocabulary.
        vocabulary_sha256: of the SentencePiece model.
        files: by split and language.
        modified_ns: when each file was last changed, in nanoseconds since 1970.
        versions: of kzoo and SentencePiece.
    """

    settings: DatasetSettings
    vocabulary_sha256: str
    files: dict[Split, dict[str, list[FileInfo]]]
    modified_ns: dict[str, int]
    versions: dict[str, str]

    @classmethod
    def of(
        cls,
        paths: Mapping[Split, FilesByLanguage],
        settings: DatasetSettings,
        vocabulary_sha256: str,
    ) -> "Request":
        """Looks up the files.

        Args:
            paths: of the files, by split and language.
            settings: what the examples depend on besides the text and the vocabulary.
            vocabulary_sha256: of the SentencePiece model.

        Raises:
            KzooError: a file cannot be read.
        """
        flat = [
            path for languages in paths.values() for group in languages.values() for path in group
        ]
        stats = dict(zip(flat, at_once(stat, flat), strict=True))
        infos = {
            split: {
                language: [FileInfo(path=path, size_bytes=stats[path].size_bytes) for path in group]
                for language, group in languages.items()
            }
            for split, languages in paths.items()
        }
        return cls(
            settings=settings,
            vocabulary_sha256=vocabulary_sha256,
            files=infos,
            modified_ns={path: stats[path].modified_ns for path in flat},
            versions={"kzoo": __version__, "sentencepiece": sentencepiece.__version__},
        )

    def digest(self) -> str:
        """A name for it, which another request has not."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def total_bytes(self) -> int:
        """Size of all files, as they are stored."""
        return sum(file.size_bytes for file in _flat(self.files))

    def differences_from(self, other: "Request") -> list[str]:
        """What is not the same in a request whose work was interrupted; empty if all is."""
        changes = self._input_differences(other.settings, other.vocabulary_sha256, other.files)
        if not changes:
            touched = sorted(set(self.modified_ns.items()) ^ set(other.modified_ns.items()))
            if touched:
                changes.append(f"{touched[0][0]} has been changed")
        for program, version in self.versions.items():
            if version != other.versions.get(program):
                changes.append(f"{program} is {version}, was {other.versions.get(program)}")
        return changes

    def differences_from_dataset(self, info: DatasetInfo) -> list[str]:
        """What is not the same in what a finished dataset was made from; empty if all is."""
        made_from = {
            split: {language: entry.files for language, entry in languages.items()}
            for split, languages in info.splits.items()
        }
        return self._input_differences(info.settings, info.vocabulary_sha256, made_from)

    def _input_differences(self, settings, vocabulary_sha256, made_from) -> list[str]:
        changes = differences(self.settings, settings)
        if self.vocabulary_sha256 != vocabulary_sha256:
            changes.append("the vocabulary is another one")
        if self.files != made_from:
            now, then = set(_flat(self.files)), set(_flat(made_from))
            names = sorted({file.path for file in now ^ then})
            shown = ", ".join(names[:_SHOWN_FILES]) + (", …" if len(names) > _SHOWN_FILES else "")
            changes.append(f"the files of text are others ({shown or 'in another order'})")
        return changes


def _flat(by_split: Mapping[Split, Mapping[str, list[FileInfo]]]) -> list[FileInfo]:
    return [
        file for languages in by_split.values() for group in languages.values() for file in group
    ]
