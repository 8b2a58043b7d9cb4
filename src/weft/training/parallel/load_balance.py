"""Who gets how much work: decisions from measured costs, the same on every rank that is given the same figures.

Pipeline stages are cut so that the slowest one is as quick as it can be; micro-batches of a step move away from slow
data-parallel replicas. In exact mode neither changes a bit of the sum over micro-batches, since that is shaped by their
indices alone. Pure: no torch, no clock; the measuring is `run`'s and `pipeline`'s work.
"""

from collections.abc import Sequence

from weft.core.errors import UsageError

_WORTH_MOVING = 0.15


def cut(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Return `stages` runs of consecutive layers, none empty, whose largest summed cost is the least possible.

    Among equal ones the earlier stages are the lighter, since they hold more activations in flight.
    """
    count = len(costs)
    if not 1 <= stages <= count:
        raise UsageError(f"{count} layers cannot be cut into {stages} stages; write 1 to {count}")
    ends = [0.0]
    for cost in costs:
        ends.append(ends[-1] + cost)
    # best[k][n]: the least largest cost of the last n layers in k stages; built from the right for light early stages.
    best = [ends[count] - ends[start] for start in range(count + 1)]
    choices: list[list[int]] = []
    for stage in range(2, stages + 1):
        row, choice = [float("inf")] * (count + 1), [count] * (count + 1)
        for start in range(count - stage + 1):
            for split in range(start + 1, count - stage + 2):
                largest = max(ends[split] - ends[start], best[split])
                if largest < row[start]:
                    row[start], choice[start] = largest, split
        best = row
        choices.append(choice)
    cuts: list[range] = []
    start = 0
    for choice in reversed(choices):
        cuts.append(range(start, choice[start]))
        start = choice[start]
    return (*cuts, range(start, count))


def assign(speeds: Sequence[float], count: int) -> tuple[range, ...]:
    """Return the run of micro-batch indices of each replica so that the slowest ends as early as it can.

    `speeds` are micro-batches a second. Equal speeds give equal shares, the earlier replicas one more where it does not
    divide; every replica gets at least one.
    """
    replicas = len(speeds)
    if count < replicas:
        raise UsageError(f"{count} micro-batches are fewer than {replicas} data-parallel ranks; use at most {count}")
    shares = [1] * replicas
    for _ in range(count - replicas):
        first = min(range(replicas), key=lambda replica: ((shares[replica] + 1) / speeds[replica], replica))
        shares[first] += 1
    runs: list[range] = []
    start = 0
    for share in shares:
        runs.append(range(start, start + share))
        start += share
    return tuple(runs)


def reassign(current: Sequence[range], seconds: Sequence[float]) -> tuple[range, ...]:
    """Return better runs for replicas that took `seconds` for their `current` ones, or the same where it gains little.

    The shares change only when the slowest replica would end at least 15 % earlier: measurements are noisy, and a
    change costs nothing in bits but a new schedule for pipelines.
    """
    if min(seconds) <= 0:
        return tuple(current)
    count = sum(len(run) for run in current)
    speeds = [len(run) / spent for run, spent in zip(current, seconds, strict=True)]
    wanted = assign(speeds, count)
    before = max(seconds)
    after = max(len(run) / speed for run, speed in zip(wanted, speeds, strict=True))
    return wanted if after < before * (1 - _WORTH_MOVING) else tuple(current)
