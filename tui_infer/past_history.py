"""The step history as it was after a past step, at the cost of a few hundred steps."""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from engine.records import StepMode, StepRecord
from tui_infer.history import RATE_WINDOW_S, SAMPLES_PER_BATCH, WINDOW_STEPS, SortedWindow, StepHistory

Window = tuple[int, "array[float]"]  # values ever added, and the milliseconds that are kept, in order


@dataclass(frozen=True, slots=True)
class Totals:
    """What the steps of a history add up to at one moment."""

    appended: int
    dropped: int
    decode_batch: int
    graph_hits: dict[int, int]
    eager_reasons: dict[str, int]
    decode_ms: Window
    by_batch: dict[tuple[StepMode, int], Window]
    num_bytes: int

    @classmethod
    def of(cls, history: StepHistory, before: "Totals | None" = None) -> "Totals":
        """The totals now; windows that did not change are shared with ``before``."""
        taken = 600 + 110 * (len(history.graph_hits) + len(history.eager_reasons))

        def kept(window: SortedWindow, known: Window | None) -> Window:
            nonlocal taken
            if known is not None and known[0] == window.added:
                return known
            taken += 200 + 8 * len(window)
            return window.added, array("d", window)

        windows = before.by_batch if before else {}
        decode_ms = kept(history._decode_ms, before.decode_ms if before else None)
        by_batch = {key: kept(window, windows.get(key)) for key, window in history._by_batch.items()}
        return cls(
            appended=history.appended,
            dropped=history.dropped,
            decode_batch=history.decode_batch,
            graph_hits=dict(history.graph_hits),
            eager_reasons=dict(history.eager_reasons),
            decode_ms=decode_ms,
            by_batch=by_batch,
            num_bytes=taken,
        )


class PastHistory(StepHistory):
    """A history as it was after one of its steps. It reads the given records and copies none of them.

    Args:
        records: what is kept, oldest first; must not change any more.
        first: how many steps had been appended before the first of them.
        end: how many of them are in view.
        totals: what the steps before ``records[totals.appended - first]`` add up to.

    Rates look at the kept records only: those of the first ``RATE_WINDOW_S`` seconds that are kept are over
    what is kept. All other numbers are what the live history said.
    """

    def __init__(self, records: Sequence[StepRecord], first: int, end: int, totals: Totals) -> None:
        super().__init__(max(1, len(records)))
        self._all, self._end = records, end
        self.dropped, self.decode_batch = totals.dropped, totals.decode_batch
        self.graph_hits, self.eager_reasons = Counter(totals.graph_hits), Counter(totals.eager_reasons)
        self._decode_ms = SortedWindow(WINDOW_STEPS, totals.decode_ms[1])
        self._by_batch = {
            key: SortedWindow(SAMPLES_PER_BATCH, values) for key, (_, values) in totals.by_batch.items()
        }
        for position in range(max(0, totals.appended - first), end):
            self._count(records[position])
        oldest = records[end - 1].t - RATE_WINDOW_S if end else 0.0
        begin = end
        while begin > 0 and (begin == end or records[begin - 1].t >= oldest):
            begin -= 1
        for position in range(begin, end):
            self._keep_recent(records[position])
        self.appended = first + end
        self.version = self.appended

    def __len__(self) -> int:
        return self._end

    def __getitem__(self, position: int) -> StepRecord:
        if not -self._end <= position < self._end:
            raise IndexError(position)
        return self._all[position % self._end]

    def __iter__(self) -> Iterator[StepRecord]:
        return islice(iter(self._all), self._end)

    def append(self, record: StepRecord) -> None:
        raise TypeError("The past takes no new steps.")
