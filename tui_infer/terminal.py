"""Ownership of the terminal: whatever ends the app, the terminal is given back and the exit code is right."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import termios
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError

if TYPE_CHECKING:
    from textual.app import App

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 1}
GARBAGE_THRESHOLDS = (10_000, 20, 20)
GRACE_S = 4.0  # for an orderly exit; after it the terminal is restored by hand and the process ends

# What Textual's driver switches on, in the order in which it has to go off again: bracketed paste, line
# wrap, in-band resize, mouse, Kitty keys (before the alternate screen), screen, cursor, focus reports.
RESTORE = (
    "\x1b[?2026l\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"
    "\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
)


class NoTerminal(EngineError):
    """The app was started where it cannot draw or read keys."""

    title = "no terminal"


def require_terminal(hint: str = "Use 'tui-infer run' for pipes and scripts.") -> None:
    """Refuse to start without a terminal.

    Raises:
        NoTerminal: naming what is not one, and with ``hint`` the headless way.
    """
    streams = {"stdin": sys.__stdin__, "stdout": sys.__stdout__, "stderr": sys.__stderr__}
    missing = [name for name, stream in streams.items() if stream is None or not stream.isatty()]
    if missing:
        raise NoTerminal(f"The app needs a terminal, but {_listed(missing)}.", hint)
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise NoTerminal(f"The app cannot draw on a terminal with TERM={os.environ.get('TERM', '')!r}.", hint)


def has_terminal() -> bool:
    """Whether ``require_terminal`` would find nothing wrong."""
    try:
        require_terminal()
    except NoTerminal:
        return False
    return True


def run_app(app: "App[Any]", log_path: Path) -> int:
    """Run a Textual app and return the process's exit code.

    SIGTERM, SIGHUP and SIGINT end it in order, with 143, 129 and 1. An exception ends it with 1, its
    traceback in ``log_path`` and one line on stderr.
    """
    from rich.console import Console

    owner = _Owner(app)
    crash: BaseException | None = None
    with log_path.open("a", encoding="utf-8") as log, owner:
        # Textual prints the traceback where the app's error console points.
        app.error_console = Console(file=log, markup=False, highlight=False, width=120)
        search_garbage_less()
        try:
            app.run()
        except BaseException as error:
            crash = error
            traceback.print_exc(file=log)
            owner.restore(screen=True)
    crash = crash or getattr(app, "_exception", None)
    if owner.signal is not None:
        if owner.signal is signal.SIGHUP:
            _let_go()
        return EXIT_CODES[owner.signal]
    if crash is not None:
        text = " ".join(f"{type(crash).__name__}: {crash}".split())
        print(f"error: the app crashed: {text} The traceback is in {log_path}", file=sys.stderr)
        return 1
    with contextlib.suppress(OSError):
        if log_path.stat().st_size == 0:
            log_path.unlink()
    return app.return_code or 0


def search_garbage_less() -> None:
    """Leave what is there out of searches for garbage, and search seldom.

    Python's own rhythm takes a quarter of the app's computing while answers stream, and each search of all
    objects holds up the loop for a tenth of a second.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def _let_go() -> None:
    """Point the standard streams at nothing: a flush into a closed terminal makes Python exit with 120."""
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.close(nothing)


def end_within(seconds: float, code: int, restore: "_Owner | None" = None) -> None:
    """Let the process end by itself, and end it after ``seconds`` where a thread or a lock keeps it."""

    def end() -> None:
        time.sleep(seconds)
        if restore is not None:
            restore.restore(screen=True)
        os._exit(code)

    threading.Thread(target=end, name="exit-watchdog", daemon=True).start()


class _Owner:
    """Holds the terminal's settings and the signal handlers for as long as the app runs."""

    def __init__(self, app: "App[Any]") -> None:
        self.signal: signal.Signals | None = None
        self._app = app
        self._attributes: list[Any] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "_Owner":
        with contextlib.suppress(termios.error, ValueError, OSError):
            self._attributes = termios.tcgetattr(sys.__stdin__.fileno())  # type: ignore[union-attr]
        for number in EXIT_CODES:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore(screen=False)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def restore(self, *, screen: bool) -> None:
        """Put the line settings back; with ``screen`` also leave the modes that the app switched on.

        Leaving them twice would move the cursor, so an app that ended in order is not helped there.
        """
        if screen:
            with contextlib.suppress(OSError):
                os.write(2, RESTORE.encode())
        if self._attributes is not None:
            with contextlib.suppress(termios.error, ValueError, OSError):
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._attributes)  # type: ignore[union-attr]

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        again = self.signal is not None
        self.signal = self.signal or signal.Signals(number)
        code = EXIT_CODES[self.signal]
        if again:
            self.restore(screen=True)
            os._exit(code)
        end_within(GRACE_S, code, restore=self)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise SystemExit(code) from None  # before or after the loop: nothing is drawn
        # From a signal handler only this call is safe, and it alone wakes a loop that sleeps.
        loop.call_soon_threadsafe(lambda: self._app.exit(return_code=code))


def _listed(names: list[str]) -> str:
    match names:
        case [only]:
            return f"{only} is not a terminal"
        case [one, other]:
            return f"neither {one} nor {other} is a terminal"
    return f"none of {', '.join(names[:-1])} and {names[-1]} is a terminal"
