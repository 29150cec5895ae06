"""A clock by which answers are timed: it stands still while the engine is paused."""

from dataclasses import dataclass


@dataclass(slots=True)
class RunningClock:
    """Seconds of ``now`` (any monotonic clock) without the pauses.

    ``by_hand`` says that steps were made one by one in this pause: their tokens took no time of this clock,
    and so must not count in a rate either.
    """

    by_hand: bool = False
    _paused_at: float | None = None
    _stood_s: float = 0.0

    @property
    def stands(self) -> bool:
        return self._paused_at is not None

    def read(self, now: float) -> float:
        return (now if self._paused_at is None else self._paused_at) - self._stood_s

    def pause(self, now: float) -> None:
        """Stand still from now on; nothing where it stands already."""
        if self._paused_at is None:
            self._paused_at = now

    def go_on(self, now: float) -> None:
        """Go on from where it stood; nothing where it goes already."""
        if self._paused_at is not None:
            self._stood_s += now - self._paused_at
        self._paused_at, self.by_hand = None, False
