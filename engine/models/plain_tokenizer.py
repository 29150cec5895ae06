"""A tokenizer straight from the file of its Rust half, without transformers. Torch-free.

What a transformers tokenizer adds to that half (special tokens, the chat template) comes from ``facts_of``,
which is asked when transformers has read the model; ``PlainTokenizer`` is made of its answer at later starts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

SAMPLES = (
    "Hello, world! How much is 12345 * 67?\n\n  def f(x):\n\treturn x  # naïve\n",
    " leading space, 日本語テキスト, emoji 🙂👩‍👩‍👧 and <|im_end|></s>[INST] as text",
    "x",
    "",
)
ASKED = {"role": "user", "content": "What is the capital of France?"}
TOLD = {"role": "assistant", "content": " Paris. "}
SAID = {"role": "system", "content": "Be brief."}
CHATS = ([ASKED], [SAID, ASKED], [ASKED, TOLD], [SAID, ASKED, TOLD, ASKED])


class TokenizerFacts(msgspec.Struct, frozen=True):
    """What stands beside the Rust half.

    Attributes:
        template: chat template; None where the model has none.
        tokens: special tokens by name, such as ``eos_token``.
        split_special_tokens: whether control tokens in a text are read as characters unless told otherwise.
    """

    template: str | None
    tokens: dict[str, str]
    eos_token_id: int | None
    all_special_ids: list[int]
    split_special_tokens: bool


class PlainTokenizer:
    """As much of a transformers tokenizer as the engine uses; all else is asked of the whole one.

    Args:
        backend: the Rust half.
        whole: loads the transformers tokenizer of the same files, when something asks for it.
    """

    def __init__(self, backend: Tokenizer, facts: TokenizerFacts, whole: Callable[[], Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer = backend
        self.chat_template = facts.template
        self.eos_token_id = facts.eos_token_id
        self.all_special_ids = list(facts.all_special_ids)
        self.added_tokens_decoder: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self._facts = facts
        self._load = whole
        self._loaded: Any = None

    @property
    def whole(self) -> Any:
        """The transformers tokenizer."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def encode(
        self, text: str, add_special_tokens: bool = True, split_special_tokens: bool | None = None
    ) -> list[int]:
        """Token ids of a text."""
        split = self._facts.split_special_tokens if split_special_tokens is None else split_special_tokens
        self.backend_tokenizer.encode_special_tokens = split
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special ones included."""
        return str(self.backend_tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        chat_template: str | None = None,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
    ) -> str:
        """Text of a conversation; never its token ids.

        Raises:
            ValueError: there is no template, or ids were asked for.
            jinja2.TemplateError, and whatever expressions in a template raise.
        """
        from engine.models.plain_template import render  # jinja, which only chats need

        template = chat_template or self.chat_template
        if template is None or tokenize:
            raise ValueError("There is no chat template." if template is None else "Only text is written.")
        return render(template, conversation, add_generation_prompt, self._facts.tokens)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_load" not in vars(self):
            raise AttributeError(name)
        return getattr(self.whole, name)


def facts_of(tokenizer: Any) -> tuple[TokenizerFacts, str] | None:
    """What ``PlainTokenizer`` needs, and the text of its file; None where it would not do the same.

    Both are tried on samples, so that a tokenizer with ways of its own is found out.
    """
    from transformers import PreTrainedTokenizerFast

    from engine.chat import PLAIN_TEMPLATE
    from engine.models.plain_template import is_plain

    base = PreTrainedTokenizerFast
    own = ("encode", "decode", "_decode", "_encode_plus", "apply_chat_template", "get_chat_template")
    if not isinstance(tokenizer, base) or any(
        getattr(type(tokenizer), name) != getattr(base, name) for name in own
    ):
        return None
    template, tokens = tokenizer.chat_template, dict(tokenizer.special_tokens_map)
    if not all(isinstance(token, str) for token in tokens.values()):
        return None
    if template is not None and not (isinstance(template, str) and is_plain(template, tokens)):
        return None
    facts = TokenizerFacts(
        template=template,
        tokens=tokens,
        eos_token_id=tokenizer.eos_token_id,
        all_special_ids=list(tokenizer.all_special_ids),
        split_special_tokens=bool(tokenizer.split_special_tokens),
    )
    text = tokenizer.backend_tokenizer.to_str()
    plain = PlainTokenizer(Tokenizer.from_str(text), facts, lambda: tokenizer)
    same = _tried(plain, template or PLAIN_TEMPLATE) == _tried(tokenizer, template or PLAIN_TEMPLATE)
    return (facts, text) if same else None


def _tried(tokenizer: Any, template: str) -> list[Any]:
    """What a tokenizer makes of the samples."""
    found: list[Any] = [tokenizer.eos_token_id, list(tokenizer.all_special_ids)]
    found.append({id: (str(token), token.special) for id, token in tokenizer.added_tokens_decoder.items()})
    for text in (*SAMPLES, *dict.fromkeys(tokenizer.special_tokens_map.values())):
        found.append(list(tokenizer.encode(text)))
        for split in (False, True):
            ids = list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split))
            found += [ids, [tokenizer.decode([token]) for token in ids]]
    for chat in CHATS:
        for prompt in (False, True):
            try:
                text = tokenizer.apply_chat_template(
                    chat, chat_template=template, tokenize=False, add_generation_prompt=prompt
                )
            except Exception as error:  # of a template that refuses, and as it refuses
                text = f"{type(error).__name__}: {error}"
            found.append(text)
    return found
