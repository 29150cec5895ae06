"""Step records on their way out: ten batches a second, given up under pressure. Torch-free."""

from collections.abc import Callable

from engine.records import AnyEvent, BlockSnapshot, StepRecord, Steps

TELEMETRY_INTERVAL_S = 0.1


class Telemetry:
    """Collects the records of an engine and sends them in batches.

    Records that could not be sent are counted in the next batch, which a whole snapshot of the
    blocks follows: changes are a chain, and with a link missing the reader's copy would be wrong.

    Args:
        send: takes an event that must arrive.
        congested: True while the reader is behind.
        snapshot: the pool as it is now, after the last record that was added.
    """

    def __init__(
        self,
        send: Callable[[AnyEvent], None],
        congested: Callable[[], bool],
        snapshot: Callable[[], BlockSnapshot],
    ) -> None:
        self._send = send
        self._congested = congested
        self._snapshot = snapshot
        self._records: list[StepRecord] = []
        self._dropped = 0
        self._stale = False
        self._sent_at = 0.0

    def add(self, record: StepRecord, now: float) -> None:
        """Take a record; sends the batch when it is due at ``now`` (monotonic seconds)."""
        self._records.append(record)
        self._stale = False  # the record carries the changes made since the one before
        if now - self._sent_at >= TELEMETRY_INTERVAL_S:
            self._sent_at = now
            if self._congested():
                self._dropped += len(self._records)
                self._records = []
            else:
                self._flush()

    def blocks_changed(self) -> None:
        """Blocks changed outside a step, by a cancel; should no step follow, a snapshot tells it."""
        self._stale = True

    def settle(self) -> None:
        """The engine goes idle: send what is left, so that the last picture is the true one."""
        if self._records and self._congested():
            self._dropped += len(self._records)
            self._records = []
        self._flush()
        if self._stale:
            self._stale = False
            self._send(self._snapshot())

    def _flush(self) -> None:
        if not self._records and not self._dropped:
            return
        lost = self._dropped > 0
        self._send(Steps(records=self._records, dropped=self._dropped))
        self._records = []
        self._dropped = 0
        if lost:
            self._stale = False
            self._send(self._snapshot())
