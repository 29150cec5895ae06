"""``bench tiles``: tunes the kernels of decode steps to this card, and keeps what is fastest."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import msgspec

from engine.bench.measure import rounded
from engine.bench.session import Need, OnProgress, Session, over_models
from engine.config import EngineConfig
from engine.device import find_device
from engine.errors import ConfigError
from engine.kernels.tile_cache import keep, tile_file
from engine.kernels.tiles import ROW_CLASSES, key_of
from engine.models.decode_path import unfit_path
from engine.models.decoder import FusedDecoder
from engine.models.tune import Tuned, tune
from engine.records import Progress

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TilesPlan:
    """For which batch sizes to tune; a tile is used for all sizes down to the next one of ``ROW_CLASSES``."""

    rows: tuple[int, ...] = ROW_CLASSES

    def __post_init__(self) -> None:
        if not self.rows or not set(self.rows) <= set(ROW_CLASSES):
            raise ConfigError(
                f"--rows takes {', '.join(map(str, ROW_CLASSES))}; "
                f"it is {', '.join(map(str, self.rows)) or 'empty'}."
            )


def bench_tiles(configs: Sequence[EngineConfig], plan: TilesPlan, progress: OnProgress) -> dict[str, Any]:
    """A row a product and batch size, in the order in which they were tuned.

    What is found is kept after each batch size. A row has

    * ``product``, ``outs``, ``ins``, ``rows``: a matrix of the decoder and how many rows it is multiplied by;
    * ``before``, ``after``: tiles, as the fields of ``Tile``; ``before_ms``, ``after_ms``: milliseconds of a
      whole replayed decode step with each, the products of earlier rows having their new tiles;
    * ``tried``: other tiles that ran; ``left_out``: those that did not, or gave something else, and why.

    Returns:
        ``rows``, ``skipped`` (models whose steps have no such kernels), ``notes`` (where the tiles are kept,
        or why they are not) and ``engines``.

    Raises:
        ConfigError: the device has no such kernels.
        DeviceError: the card failed.
    """
    check_device(configs[0])
    # Steps are captured anew with each tile; the engine's own graphs would only take time.
    bare = [msgspec.structs.replace(config, mode="auto", graph_sizes=()) for config in configs]
    return over_models(bare, Need(1, 1), progress, lambda session: _measure(session, plan, progress))


def check_device(config: EngineConfig) -> None:
    """See, before anything is loaded, that there are kernels to tune.

    Raises:
        ConfigError: there are none for this device.
    """
    device = find_device(config.device).device.type
    if device != "cuda":
        raise ConfigError(
            f"There is nothing to tune: decode steps on {device} have no kernels that are cut into tiles.",
            "Run it on a machine with a CUDA device.",
        )


def _measure(session: Session, plan: TilesPlan, progress: OnProgress) -> dict[str, list[Row]]:
    runner = session.engine.runner
    decoder = runner.model
    if not isinstance(decoder, FusedDecoder):
        return _nothing(session, f"the model runs by {session.engine.status().model_impl}")
    if decoder.path is None:
        return _nothing(session, unfit_path(decoder))
    card = decoder.path.card
    rows: list[Row] = []
    notes: list[str] = []
    for size in plan.rows:

        def told(event: Progress) -> None:
            progress(Progress(event.stage, f"{session.shape}, {event.detail}", event.fraction))

        found = tune(decoder, runner.cache, (size,), told)
        reason = keep(card, {key_of(shape): tuned.after for shape, tuned in found.items()})
        notes.append(reason or f"kept in {tile_file(card)}")
        rows += [_row(session.shape, tuned) for tuned in found.values()]
    return {
        "rows": rows,
        "skipped": [],
        "notes": [{"shape": session.shape, "text": text} for text in dict.fromkeys(notes)],
    }


def _nothing(session: Session, reason: str) -> dict[str, list[Row]]:
    skipped = {"shape": session.shape, "reason": f"there is nothing to tune: {reason}"}
    return {"rows": [], "skipped": [skipped], "notes": []}


def _row(name: str, tuned: Tuned) -> Row:
    shape = tuned.shape
    return {
        "shape": name,
        "product": shape.kind,
        "outs": shape.outs,
        "ins": shape.ins,
        "rows": shape.rows,
        "before": list(astuple(tuned.before)),
        "before_ms": rounded(tuned.before_ms),
        "after": list(astuple(tuned.after)),
        "after_ms": rounded(tuned.after_ms),
        "tried": tuned.tried,
        "left_out": [{"tile": list(astuple(tile)), "reason": reason} for tile, reason in tuned.left_out],
    }
