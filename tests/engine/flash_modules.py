"""Stand-ins for flash-attn 2, flash-attn 3 and torch's paged varlen_attn: same parameters, but strict.

They compute in float64 and read nothing back to the host, so that a recorded call can be replayed. What the
real kernels refuse is refused here with an error, and what nobody may pass fails the test.
"""

from types import ModuleType

import torch

HALF = (torch.float16, torch.bfloat16)


def flash_attn_2(version="2.8.3.post2"):
    """The module ``flash_attn`` as far as the engine uses it."""
    module = ModuleType("flash_attn")
    module.__version__ = version
    module.flash_attn_with_kvcache = flash2_with_kvcache
    module.flash_attn_varlen_func = flash2_varlen_func
    return module


def flash_attn_3():
    """The module ``flash_attn_interface``."""
    module = ModuleType("flash_attn_interface")
    module.flash_attn_with_kvcache = flash3_with_kvcache
    return module


def flash2_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    assert k is None, "its own append writes padding into the null block"
    assert v is None
    assert rotary_cos is rotary_sin is cache_batch_idx is cache_leftpad is alibi_slopes is None
    assert softcap == 0.0
    assert not return_softmax_lse
    assert isinstance(num_splits, int)
    rows, tokens = q.shape[:2]
    assert tokens == 1, "more than one token a row goes through the packed call"
    check_pages(q, k_cache, v_cache, block_table, cache_seqlens, rows, page=256)
    check_mask(causal, window_size, softmax_scale)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=q.device)
    out = attention(
        q[:, 0], k_cache, v_cache, block_table, cache_seqlens, starts, softmax_scale, window_size[0]
    )
    return out[:, None]


def flash2_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    assert dropout_p == softcap == 0.0
    assert alibi_slopes is None
    assert not deterministic
    assert not return_attn_probs
    check_cumulative(cu_seqlens_q, cu_seqlens_k)
    lengths = cu_seqlens_k.diff()
    check_pages(q, k, v, block_table, lengths, len(lengths), page=256)
    check_mask(causal, window_size, softmax_scale)
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    assert max_seqlen_k == int(lengths.max())
    assert len(q) == int(cu_seqlens_q[-1])
    return attention(q, k, v, block_table, lengths, cu_seqlens_q, softmax_scale, window_size[0])


def flash3_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    assert k is v is qv is rotary_cos is rotary_sin is cache_batch_idx is cache_leftpad is None
    assert cu_seqlens_k_new is rotary_seqlens is q_descale is k_descale is v_descale is None
    assert attention_chunk == softcap == sm_margin == 0
    assert not return_softmax_lse
    check_mask(causal, window_size, softmax_scale)
    packed = cu_seqlens_q is not None
    rows = len(cu_seqlens_q) - 1 if packed else len(q)
    check_pages(q, k_cache, v_cache, page_table, cache_seqlens, rows, page=1)
    if packed:
        check_cumulative(cu_seqlens_q)
        assert q.dim() == 3
        assert max_seqlen_q == int(cu_seqlens_q.diff().max()), "must be given with cu_seqlens_q"
        return attention(
            q, k_cache, v_cache, page_table, cache_seqlens, cu_seqlens_q, softmax_scale, window_size[0]
        )
    assert q.dim() == 4
    assert q.shape[1] == 1
    starts = torch.arange(rows + 1, dtype=torch.int32, device=q.device)
    out = attention(
        q[:, 0], k_cache, v_cache, page_table, cache_seqlens, starts, softmax_scale, window_size[0]
    )
    return out[:, None]


def varlen_attn(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    assert num_splits == 1, "other split counts leave rows unwritten"
    assert return_aux is None
    check_cumulative(cu_seq_q, cu_seq_k)
    check_pages(query, key, value, block_table, seqused_k, len(cu_seq_q) - 1, page=256)
    assert window_size[1] == 0, "what makes it causal"
    assert isinstance(max_q, int)
    assert max_k == block_table.shape[1] * key.shape[1]
    if query.shape[1] != key.shape[2] and not enable_gqa:
        raise ValueError("Expect query and key/value to have the same number of heads")
    return attention(query, key, value, block_table, seqused_k, cu_seq_q, scale, window_size[0])


def attention(query, keys, values, tables, lengths, starts, scale, left):
    """Causal attention of packed tokens over pages, [T, heads, head dim]; ``left`` -1 sees all."""
    token = torch.arange(len(query), device=query.device)
    row = torch.searchsorted(starts[1:].contiguous(), token.int(), right=True)
    own = lengths[row] - (starts[1:][row] - token)  # the token's position
    group = query.shape[1] // keys.shape[2]
    near, far = (
        pages[tables].flatten(1, 2)[row].double().repeat_interleave(group, dim=2) for pages in (keys, values)
    )
    position = torch.arange(near.shape[1], device=query.device)
    hidden = position > own[:, None]
    if left >= 0:
        hidden = hidden | (position < own[:, None] - left)
    scores = torch.einsum("thd,tphd->thp", query.double(), near) * scale
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("thp,tphd->thd", weights, far).to(query.dtype)


def check_pages(query, keys, values, tables, lengths, rows, page):
    """What the kernels check, in their words where these are known."""
    heads, dim = query.shape[-2:]
    if query.dtype not in HALF:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if keys.shape[1] % page:
        raise RuntimeError(f"Paged KV cache block size must be divisible by {page}")
    if dim > 256 or dim % 8:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")
    assert keys.dtype == values.dtype == query.dtype
    assert keys.shape == values.shape
    assert keys.dim() == 4
    assert keys.shape[3] == dim
    assert heads % keys.shape[2] == 0
    for tensor in (query, keys, values, tables):
        assert tensor.stride(-1) == 1
    assert tables.dtype == torch.int32
    assert tables.dim() == 2
    assert len(tables) == rows
    assert lengths.dtype == torch.int32
    assert lengths.shape == (rows,)
    assert lengths.is_contiguous()


def check_cumulative(*tensors):
    for tensor in tensors:
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
        assert tensor.shape == tensors[0].shape


def check_mask(causal, window_size, scale):
    assert causal is True
    assert window_size == (-1, -1) or (window_size[0] >= 0 and window_size[1] == 0)
    assert scale is not None
