"""Campaigns over seeds, in as many processes as are asked for; the same bytes from one as from many."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path

from weft.campaign.arrivals import FleetFault
from weft.campaign.compression import WHOLE_UNITS, SeatsExhaustedError
from weft.campaign.demand import demand_of
from weft.campaign.fleet import Fleet
from weft.campaign.operation import FleetOperation, Watch
from weft.campaign.outcome import Document, outcome_of
from weft.campaign.policies import policy_of
from weft.cluster.records.snapshot import SchedulingPolicy
from weft.core.seeds import Seed
from weft.specs.campaign import CampaignSpec
from weft.specs.site import SiteSpec

_NEVER_FOLDED = 10**9


@dataclass(frozen=True)
class Question:
    """One campaign, but for its seed: what is sent to a process."""

    site: SiteSpec
    spec: CampaignSpec
    folder: Path | None = None
    """Where the scenario's file lies, and its trace."""
    script: tuple[FleetFault, ...] | None = None
    """Faults that take the place of drawn ones."""


def policy_in(spec: CampaignSpec) -> SchedulingPolicy:
    """Return the rules of a campaign: a policy's, with spares kept by what teams may have, and no lane beside gangs."""
    found, _ = policy_of(spec.policy)
    idle = max(1, found.test_at_once) if spec.screening.mode == "idle" else found.test_at_once
    every_ms = spec.screening.every // 10**9 if spec.screening.mode == "idle" else found.test_every_ms
    return replace(
        found, spare_nodes=0, lane_nodes=0, lane_share=0.0, power=False, test_at_once=idle, test_every_ms=every_ms
    )


def operated(question: Question, seed: int, watch: Watch | None = None) -> FleetOperation:
    """Run one campaign and return it."""
    fleet = Fleet(question.site, question.spec)
    demand, policy = demand_of(fleet, question.folder), policy_in(question.spec)
    for whole in (WHOLE_UNITS, _NEVER_FOLDED):
        world = FleetOperation(fleet, demand, policy, Seed(seed), whole_units=whole, script=question.script)
        try:
            world.run(watch)
        except SeatsExhaustedError:
            continue
        return world
    raise AssertionError("a fleet that is not folded has a seat for every unit")


def answered(question: Question, seed: int) -> Document:
    """Run one campaign and return what it says."""
    return outcome_of(operated(question, seed))


def outcomes(
    question: Question, seeds: Sequence[int], processes: int, done: Callable[[], None] | None = None
) -> list[Document]:  # fmt: skip
    """Return what a campaign says for each seed, in their order."""
    found: list[Document] = []
    with _mapped(min(processes, len(seeds))) as mapped:
        for each in mapped(question, seeds):
            found.append(each)
            if done is not None:
                done()
    return found


Mapped = Callable[[Question, Sequence[int]], Iterator[Document]]


@contextmanager
def _mapped(processes: int) -> Iterator[Mapped]:
    if processes <= 1:
        yield lambda question, seeds: (answered(question, seed) for seed in seeds)
        return
    before = set(active_children())
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_leave_signals_to_the_parent)
    try:
        yield lambda question, seeds: pool.map(answered, [question] * len(seeds), seeds)
    except BaseException:
        # Ctrl-C: a campaign of a minute that runs in a process is not waited for.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_signals_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
