"""Text of single tokens, for whoever asks what is in a KV block: prompts and answers by request."""

from dataclasses import dataclass, field

from engine.records import Delta, Started

MAX_TOKENS = 400_000  # of all requests together; the oldest are forgotten first


@dataclass(slots=True)
class RequestText:
    """``turn`` is the place of the request's answer among the turns of its chat.

    ``pieces`` are the prompt's tokens; the answer is text, and ``ends`` says how far it went at each token.
    """

    session: str
    turn: int
    pieces: list[str]
    answer: str = ""
    ends: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pieces) + len(self.ends)

    def slice(self, start: int, end: int) -> list[str]:
        """Tokens ``[start, end)`` as far as they are known."""
        prompt = len(self.pieces)
        pieces = self.pieces[start:end]
        for number in range(max(0, start - prompt), min(len(self.ends), end - prompt)):
            before = self.ends[number - 1] if number else 0
            pieces.append(self.answer[before : self.ends[number]])
        return pieces


class TokenTexts:
    """Requests of all chats. Prompts whose pieces the engine did not send are not known."""

    def __init__(self) -> None:
        self._requests: dict[int, RequestText] = {}
        self._running: dict[tuple[str, int], RequestText] = {}
        self._tokens = 0

    def clear(self) -> None:
        """A new engine counts its requests anew."""
        self.__init__()  # type: ignore[misc]

    def started(self, event: Started, turn: int) -> None:
        if len(event.pieces) != len(event.prompt_ids):
            return
        text = RequestText(event.session, turn, list(event.pieces))
        self._requests[event.request] = self._running[event.session, event.epoch] = text
        self._tokens += len(text)
        while self._tokens > MAX_TOKENS and len(self._requests) > 1:
            self._tokens -= len(self._requests.pop(next(iter(self._requests))))

    def delta(self, event: Delta) -> None:
        text = self._running.get((event.session, event.epoch))
        if text is not None and len(event.ends) == len(event.token_ids):
            text.answer += event.text
            text.ends += event.ends
            self._tokens += len(event.ends)

    def cut(self, session: str, turn: int) -> None:
        """The chat went another way at a turn: what was asked there and later stands nowhere in it."""
        for text in self._requests.values():
            if text.session == session:
                text.turn = min(text.turn, turn - 1)

    def ended(self, session: str, epoch: int) -> None:
        self._running.pop((session, epoch), None)

    def of(self, request: int) -> RequestText | None:
        return self._requests.get(request)

    def pieces(self, request: int, start: int, end: int) -> list[str] | None:
        """Text of the request's tokens ``[start, end)``, as far as it is known; None where nothing is."""
        text = self._requests.get(request)
        found = text.slice(start, end) if text is not None else []
        return found or None
