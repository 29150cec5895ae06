"""Models with random weights: configuration, weights drawn on the device, and a tokenizer built in code.

Nothing is read from disk or network. A decode step reads the same bytes and runs the same kernels whatever
the weights are, so that speed is real; the text is noise.
"""

import contextlib
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.shapes import Shape

STD = 0.02  # what these architectures are initialised with
SEED = 20240607

END, START, TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END, START, TURN)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SYLLABLES = tuple(consonant + vowel for consonant in "bdfghjklmnprstvwz" for vowel in "aeiou")


def random_config(shape: Shape) -> Any:
    """The transformers configuration of a shape; the end token is the tokenizer's."""
    from transformers import AutoConfig

    return AutoConfig.for_model(
        shape.model_type,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=shape.max_positions,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta, **shape.rope},
        bos_token_id=None,
        eos_token_id=shape.vocab - 1,
        pad_token_id=None,
    )


def random_module(
    kind: Any, config: Any, *, dtype: torch.dtype, device: torch.device, attention: str
) -> nn.Module:
    """A transformers model made on the device in its final dtype, in eval mode and without gradients.

    A weight depends on its name, its shape, the dtype and the kind of device only, so that other layers
    or another order change nothing. Norms are 1, everything else is normal with a deviation of ``STD``.

    Args:
        kind: transformers model class.
        attention: name registered with transformers' ``AttentionInterface``.
    """
    with device, _no_init():
        model = kind._from_config(config, attn_implementation=attention, dtype=dtype)
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # a tied one comes once
            _fill(name, parameter)
    module: nn.Module = model.eval().requires_grad_(False)
    return module


def random_tokenizer(shape: Shape) -> Any:
    """A byte-level transformers tokenizer in which every id of the vocabulary stands for some text.

    The first 256 ids are the bytes, which is all that encoding gives; the last three are control tokens;
    those between are made-up words, so that what a random model writes can be read aloud.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = shape.vocab - len(tokens) - len(SPECIAL)
    tokens += [f"Ġ{_word(number)}" for number in range(words)]
    vocabulary = {token: id for id, token in enumerate([*tokens, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN,
        pad_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=shape.max_positions,
    )


def _word(number: int) -> str:
    """A different word of at least two syllables for each number."""
    syllables: list[str] = []
    while number or len(syllables) < 2:
        number, which = divmod(number, len(SYLLABLES))
        syllables.append(SYLLABLES[which])
    return "".join(syllables)


def _fill(name: str, parameter: Tensor) -> None:
    if name.endswith("norm.weight"):
        parameter.fill_(1.0)
        return
    generator = torch.Generator(parameter.device).manual_seed(SEED ^ zlib.crc32(name.encode()))
    parameter.normal_(0.0, STD, generator=generator)


def _no_init() -> contextlib.AbstractContextManager[Any]:
    """Keeps torch and transformers from drawing weights that are drawn again at once."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = no_init_weights()
    return context
