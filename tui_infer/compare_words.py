"""What the head of a column says: numbers, how it ended, and where it leaves the first."""

from tui_infer.compare import Comparison
from tui_infer.session import SessionState, Turn
from tui_infer.workspace import Workspace

WAITS = "waits for the shared prompt"


def numbers_of(comparison: Comparison, session: SessionState) -> tuple[str, str]:
    """Two lines of a column's head: how fast, and how it ended."""
    answer = comparison.answer_of(session)
    if answer is None:
        return (WAITS if comparison.waits(session.id) else "not sent"), ""
    stats = answer.stats
    if stats is None or session.busy:
        tokens = f"{len(answer.token_ids)} tok" if answer.token_ids else ""
        rate = session.live_tokens_per_s
        doing = {"queued": "waiting", "prefill": "reading the prompt"}.get(session.status, "")
        return _joined(doing, tokens, "" if rate is None else f"{rate:.1f} tok/s"), _ending(session, answer)
    ttft = "" if stats.ttft_s is None else f"first {_duration(stats.ttft_s)}"
    rate = stats.decode_tokens_per_s
    speed = "" if rate is None else f"{rate:.1f} tok/s"
    cached = f"{stats.cached_tokens}/{stats.prompt_tokens} cached" if stats.cached_tokens else ""
    return _joined(ttft, speed, f"{stats.output_tokens} tok"), _joined(_ending(session, answer), cached)


def difference_words(comparison: Comparison, space: Workspace, session: SessionState) -> str:
    """Where an answer leaves that of the first column."""
    columns = comparison.columns(space)
    if session is columns[0]:
        return "the others are compared with this"
    found = comparison.found.get(session.id)
    if found is None or comparison.answer_of(session) is None:
        return ""
    first = columns[0].letter
    if not found.same:
        if not found.equal:
            return f"differs from {first} from the start"
        return f"equal for {found.equal:,} character{'s' if found.equal != 1 else ''}, then…"
    if columns[0].busy or session.busy:
        return f"equal so far, {found.equal:,} characters"
    return f"equal to {first}"


def _ending(session: SessionState, answer: Turn) -> str:
    if session.busy:
        return ""
    if answer.status == "done":
        return "finish: length" if answer.note.startswith("length") else "finish: stop"
    return f"{answer.status}: {answer.note}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
