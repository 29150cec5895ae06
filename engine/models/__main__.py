"""``python -m engine.models [MODEL]``: make a model available, print its folder; progress goes to stderr."""

import sys
import time

from engine.config import DEFAULT_MODEL
from engine.errors import EngineError
from engine.models.source import resolve
from engine.records import Progress

WIDTH = 28


class Bar:
    """One line on a terminal, redrawn at most ten times a second; whole lines, one a stage, elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._stage = ""
        self._drawn_s = 0.0

    def show(self, progress: Progress) -> None:
        """Draw a progress event."""
        if not self._live:
            if progress.stage != self._stage:
                print(f"{progress.stage}: {progress.detail}", file=sys.stderr, flush=True)
                self._stage = progress.stage
            return
        now = time.monotonic()
        if now - self._drawn_s < 0.1 and progress.fraction != 1.0:
            return
        self._drawn_s = now
        filled = round(WIDTH * (progress.fraction or 0.0))
        bar = "━" * filled + "╌" * (WIDTH - filled)
        share = "    " if progress.fraction is None else f"{progress.fraction:4.0%}"
        print(
            f"\r\x1b[K{progress.stage:<17} {bar} {share}  {progress.detail[:40]}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Leave the terminal on a clean line."""
        if self._live and self._drawn_s:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Exit code 0, or 1 with one line on stderr."""
    bar = Bar()
    try:
        source = resolve(arguments[0] if arguments else DEFAULT_MODEL, None, bar.show)
    except EngineError as error:
        bar.end()
        print(f"{error.title}: {error}", file=sys.stderr)
        return 1
    bar.end()
    print(source.path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
