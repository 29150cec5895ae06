"""Conversations as lists of messages, the form of chat APIs: ``[{"role": ..., "content": ...}, ...]``."""

from typing import Any

from engine.errors import EngineError
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import SessionState, Turn

TEXT_PARTS = ("text", "input_text", "output_text")
SYSTEM_ROLES = ("system", "developer")
CALLS = ("tool_calls", "function_call")
ROLES = "There are system, user and assistant."


class BadMessages(EngineError):
    """A list of messages that a chat cannot hold."""

    title = "not imported"


def is_message_list(value: Any) -> bool:
    """Whether this JSON value means a list of messages, right or wrong."""
    return isinstance(value, list) or (
        isinstance(value, dict) and "messages" in value and "format" not in value
    )


def chat_of_messages(value: Any) -> SessionState:
    """A chat of these messages. System messages come first; neighbours of one role become one turn, with an
    empty line between them; a prompt at the end, which has no answer, becomes the draft.

    Raises:
        BadMessages: naming the message and what a chat cannot hold of it.
    """
    messages = value["messages"] if isinstance(value, dict) else value
    if not isinstance(messages, list) or not messages:
        raise BadMessages("There are no messages in it.")
    session = SessionState(id="", letter="", color=0)
    system: list[str] = []
    for number, message in enumerate(messages, 1):
        role, text = _read(message, number)
        if role in SYSTEM_ROLES:
            if session.turns:
                raise BadMessages(
                    f"Message {number} is a {role} message after the first turn.",
                    "A chat has one system prompt, at its start: move the message there.",
                )
            system.append(text)
        elif session.turns and session.turns[-1].role == role:
            session.turns[-1].text += f"\n\n{text}"
        elif role == "assistant" and not session.turns:
            raise BadMessages(
                f"Message {number} is the assistant's, and nothing was asked before it.",
                "Put a user message in front of it.",
            )
        else:
            session.turns.append(Turn("user" if role == "user" else "assistant", text))
    session.system = "\n\n".join(system)
    if session.turns and session.turns[-1].role == "user":
        session.draft = session.turns.pop().text
    if not session.turns and not session.draft:
        raise BadMessages("It has a system message only, and no conversation.")
    return session


def _read(message: Any, number: int) -> tuple[str, str]:
    """Role and sanitized text of one message."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadMessages(f'Message {number} is no object with a "role".')
    role = message["role"]
    if role in ("tool", "function"):
        raise BadMessages(f"Message {number} is the result of a tool; chats here are text only.")
    if role not in (*SYSTEM_ROLES, "user", "assistant"):
        raise BadMessages(f"Message {number} has the role {one_line(role, 40)!r}.", ROLES)
    if any(message.get(call) for call in CALLS):
        raise BadMessages(f"Message {number} calls a tool; chats here are text only.")
    content = message.get("content")
    if isinstance(content, str):
        return role, sanitize(content)
    if not isinstance(content, list):
        raise BadMessages(f'The "content" of message {number} is neither text nor a list of parts.')
    return role, sanitize("".join(_part(part, number) for part in content))


def _part(part: Any, number: int) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    shown = one_line(str(kind), 40) if kind is not None else "something unknown"
    raise BadMessages(f"Message {number} has a part that is {shown}; chats here are text only.")
