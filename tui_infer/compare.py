"""One prompt with different parameters side by side: what to run, and how the answers differ. No Textual."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

import msgspec

from engine.errors import RequestError
from engine.request import SamplingParams
from tui_infer.parameters import set_system
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import SessionState, Turn
from tui_infer.state import AppState
from tui_infer.turns import branch, why_not
from tui_infer.word_diff import Difference, difference
from tui_infer.workspace import TITLE_LENGTH, Workspace

Number = TypeVar("Number", int, float)

LEAST, MOST = 2, 8  # columns
TEMPERATURES = (0.0, 0.7, 1.2)  # where nothing is said
CHAT = "chat"  # what the columns can go on with
FORMS = 'It takes: temperature=0,0.7 seed=1,2 system="a"|"b" n=2…8 with=chat and then the prompt.'

_OPTION = re.compile(
    r'(temperature|temp|seed|system|n|with)=((?:"[^"]*"|[^\s"|]+)(?:\|(?:"[^"]*"|[^\s"|]+))*|)(?=\s|$)',
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
    """A prompt and the columns that it is to run in. ``typed`` is the prompt without the files it names. With
    ``with_chat`` each column goes on with what was said in a chat.
    """

    prompt: str
    variants: tuple[Variant, ...]
    typed: str
    with_chat: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was typed, each a list by commas, systems by ``|``; empty where nothing was said. ``origin`` is
    what the columns go on with.
    """

    temperatures: str = ""
    seeds: str = ""
    systems: tuple[str, ...] = ()
    count: str = ""
    origin: str = ""


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
            origin=wishes.get("with", ""),
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
    if wishes.origin.lower() not in ("", CHAT):
        return (
            f"with={one_line(wishes.origin, 20)} is nothing to go on with; with=chat is what was said here."
        )
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
        listed = [f"{size}" for size in sizes if size > 1]
        times = f"{' × '.join(listed)} = " if len(listed) > 1 else ""
        unit = "column" if columns == 1 else "columns"
        return f"That makes {times}{columns} {unit}; it must be from {LEAST} to {MOST}."
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
    return Plan(prompt, variants, prompt, bool(wishes.origin))


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

    ``begun`` are the turns that a column had before; ``found`` the differences from the first column as far
    as they were computed; both by session.
    """

    prompt: str
    labels: dict[str, str]  # by session, in the order of the columns
    origin: str = ""  # letter of the chat that the columns go on with
    begun: dict[str, int] = field(default_factory=dict)
    followers: dict[str, list[str]] = field(default_factory=dict)
    found: dict[str, Difference] = field(default_factory=dict)
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def columns(self, space: Workspace) -> list[SessionState]:
        """The chats that are still open."""
        return [space.sessions[chat] for chat in self.labels if chat in space.sessions]

    def answer_of(self, session: SessionState) -> Turn | None:
        """The column's answer to the prompt; none of those that it goes on with."""
        return session.last_answer if len(session.turns) > self.begun.get(session.id, 0) else None

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
            answer = self.answer_of(session) if session is not None else None
            if session is not None and session.busy and not (answer is not None and answer.token_ids):
                continue
            followers = self.followers.pop(leader)
            if answer is not None and answer.status == "cancelled":
                continue
            for chat in followers:
                column = space.sessions.get(chat)
                if column is not None and len(column.turns) == self.begun.get(chat, 0):
                    space.submit(chat, self.prompt, typed=None)

    def stop(self, space: Workspace) -> None:
        """Stop all answers; those that wait are not sent."""
        self.followers.clear()
        for session in self.columns(space):
            space.cancel(session.id)

    def stale(self, space: Workspace) -> list["Job"]:
        """The comparisons whose texts have changed since they were made."""
        columns = self.columns(space)
        if not columns or (first := self.answer_of(columns[0])) is None:
            return []
        jobs: list[Job] = []
        for session in columns[1:]:
            answer = self.answer_of(session)
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


def start(
    state: AppState, plan: Plan, *, share: bool = True, origin: SessionState | None = None
) -> Comparison:
    """Open a chat for each column and send the prompt; with ``share`` equal beginnings are computed once.

    Columns of a plan with a chat are branches of ``origin``, which finds their blocks in the cache.
    """
    origin = origin if plan.with_chat and origin is not None and origin.turns else None
    comparison = Comparison(plan.prompt, {}, origin.letter if origin is not None else "")
    leaders: dict[str, str] = {}
    for variant in plan.variants:
        session = _column(state, variant, origin)
        session.title, session.titled = one_line(f"{variant.label}: {plan.prompt}", TITLE_LENGTH), True
        comparison.labels[session.id] = variant.label
        comparison.begun[session.id] = len(session.turns)
        leader = leaders.setdefault(variant.system, session.id)
        if share and leader != session.id:
            comparison.followers.setdefault(leader, []).append(session.id)
    for chat in comparison.labels:
        if not comparison.waits(chat):
            state.submit(chat, plan.prompt, typed=None)
    return comparison


def why_not_with(state: AppState, origin: SessionState) -> str:
    """Why columns cannot go on with what was said in a chat; empty where they can, or where nothing was."""
    if not origin.turns:
        return ""
    return origin.read_only or why_not(state, origin, len(origin.turns) - 1, "branch")


def _column(state: AppState, variant: Variant, origin: SessionState | None) -> SessionState:
    made = branch(state, origin, len(origin.turns) - 1, focus=False) if origin is not None else ""
    session = made if isinstance(made, SessionState) else state.new_session(focus=False)
    session.params = variant.params
    if origin is not None:
        set_system(session, variant.system)
    session.system = variant.system
    return session


def _frozen(turn: Turn) -> tuple[str, bool]:
    return turn.text, turn.status == "open"
