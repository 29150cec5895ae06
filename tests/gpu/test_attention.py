"""Every attention back end that this machine has, against a float64 reference computed on the card."""

from collections.abc import Callable

import pytest

from engine.attention.base import AttentionBackend
from engine.attention.flash import FLASH2_PAGE, FlashAttention2, FlashAttention3
from engine.attention.needs import AttentionNeeds
from engine.attention.probe import probe
from engine.attention.sdpa import SdpaAttention
from engine.attention.triton import TritonAttention
from engine.attention.varlen import VARLEN_PAGE, VarlenAttention
from tests.attention_reference import LAYER, Heads, PagedCase, paged_case
from tests.gpu.results import write

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.xdist_group("attention"),
]

BOUND = 5e-3  # norm of the difference over the norm of the reference, bfloat16 in and out
LONGEST = 16384
BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "triton": TritonAttention,
    "flash-attn-2": FlashAttention2,
    "flash-attn-3": FlashAttention3,
    "varlen": VarlenAttention,
    "sdpa": SdpaAttention,
}
PAGES = {"flash-attn-2": FLASH2_PAGE, "varlen": VARLEN_PAGE}
SHAPES = [Heads(12, 2, 128), Heads(28, 4, 128), Heads(9, 3, 64), Heads(8, 8, 256)]
BLOCK_SIZES = [16, 256]
SIXTY_FOUR = [LONGEST, *(1 + 37 * row for row in range(63))]
BATCHES = {
    "one token": [1],
    "longest": [LONGEST],
    "beside block ends": [1, 15, 16, 17, 255, 256, 257, 512, 4097, LONGEST - 1, LONGEST],
    "64 sequences": SIXTY_FOUR,
}


@pytest.fixture(params=BACKENDS)
def name(request) -> str:
    return request.param


@pytest.fixture
def backend(name) -> AttentionBackend:
    try:
        return BACKENDS[name]()
    except ImportError as error:
        pytest.skip(str(error))


def skip_what_it_cannot(name: str, backend: AttentionBackend, heads: Heads, block_size: int) -> None:
    """Leave out what a back end does not claim, or what its build here was made without."""
    if block_size % PAGES.get(name, 1):
        pytest.skip(f"{name} takes block sizes that are multiples of {PAGES[name]}")
    if name != "sdpa":  # which is trusted without a trial
        needs = AttentionNeeds(heads.query, heads.kv, heads.dim, torch.bfloat16)
        reason = probe(backend, needs, block_size, torch.device("cuda", 0))
        if reason:
            # A build may lack a head dimension, and then leaves rows unwritten: the trial is what refuses it.
            assert name.startswith("flash"), reason
            pytest.skip(f"the trial refuses {name} with head dim {heads.dim}: {reason}")


def checked(case: PagedCase, out: torch.Tensor, window: int | None = None) -> float:
    """The error of an output whose memory was NaN before, and whose every row must be written."""
    real = len(case.slots)
    assert torch.isfinite(out[:real]).all(), "rows were left unwritten"
    return case.error(out, window)


def record(test: str, name: str, heads: Heads, block_size: int, errors: dict[str, float]) -> None:
    rounded = {what: float(f"{error:.3g}") for what, error in errors.items()}
    write("h200-attention-errors", {f"{test}, {name}, heads {heads}, block size {block_size}": rounded})


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_decode_and_its_replays_equal_the_reference(name, backend, heads, block_size):
    skip_what_it_cannot(name, backend, heads, block_size)
    draw = {"block_size": block_size, "dtype": torch.bfloat16, "device": "cuda"}
    errors = {}
    for batch, lengths in BATCHES.items():
        case = paged_case(heads, lengths, **draw)
        errors[batch] = checked(case, case.attend(backend))
    case = paged_case(
        heads, SIXTY_FOUR[:32], static=True, padded=4, width=LONGEST // block_size + 1, seed=1, **draw
    )
    out, replay = captured(case, backend)
    for shorter in (0, 1, 255, 700, 3, 0):
        case.move_to([max(1, length - shorter) for length in SIXTY_FOUR[:32]])
        out.fill_(torch.nan)
        replay()
        errors[f"replay, {shorter} tokens shorter"] = checked(case, out)
    record("decode", name, heads, block_size, errors)
    assert max(errors.values()) < BOUND, errors


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_prefill_over_cached_prefixes_equals_the_reference(name, backend, heads, block_size):
    skip_what_it_cannot(name, backend, heads, block_size)
    draw = {"block_size": block_size, "dtype": torch.bfloat16, "device": "cuda"}
    errors = {}
    for what, contexts, new in (
        ("from nothing", [1, 17, 256, 700], [1, 17, 256, 700]),
        ("behind prefixes", [257, 2048, 4100, 40], [1, 512, 36, 24]),
        ("the last token alone", [16, 257, 512], [1, 1, 1]),
    ):
        case = paged_case(heads, contexts, new, **draw)
        errors[what] = checked(case, case.attend(backend))
    record("prefill", name, heads, block_size, errors)
    assert max(errors.values()) < BOUND, errors


@pytest.mark.parametrize("window", [1, 100, 1000])
def test_a_window_sees_that_many_latest_tokens(name, backend, window):
    heads, block_size = Heads(12, 2, 128), 256
    skip_what_it_cannot(name, backend, heads, block_size)
    draw = {"block_size": block_size, "dtype": torch.bfloat16, "device": "cuda"}
    decode = paged_case(heads, BATCHES["beside block ends"], **draw)
    prefill = paged_case(heads, [257, 2048, 300], [1, 512, 300], **draw)
    errors = {
        "decode": checked(decode, decode.attend(backend, window), window),
        "prefill": checked(prefill, prefill.attend(backend, window), window),
    }
    record(f"window {window}", name, heads, block_size, errors)
    assert max(errors.values()) < BOUND, errors


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_a_padded_replay_changes_the_slots_of_its_real_rows_only(name, backend, block_size):
    heads = Heads(12, 2, 128)
    skip_what_it_cannot(name, backend, heads, block_size)
    draw = {"block_size": block_size, "dtype": torch.bfloat16, "device": "cuda"}
    case = paged_case(heads, [1, 300, 4096], padded=5, static=True, width=4096 // block_size + 1, **draw)
    _, replay = captured(case, backend)
    case.cache.pages[:, :, 1:] = 77.0
    before = case.cache.pages.clone()
    replay()
    torch.cuda.synchronize()
    changed = (case.cache.pages != before).any(-1).any(-1)
    assert not changed[1 - LAYER].any()
    assert changed[LAYER].any(0).flatten().nonzero().flatten().tolist() == sorted(case.slots)
    assert not case.cache.pages[:, :, 0].any()


@pytest.mark.parametrize(
    ("dtype", "heads", "block_size"),
    [
        (torch.float16, Heads(12, 2, 128), 4),
        (torch.float16, Heads(32, 8, 96), 16),
        (torch.float32, Heads(12, 2, 128), 48),
        (torch.float32, Heads(8, 8, 256), 1),
        (torch.float32, Heads(71, 1, 64), 16),
        (torch.bfloat16, Heads(4, 4, 8), 1),
    ],
    ids=str,
)
def test_the_triton_kernel_takes_other_dtypes_and_any_block_size(dtype, heads, block_size):
    backend = triton_back_end()
    case = paged_case(heads, [1, 17, 255, 256, 257, 3000], block_size=block_size, dtype=dtype, device="cuda")
    error = checked(case, case.attend(backend))
    record(f"decode, {dtype}".replace("torch.", ""), "triton", heads, block_size, {"decode": error})
    assert error < {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: BOUND}[dtype]


def test_what_lies_in_unused_slots_never_reaches_the_triton_kernel():
    case = paged_case(
        Heads(12, 2, 128),
        [1, 17, 255, 256, 257, 3000],
        dtype=torch.bfloat16,
        device="cuda",
        padded=2,
        stale=float("nan"),
    )
    for new in (case.query, case.key, case.value):
        new[6:] = torch.nan
    out = case.attend(triton_back_end())
    assert torch.isfinite(out).all()
    assert case.error(out) < BOUND


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_the_triton_kernel_gives_a_sequence_the_same_bits_alone_and_in_any_batch(block_size):
    backend, heads = triton_back_end(), Heads(28, 4, 128)
    draw = {"block_size": block_size, "dtype": torch.bfloat16, "device": "cuda"}
    case = paged_case(heads, SIXTY_FOUR, **draw)
    together = case.attend(backend)
    again = case.attend(backend)
    assert torch.equal(together, again)
    for row in (0, 1, 7, 40, 63):
        assert torch.equal(case.only(row).attend(backend)[0], together[row])


def captured(case: PagedCase, backend: AttentionBackend) -> tuple[torch.Tensor, Callable[[], None]]:
    """A graph of one decode launch, warmed up beside it: its output, and what replays it."""

    def attend() -> torch.Tensor:
        return backend.attend(
            LAYER, case.query, case.key, case.value, case.batch, case.cache, scale=case.scale, window=None
        )

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attend()
        attend()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = attend()
    return out, graph.replay


def triton_back_end() -> TritonAttention:
    pytest.importorskip("triton")
    return TritonAttention()
