"""A step as bars: which stage works on which micro-batch when, for 1F1B, interleaved and zero-bubble pipelines.

Every stage does its operations in the order that its schedule prescribes, each as soon as what it needs is there. The
bars are for people to look at, and tests hold their end against the closed forms that the search uses.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["forward", "backward", "weights"]
_Key: TypeAlias = tuple[str, int, int, int]


@dataclass(frozen=True)
class Bar:
    """One stretch of work."""

    stage: int
    """Pipeline stage."""
    kind: Kind
    """Forward, backward, or the part of the backward pass that only the weights need."""
    micro: int
    """Micro-batch."""
    chunk: int
    """Model chunk of the stage."""
    start_s: float
    """When it begins."""
    end_s: float
    """When it ends."""


def timeline(
    stages: int, rounds: int, forward_s: float, backward_s: float, *, chunks: int = 1, weights_s: float = 0.0
) -> tuple[Bar, ...]:
    """Return the bars of a step.

    `forward_s` and `backward_s` are of a whole stage; with `chunks` above 1 they are split and interleaved, which needs
    `rounds` to be a multiple of `stages`. With `weights_s`, that much of each backward is done when nothing else waits.
    """
    assert chunks == 1 or rounds % stages == 0, "interleaving needs whole groups of micro-batches"
    orders = [_order(stage, stages, rounds, chunks) for stage in range(stages)]
    done: dict[_Key, float] = {}
    bars: list[Bar] = []
    clock = [0.0] * stages
    spare: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
    lengths = {"forward": forward_s / chunks, "backward": (backward_s - weights_s) / chunks}
    places = [0] * stages
    left = sum(len(order) for order in orders)
    while left:
        moved = False
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                kind, micro, chunk = order[places[stage]]
                ready = _ready(done, (kind, micro, chunk, stage), stages, chunks)
                if ready is None:
                    break
                # A stage that would wait for its next input computes gradients of weights that are due.
                while spare[stage] and clock[stage] + weights_s / chunks <= ready:
                    _do_weights(bars, spare, clock, stage, weights_s / chunks)
                start = max(clock[stage], ready)
                clock[stage] = start + lengths[kind]
                done[kind, micro, chunk, stage] = clock[stage]
                bars.append(Bar(stage, kind, micro, chunk, start, clock[stage]))
                if weights_s and kind == "backward":
                    spare[stage].append((micro, chunk))
                places[stage] += 1
                left -= 1
                moved = True
        assert moved, "a pipeline schedule that waits for itself"
    for stage in range(stages):
        while spare[stage]:
            _do_weights(bars, spare, clock, stage, weights_s / chunks)
    return tuple(bars)


def _do_weights(
    bars: list[Bar], spare: list[list[tuple[int, int]]], clock: list[float], stage: int, seconds: float
) -> None:
    micro, chunk = spare[stage].pop(0)
    bars.append(Bar(stage, "weights", micro, chunk, clock[stage], clock[stage] + seconds))
    clock[stage] += seconds


def _order(stage: int, stages: int, rounds: int, chunks: int) -> list[tuple[Kind, int, int]]:
    """Return what a stage does, in order: forwards to warm up, then one of each, then what is left."""
    total = rounds * chunks
    warm = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    warm = min(total, warm)
    forwards: list[tuple[Kind, int, int]] = [("forward", *_unit(k, stages, chunks)) for k in range(total)]
    backwards: list[tuple[Kind, int, int]] = []
    for k in range(total):
        micro, chunk = _unit(k, stages, chunks)
        backwards.append(("backward", micro, chunks - 1 - chunk))
    order = forwards[:warm]
    for k in range(total - warm):
        order += [forwards[warm + k], backwards[k]]
    return order + backwards[total - warm :]


def _unit(k: int, stages: int, chunks: int) -> tuple[int, int]:
    """Return micro-batch and chunk of the k-th unit of work: `stages` micro-batches go through one chunk at a time."""
    if chunks == 1:
        return k, 0
    group, rest = divmod(k, stages * chunks)
    return group * stages + rest % stages, rest // stages


def _ready(done: dict[_Key, float], unit: tuple[Kind, int, int, int], stages: int, chunks: int) -> float | None:
    """Return when the input of a unit of work has come, or none where it has not been made yet."""
    kind, micro, chunk, stage = unit
    before: _Key
    if kind == "forward":
        if stage == 0 and chunk == 0:
            return 0.0
        before = ("forward", micro, chunk, stage - 1) if stage else ("forward", micro, chunk - 1, stages - 1)
    elif stage == stages - 1 and chunk == chunks - 1:
        before = ("forward", micro, chunk, stage)
    else:
        before = ("backward", micro, chunk, stage + 1) if stage < stages - 1 else ("backward", micro, chunk + 1, 0)
    return done.get(before)
