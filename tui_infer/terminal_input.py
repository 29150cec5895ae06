"""What the terminal sends, made into events: Textual's driver with a parser of its own.

Textual 8 takes an escape inside a bracketed paste for the start of a key sequence and types what follows,
so a pasted coloured log could press any key; it reads Alt+1…9 as the characters of a Mac keyboard, and Alt
with a letter as two characters where another escape follows at once. All that is put right here, before any
event exists.
"""

import codecs
import os
import re
import selectors
from collections.abc import Iterable
from time import monotonic

from textual import constants, events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

ESC = "\x1b"
_ALT = re.compile(f"{ESC}[0-9a-z]")  # no longer sequence begins like this
ENTER_SCREEN = f"{ESC}[?1049h"
READ_BYTES = 1 << 16
POLL_S = 0.1
PARTIAL_S = 1.0  # for the rest of a paste's first sequence on a slow line; a lone Esc does not wait for it


class TerminalParser(XTermParser):
    """Cuts bracketed pastes out of the stream, across reads, and leaves the rest to Textual.

    A paste is one ``events.Paste`` of exactly its characters, less NUL; what to do with controls in it is
    the business of who takes it.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasted: list[str] | None = None  # the pieces of the paste that is coming in
        self._held = ""  # the start of what may become a paste's first or last sequence
        self._held_s = 0.0

    def feed(self, data: str) -> Iterable[Message]:
        if not data:
            yield from super().feed(data)
            return
        data, self._held = self._held + data, ""
        while data:
            mark = BRACKETED_PASTE_START if self._pasted is None else BRACKETED_PASTE_END
            before, found, data = data.partition(mark)
            if not found:
                before, self._held = _split_partial(before, mark)
                self._held_s = monotonic()
            if self._pasted is None:
                if before:
                    yield from super().feed(before)
                if found:
                    self._pasted = []
                continue
            self._pasted.append(before)
            if found:
                text = "".join(self._pasted).replace("\x00", "")
                self._pasted = None
                yield events.Paste(text)

    def tick(self) -> Iterable[Message]:
        yield from super().tick()
        wait = constants.ESCAPE_DELAY if self._held == ESC else PARTIAL_S
        if self._pasted is None and self._held and monotonic() - self._held_s >= wait:
            held, self._held = self._held, ""
            yield from super().feed(held)
            if self._timeout_time is not None:
                self._timeout_time = 0.0  # it has waited here
            yield from super().tick()

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        if _ALT.fullmatch(sequence) and (sequence[1].isdigit() or sequence not in ANSI_SEQUENCES_KEYS):
            return [events.Key(f"alt+{sequence[1]}", None)]
        return super()._sequence_to_key_events(sequence, alt)


class TerminalDriver(LinuxDriver):
    """Textual's driver for terminals, reading through ``TerminalParser``."""

    def write(self, data: str) -> None:
        """Send to the terminal; a screen that was entered before the app is not entered again."""
        if data == ENTER_SCREEN and getattr(self._app, "screen_entered", False):
            self._app.screen_entered = False  # type: ignore[attr-defined]
            return
        super().write(data)

    def _get_terminal_size(self) -> tuple[int, int]:
        """The terminal's own size: an exported COLUMNS or LINES would fix it, whatever is resized."""
        try:
            size = os.get_terminal_size(self.fileno)
        except OSError:
            return super()._get_terminal_size()
        return (size.columns, size.lines) if size.columns and size.lines else super()._get_terminal_size()

    def run_input_thread(self) -> None:
        """Read and dispatch until the app ends or the terminal is gone."""
        parser = TerminalParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(POLL_S):
                    data = os.read(self.fileno, READ_BYTES)
                    if text := decode(data):
                        for message in parser.feed(text):
                            self.process_message(message)
                    elif not data:  # hung up: SIGHUP ends the app, and until then every read is empty
                        self.exit_event.wait(POLL_S)
                for message in parser.tick():
                    self.process_message(message)


def _split_partial(text: str, mark: str) -> tuple[str, str]:
    """Cut off the end of ``text`` that is a beginning of ``mark``."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return text[:-length], text[-length:]
    return text, ""
