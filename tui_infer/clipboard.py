"""Copying through the terminal: OSC 52, which also works over SSH, and past tmux and GNU screen.

A terminal says nothing about what it did with it, so the user is told what was sent, and what to do where
nothing arrives.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

MOST_BYTES = 100_000  # of UTF-8: terminals drop what is longer, some at less than 200 KB of base64
SCREEN_PART = 240  # characters in one of GNU screen's strings, of which it takes 256

Inside = Literal["", "tmux", "screen", "browser"]

BROWSER_HINT = "If the browser refuses, the page has a button for it."
TMUX_HINT = "If nothing arrives, tmux lacks: set -g set-clipboard on."
SCREEN_HINT = "If nothing arrives, the terminal behind GNU screen does not allow it."
HINT = "If nothing arrives, your terminal does not allow it."


@dataclass(frozen=True, slots=True)
class Copied:
    """What was sent. ``characters`` of ``total`` went; fewer where it was too long."""

    sequence: str
    characters: int
    total: int
    inside: Inside

    def words(self) -> str:
        """What to tell the user."""
        how, hint = {
            "": ("through the terminal (OSC 52)", HINT),
            "tmux": ("through the terminal (OSC 52 through tmux)", TMUX_HINT),
            "screen": ("through the terminal (OSC 52 through GNU screen)", SCREEN_HINT),
            "browser": ("to the browser", BROWSER_HINT),
        }[self.inside]
        if self.characters < self.total:
            left = self.total - self.characters
            count = f"The first {self.characters:,} of {self.total:,} characters sent ({left:,} are too many)"
        else:
            count = f"{self.total:,} character{'s' if self.total != 1 else ''} sent"
        return f"{count} {how}. {hint}"


def copied(text: str, environment: Mapping[str, str], most_bytes: int = MOST_BYTES) -> Copied:
    """The text as the bytes that bring it into the clipboard, from where the app runs."""
    data = text.encode("utf-8", "replace")
    kept = data[:most_bytes].decode("utf-8", "ignore")
    inside = inside_of(environment)
    plain = f"\x1b]52;c;{base64.b64encode(kept.encode()).decode()}\x07"
    wrapped = {"tmux": through_tmux(plain) + plain, "screen": through_screen(plain)}
    sequence = wrapped.get(inside, plain)
    return Copied(sequence, len(kept), len(text), inside)


def inside_of(environment: Mapping[str, str]) -> Inside:
    """What stands between the app and the clipboard: a multiplexer, of which over SSH only ``TERM`` tells, or
    the page of ``tui-infer serve``, whatever its server runs in.
    """
    if environment.get("TEXTUAL_DRIVER", "").endswith(":WebDriver"):
        return "browser"
    term = environment.get("TERM", "")
    if environment.get("TMUX") or term.startswith("tmux"):
        return "tmux"
    return "screen" if environment.get("STY") else ""


def through_tmux(sequence: str) -> str:
    """For the terminal behind tmux, as it is where ``allow-passthrough`` is on.

    What tmux takes for itself (``set-clipboard on``) is the bare sequence, which is why both are sent.
    """
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"


def through_screen(sequence: str) -> str:
    """For the terminal behind GNU screen, in parts that screen takes."""
    parts = [sequence[start : start + SCREEN_PART] for start in range(0, len(sequence), SCREEN_PART)]
    return "".join(f"\x1bP{part}\x1b\\" for part in parts)


def copy(
    text: str,
    write: Callable[[str], object],
    tell: Callable[[str], object],
    environment: Mapping[str, str],
) -> Copied | None:
    """Send a text to the clipboard and tell what was done; None where there is nothing to send."""
    if not text:
        tell("There is nothing to copy.")
        return None
    result = copied(text, environment)
    write(result.sequence)
    tell(result.words())
    return result
