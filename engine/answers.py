"""An answer on its way out: which part of a request's text and tokens has been sent. Torch-free."""

from engine.records import Delta, Finished
from engine.request import Request, decode_rate

DELTA_INTERVAL_S = 1 / 30  # readable as a stream, and at most 30 repaints a second and pane


class Answer:
    """The link between a chat's (session, epoch) and the engine's request."""

    __slots__ = ("_sent_at", "_sent_chars", "_sent_ids", "epoch", "request", "session")

    def __init__(self, session: str, epoch: int, request: Request) -> None:
        self.session = session
        self.epoch = epoch
        self.request = request
        self._sent_ids = request.begun
        self._sent_chars = len(request.text)
        self._sent_at = 0.0

    def due(self, now: float) -> bool:
        """Whether what is new may go out at ``now`` (monotonic seconds): first tokens wait for nobody."""
        if len(self.request.output_ids) == self._sent_ids:
            return False
        return self._sent_ids == self.request.begun or now - self._sent_at >= DELTA_INTERVAL_S

    def delta(self, now: float) -> Delta | None:
        """Everything that was not sent yet, marked as sent; None where there is nothing."""
        text = self.request.text[self._sent_chars :]
        token_ids = self.request.output_ids[self._sent_ids :]
        ends = self.request.text_ends[self._sent_ids :]
        if not text and not token_ids:
            return None
        self._sent_chars += len(text)
        self._sent_ids += len(token_ids)
        self._sent_at = now
        return Delta(session=self.session, epoch=self.epoch, text=text, token_ids=token_ids, ends=ends)

    def finished(self, reason: str = "", error: str = "") -> Finished:
        """How the answer ended; ``reason`` and ``error`` stand in where the request has none itself."""
        request = self.request
        ttft = None if request.first_token_s is None else request.first_token_s - request.arrival_s
        return Finished(
            session=self.session,
            epoch=self.epoch,
            reason=str(request.finish_reason or reason),
            prompt_tokens=len(request.prompt_ids),
            output_tokens=len(request.output_ids),
            cached_tokens=request.cached_tokens,
            ttft_s=ttft,
            decode_tokens_per_s=decode_rate(
                len(request.output_ids) - request.begun, request.first_token_s, request.last_token_s
            ),
            error=request.error or error,
        )
