"""The window before the app is there: drawn by hand, because importing Textual takes longer than a blink."""

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn

from engine.records import Progress
from tui_infer.sanitize import one_line

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?1049l\x1b[?25h"
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
ENDING = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}
STAGE_ROW = 3


class Splash:
    """Shows what loads while the app's modules are imported; whatever ends that gives the terminal back.

    Only the default colours are used: which the app will have is not known yet. Left in order, the screen
    stays for the app, whose driver must not enter it again.

    Args:
        model: what is loaded, as the user named it.
        write: takes the text for the terminal.
    """

    def __init__(self, model: str, write: Callable[[str], None] | None = None) -> None:
        self._model = model
        self._write = write or _to_terminal
        self._before: dict[signal.Signals, object] = {}
        self._left = False

    def __enter__(self) -> "Splash":
        for number in ENDING:
            self._before[number] = signal.signal(number, self._end)
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        self._write(f"{ENTER}{BOLD} tui-infer{PLAIN}")
        self.show(Progress("loading", self._model))
        return self

    def show(self, progress: Progress | None) -> None:
        """Draw what the engine said last, if anything."""
        if progress is not None:
            stage, detail = one_line(progress.stage, 60), one_line(progress.detail, 200)
            text = f" ◐ {stage}  {detail}"[: max(0, _columns() - 1)]
            shown = text.replace(f"{stage}  ", f"{stage}{DIM}  ", 1)
            self._write(f"\x1b[{STAGE_ROW};1H\x1b[2K{shown}{PLAIN}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._left:
            self.leave()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def leave(self) -> None:
        """Give the terminal back: the app will not."""
        self._left = True
        self._write(LEAVE)

    def _end(self, number: int, _: FrameType | None) -> NoReturn:
        """Give it back at once: the signal may come before the window's block is entered."""
        self.leave()
        raise SystemExit(ENDING[signal.Signals(number)])


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


def _to_terminal(text: str) -> None:
    """Where Textual draws too; a terminal that is gone takes nothing."""
    data = text.encode("utf-8", "replace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
