"""Chat templates of the plain kind, run without transformers, which takes a second to import.

Hub templates are code of strangers: this environment gives them less than transformers' own does, and what
needs more (namespaces, dates, the generation tag) is left to that one.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import LoopControlExtension
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

INPUTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


def render(
    template: str,
    messages: Sequence[Mapping[str, str]],
    add_generation_prompt: bool,
    tokens: Mapping[str, str],
) -> str:
    """The text of a conversation; ``tokens`` are the tokenizer's special ones by name.

    Raises:
        jinja2.TemplateError, and whatever expressions in a template raise.
    """
    return _compiled(template).render(
        messages=[dict(message) for message in messages],
        tools=None,
        documents=None,
        add_generation_prompt=add_generation_prompt,
        **tokens,
    )


def is_plain(template: str, tokens: Mapping[str, str]) -> bool:
    """Whether a template uses nothing but what ``render`` gives it.

    Names that nobody defines are taken for undefined by either environment, but could be what only
    transformers defines; they make a template not plain.
    """
    environment = _environment()
    try:
        names = find_undeclared_variables(environment.parse(template))
        _compiled(template)
    except jinja2.TemplateError:
        return False
    return names <= INPUTS | tokens.keys() | environment.globals.keys()


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals = {"range": environment.globals["range"], "raise_exception": _refuse}
    return environment


@cache
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Unlike jinja's, with nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
