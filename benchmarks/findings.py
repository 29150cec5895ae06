"""The document of a long measurement: on disk after every row, and whole although an engine fails."""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.bench.report import document, write_json

Row = dict[str, Any]

BESIDE = ("engines", "skipped", "failed")  # lists whose entries name their part


class Findings:
    """Lists of rows by part, with what failed and what was left out.

    Args:
        path: where the document is written; None keeps it in memory.
        kept: the document of an earlier run. Its parts stay until they begin again, and its header and
            settings until one does: those go to ``earlier`` then.
    """

    def __init__(
        self, bench: str, path: Path | None, settings: Row, parts: Sequence[str], kept: Row | None = None
    ) -> None:
        kept = kept or {}
        lists = {name: kept.get(name, []) for name in (*parts, *BESIDE)}
        self._fresh = document(bench, settings, lists)
        self.value = {**self._fresh, **kept, **lists}
        self._path = path

    def begin(self, part: str) -> None:
        """Forget what an earlier run has of this part."""
        if self.value["header"] is not self._fresh["header"]:
            before = {name: self.value[name] for name in ("header", "settings")}
            self.value["earlier"] = [*self.value.get("earlier", []), before]
            self.value |= {name: self._fresh[name] for name in before}
        self.value[part] = []
        for name in BESIDE:
            self.value[name] = [row for row in self.value[name] if row["part"] != part]

    def add(self, name: str, *rows: Row) -> None:
        """Append rows to a list and write the document.

        Raises:
            ConfigError: the file cannot be written.
        """
        self.value[name].extend(rows)
        self.write()

    def write(self) -> None:
        """Write the document as it is."""
        if self._path is not None:
            write_json(self._path, self.value)

    @contextmanager
    def guard(self, part: str, what: str) -> Iterator[None]:
        """An engine that fails costs its own figures only: what it said is printed and kept."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add("failed", {"part": part, "what": what, "reason": str(error)})

    def failures(self) -> str:
        """A line for each engine that failed."""
        return "".join(
            f"\nfailed: {row['part']}, {row['what']}: {row['reason']}" for row in self.value["failed"]
        )
