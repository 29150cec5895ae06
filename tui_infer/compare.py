"""One prompt with different parameters side by side: what to run, and how the answers differ. No Textual."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

import msgspec

from engine.errors import RequestError
from engine.request import SamplingParams
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import SessionState, Turn
from tui_infer.word_diff import Difference, difference
from tui_infer.workspace import TITLE_LENGTH, Workspace

Number = TypeVar("Number", int, float)

LEAST, MOST = 2, 8  # columns
TEMPERATURES = (0.0, 0.7, 1.2)  # where nothing is said
FORMS = 'It takes: temperature=0,0.7 seed=1,2 system="a"|"b" n=2…8 and then the prompt.'
WAITS = "waits for the shared prompt"

_OPTION = re.compile(
    r'(temperature|temp|seed|system|n)=((?:"[^"]*"|[^\s"|]+)(?:\|(?:"[^"]*"|[^\s"|]+))*|)(?=\s|$)',
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Variant:
    """What one column runs with; ``label`` names what differs from the others."""

    params: SamplingParams
    system: str
    label: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A prompt and the columns that it is to run in. ``typed`` is the prompt without the files it names."""

    prompt: str
    variants: tuple[Variant, ...]
    typed: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was typed, each a list by commas, systems by ``|``; empty where nothing was said."""

    temperatures: str = ""
    seeds: str = ""
    systems: tuple[str, ...] = ()
    count: str = ""


def read_plan(said: str, params: SamplingParams, system: str) -> Plan | str:
    """What follows ``/compare``, on top of the parameters of a chat; else what is wrong with it."""
    wishes: dict[str, str] = {}
    rest = said.strip()
    while match := _OPTION.match(rest):
        name = match[1].lower()
        wishes["temperature" if name == "temp" else name] = match[2]
        rest = rest[match.end() :].lstrip()
    return make_plan(
        rest,
        Wishes(
            temperatures=wishes.get("temperature", ""),
            seeds=wishes.get("seed", ""),
            systems=tuple(systems_of(wishes["system"])) if "system" in wishes else (),
            count=wishes.get("n", ""),
        ),
        params,
        system,
    )


def systems_of(said: str) -> list[str]:
    """``"a"|"b"`` as texts, with or without the quotes; nothing between two bars is no system prompt."""
    parts = re.split(r'\|(?=(?:[^"]*"[^"]*")*[^"]*$)', said)
    return [part.strip().removeprefix('"').removesuffix('"') for part in parts]


def make_plan(prompt: str, wishes: Wishes, params: SamplingParams, system: str) -> Plan | str:
    """All combinations of what is wished for, 2 to 8 of them; else what is wrong."""
    prompt = sanitize(prompt).strip("\n")
    if not prompt.strip():
        return f"There is no prompt. {FORMS}"
    try:
        temperatures = _numbers("temperature", wishes.temperatures, float)
        seeds = _numbers("seed", wishes.seeds, int)
        counts = _numbers("n", wishes.count, int)
    except ValueError as error:
        return f"{error} {FORMS}"
    if len(counts) > 1 or (counts and not LEAST <= counts[0] <= MOST):
        return f"n={wishes.count} is no number of columns; it must be from {LEAST} to {MOST}."
    if not (temperatures or seeds or wishes.systems or counts):
        temperatures = list(TEMPERATURES)
    sizes = [len(values) or 1 for values in (temperatures, seeds, wishes.systems)]
    columns = sizes[0] * sizes[1] * sizes[2]
    if counts and columns == 1:
        first = seeds[0] if seeds else params.seed or 1
        seeds = list(range(first, first + counts[0]))
        columns = sizes[1] = counts[0]
    if counts and counts[0] != columns:
        return f"n={counts[0]} does not fit: what is listed makes {columns} columns."
    if not LEAST <= columns <= MOST:
        listed = " × ".join(f"{size}" for size in sizes if size > 1) or "1"
        return f"That makes {listed} = {columns} columns; it must be from {LEAST} to {MOST}."
    chosen: list[int | None] = [*seeds] or [params.seed]
    try:
        variants = tuple(
            _variant(params, temperature, seed, text, sizes)
            for temperature, seed, text in product(
                temperatures or [params.temperature], chosen, wishes.systems or [system]
            )
        )
    except RequestError as error:
        return f"{error}"
    return Plan(prompt, variants, prompt)


def _variant(
    params: SamplingParams, temperature: float, seed: int | None, system: str, sizes: Sequence[int]
) -> Variant:
    system = sanitize(system)
    words: list[str] = []
    if sizes[0] > 1:
        words.append(f"temperature {temperature:g}")
    if sizes[1] > 1:
        words.append(f"seed {seed}")
    if sizes[2] > 1:
        words.append(f"“{one_line(system, 40)}”" if system.strip() else "no system prompt")
    # replace() would not check the values
    values = {**msgspec.structs.asdict(params), "temperature": temperature, "seed": seed}
    return Variant(SamplingParams(**values), system, " · ".join(words))


def _numbers(name: str, said: str, kind: type[Number]) -> list[Number]:
    numbers: list[Number] = []
    for word in said.replace(" ", "").split(",") if said.strip() else []:
        try:
            numbers.append(kind(word))
        except ValueError:
            raise ValueError(f"{name}={said}: “{one_line(word, 20)}” is no number.") from None
    return numbers


# --- the run ---------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """Chats that answer one prompt. The first with a system prompt goes ahead; the others with the same one
    follow when its prompt was computed, so that they find its blocks in the cache.

    ``found`` are the differences from the first column as far as they were computed, by session.
    """

    prompt: str
    labels: dict[str, str]  # by session, in the order of the columns
    followers: dict[str, list[str]] = field(default_factory=dict)
    found: dict[str, Difference] = field(default_factory=dict)
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def columns(self, space: Workspace) -> list[SessionState]:
        """The chats that are still open."""
        return [space.sessions[chat] for chat in self.labels if chat in space.sessions]

    def waits(self, chat: str) -> bool:
        """Whether its prompt was not sent yet."""
        return any(chat in followers for followers in self.followers.values())

    def busy(self, space: Workspace) -> bool:
        return bool(self.followers) or any(session.busy for session in self.columns(space))

    def advance(self, space: Workspace) -> None:
        """Send the prompt to those whose shared part is computed; to none where the first was stopped, or
        with a dead engine.
        """
        if space.phase == "failed":
            self.followers.clear()
        for leader in list(self.followers):
            session = space.sessions.get(leader)
            answer = session.last_answer if session is not None else None
            if session is not None and session.busy and not (answer is not None and answer.token_ids):
                continue
            followers = self.followers.pop(leader)
            if answer is not None and answer.status == "cancelled":
                continue
            for chat in followers:
                if chat in space.sessions and not space.sessions[chat].turns:
                    space.submit(chat, self.prompt, typed=None)

    def stop(self, space: Workspace) -> None:
        """Stop all answers; those that wait are not sent."""
        self.followers.clear()
        for session in self.columns(space):
            space.cancel(session.id)

    def stale(self, space: Workspace) -> list["Job"]:
        """The comparisons whose texts have changed since they were made."""
        columns = self.columns(space)
        if not columns or (first := columns[0].last_answer) is None:
            return []
        jobs: list[Job] = []
        for session in columns[1:]:
            answer = session.last_answer
            if answer is not None and self._seen.get(session.id) != (first.version, answer.version):
                jobs.append(Job(session.id, _frozen(first), _frozen(answer), (first.version, answer.version)))
        return jobs

    def take_in(self, jobs: Sequence["Job"], found: Sequence[Difference]) -> None:
        for job, differs in zip(jobs, found, strict=True):
            self.found[job.session] = differs
            self._seen[job.session] = job.versions


@dataclass(frozen=True, slots=True)
class Job:
    """Two texts to compare, each with whether it still grows; ``run`` may be called on any thread."""

    session: str
    left: tuple[str, bool]
    right: tuple[str, bool]
    versions: tuple[int, int]

    def run(self) -> Difference:
        (left, left_open), (right, right_open) = self.left, self.right
        return difference(left, right, left_open=left_open, right_open=right_open)


def start(space: Workspace, plan: Plan, *, share: bool = True) -> Comparison:
    """Open a chat for each column and send the prompt; with ``share`` equal beginnings are computed once."""
    comparison = Comparison(plan.prompt, {})
    leaders: dict[str, str] = {}
    for variant in plan.variants:
        session = space.new_session(focus=False)
        session.params, session.system = variant.params, variant.system
        session.title, session.titled = one_line(f"{variant.label}: {plan.prompt}", TITLE_LENGTH), True
        comparison.labels[session.id] = variant.label
        leader = leaders.setdefault(variant.system, session.id)
        if share and leader != session.id:
            comparison.followers.setdefault(leader, []).append(session.id)
    for chat in comparison.labels:
        if not comparison.waits(chat):
            space.submit(chat, plan.prompt, typed=None)
    return comparison


# --- in words --------------------------------------------------------------------------------------


def numbers_of(session: SessionState, *, waits: bool) -> tuple[str, str]:
    """Two lines of a column's head: how fast, and how it ended."""
    answer = session.last_answer
    if answer is None:
        return (WAITS if waits else "not sent"), ""
    stats = answer.stats
    if stats is None or session.busy:
        tokens = f"{len(answer.token_ids)} tok" if answer.token_ids else ""
        rate = session.live_tokens_per_s
        doing = {"queued": "waiting", "prefill": "reading the prompt"}.get(session.status, "")
        return _joined(doing, tokens, "" if rate is None else f"{rate:.1f} tok/s"), _ending(session, answer)
    ttft = "" if stats.ttft_s is None else f"TTFT {_duration(stats.ttft_s)}"
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
    if found is None or session.last_answer is None:
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


def _frozen(turn: Turn) -> tuple[str, bool]:
    return turn.text, turn.status == "open"
