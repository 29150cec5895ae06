"""Small GGUF files made with the gguf library, quantised as real ones are."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

VOCABULARY = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ", "Ġa", "th", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "Ġ a"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 128, 128, 2, 4, 2


def write_gguf(
    path: Path,
    architecture: str = "llama",
    seed: int = 0,
    skip: str = "",
    parts: int = 0,
    pre: str = "",
    kinds: Mapping[str, str] = MappingProxyType({}),
    tied: bool = True,
) -> None:
    """A two-layer Llama, or another architecture of the family; matrices are Q4_1, norms float32.

    ``skip`` leaves a tensor out; ``parts`` claims to be one of so many files; ``pre`` names how text
    is split; ``kinds`` gives matrices another format, by a part of their name.
    """
    import gguf

    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in VOCABULARY])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(VOCABULARY.index("<|im_start|>"))
    writer.add_eos_token_id(VOCABULARY.index("<|im_end|>"))
    writer.add_chat_template(TEMPLATE)
    if pre:
        writer.add_tokenizer_pre(pre)
    if parts:
        writer.add_uint16("split.count", parts)

    kv = HIDDEN // HEADS * KV_HEADS
    tensors = {"token_embd.weight": (len(VOCABULARY), HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        tensors["output.weight"] = (len(VOCABULARY), HIDDEN)
    for layer in range(LAYERS):
        tensors |= {
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INNER),
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
        }
        if architecture == "qwen2":
            tensors |= {
                f"blk.{layer}.attn_{part}.bias": (size,) for part, size in zip("qkv", (HIDDEN, kv, kv))
            }
    for name, shape in tensors.items():
        if name == skip:
            continue
        values = random.normal(1.0 if len(shape) == 1 else 0.0, 0.2, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            named = next((kinds[part] for part in kinds if part in name), "Q4_1")
            kind = gguf.GGMLQuantizationType[named]
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
