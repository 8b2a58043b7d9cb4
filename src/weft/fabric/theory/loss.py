"""What a lost packet costs: go-back-N against selective repeat, and who else suffers when loss is forbidden.

Sources: Bertsekas and Gallager, Data Networks, 2nd edition, section 2.4 (efficiency of go-back-N and of selective
repeat with independent losses); Guo et al., "RDMA over Commodity Ethernet at Scale", SIGCOMM 2016 (pause frames and
their victims). Windows are in packets: what is sent in one round trip at full rate.
"""

from collections import deque

import numpy as np

from weft.fabric.theory.estimate import Estimate, mean, mean_share


def go_back_n(loss: float, window: float) -> float:
    """Return the share of sent packets that count with go-back-N: (1 - p) / (1 - p + p W); a loss wastes W of them."""
    return (1 - loss) / (1 - loss + loss * window)


def selective_repeat(loss: float) -> float:
    """Return the share of sent packets that count with selective repeat: 1 - p; a loss wastes itself."""
    return 1 - loss


def paused_share(senders: int, links: int) -> float:
    """Return the share of links, and so of bystanders, that an incast of m single-path flows pauses: 1 - (1-1/u)^m.

    A bystander to the same T0 suffers where its own link is one of those that the incast's flows were hashed to.
    """
    return 1 - (1 - 1 / links) ** senders


def simulated_go_back_n(
    generator: np.random.Generator, loss: float, window: int, replicas: int, packets: int
) -> Estimate:
    """Estimate go-back-N's efficiency: a sender at full rate hears of a loss `window` packets after sending it."""
    shares: list[float] = []
    for _ in range(replicas):
        lost = (generator.random(packets) < loss).tolist()
        delivered = 0
        rewind_at = -1
        for slot, gone in enumerate(lost):
            if slot == rewind_at:
                rewind_at = -1
            if rewind_at >= 0:
                continue
            if gone:
                rewind_at = slot + window
            else:
                delivered += 1
        shares.append(delivered / packets)
    return mean(np.array(shares))


def simulated_selective_repeat(
    generator: np.random.Generator, loss: float, window: int, replicas: int, packets: int
) -> Estimate:
    """Estimate selective repeat's efficiency: only what was lost is sent again, `window` packets later."""
    shares: list[float] = []
    for _ in range(replicas):
        lost = (generator.random(packets) < loss).tolist()
        again: deque[tuple[int, int]] = deque()
        delivered: set[int] = set()
        fresh = 0
        for slot, gone in enumerate(lost):
            if again and again[0][0] <= slot:
                number = again.popleft()[1]
            else:
                number, fresh = fresh, fresh + 1
            if gone:
                again.append((slot + window, number))
            else:
                delivered.add(number)
        shares.append(len(delivered) / packets)
    return mean(np.array(shares))


def simulated_paused_share(
    generator: np.random.Generator, senders: int, links: int, bystanders: int, trials: int
) -> Estimate:
    """Estimate the share of bystanders whose own random link is paused by an incast of `senders` single-path flows."""
    shares = np.empty(trials)
    for trial in range(trials):
        paused = np.zeros(links, dtype=np.bool_)
        paused[generator.integers(0, links, senders)] = True
        shares[trial] = paused[generator.integers(0, links, bystanders)].mean()
    return mean_share(shares)
