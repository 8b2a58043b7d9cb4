"""Drawn simulated runs whose ends kept journals, and what becomes of these in other worlds."""

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
from tests.netsim.scenarios import fault, flows, scenario, small_site

from weft.core.compile.rules import compiled
from weft.mrc import journal
from weft.mrc.columns import Receiver, Sender
from weft.mrc.rules.replay import make_replay_rows, redo_all
from weft.netsim.run import prepare
from weft.netsim.setup import set_up
from weft.netsim.transports.journals import keep_journal
from weft.netsim.transports.mrc import Mrc
from weft.netsim.transports.sprayed import SprayedEndpoints
from weft.specs.transport import MrcSpec
from weft.transport.simulated import replay_simulated, stand_in

GBPS = 10**9


@dataclass(frozen=True)
class DrawnRun:
    """What the ends of a run were asked and decided."""

    params: np.ndarray
    paths: int
    begun: tuple[Sender, Receiver]
    """Their columns before anything was sent."""
    rows: np.ndarray
    counted: Counter[str]
    """Calls by name, and marks and trims besides."""


def drawn_run(seed: int, *, rows: int = 100_000, most_flows: int = 40, two_ways: bool = False) -> DrawnRun:
    """Return a run of flows over two T0s, most to one NIC; ports go down and links lose packets in some of them."""
    rng = random.Random(seed)
    wanted: list[tuple[int, int, int]] = []
    for _ in range(rng.randrange(2, most_flows)):
        source, target = rng.sample(range(16), 2) if rng.random() < 0.3 else (rng.randrange(1, 16), 0)
        known = [one[:2] for one in wanted]
        # Where data goes both ways over a queue pair its ends are asked in halves, which sockets are not.
        if (source, target) not in known and (two_ways or (target, source) not in known):
            wanted.append((source, target, rng.choice((3_000, 300_000, 2_000_000))))
    source, target, _ = wanted[0]
    faults = rng.sample(
        [
            fault("port-down", f"link0-p0-i{source}", 5, 60),
            fault("port-down", f"link0-p1-i{target}", 8, 40),
            fault("loss", "t0-p0-i1", 0, None, amount=0.05),
        ],
        rng.randrange(4),
    )
    site = small_site(gpus=32, planes=rng.choice((2, 4)), rate=rng.choice((50, 100)) * GBPS)
    setup = set_up(scenario(flows(*wanted), faults=tuple(faults), until_us=3000), site, seed)
    lately = f"{rng.choice((0, 5, 50))} us"
    spec = MrcSpec.model_validate({"reverse": {"heard_lately": lately}, "trimming": rng.random() < 0.8})
    _, simulator = prepare(setup, Mrc(spec))
    endpoints = simulator.endpoints
    assert isinstance(endpoints, SprayedEndpoints)
    begun = keep_journal(endpoints, rows)
    simulator.run()
    kept = journal.written(endpoints.host_state.journal).copy()
    calls = Counter(journal.CALL_NAMES[call] for call in kept[:, journal.CALL].tolist())
    came, refused = kept[kept[:, journal.CALL] == journal.RECEIVE], kept[kept[:, journal.CALL] == journal.REFUSE]
    calls["marked"] = int(came[:, journal.FIRST + 7].sum())
    calls["trimmed"] = int((refused[:, journal.FIRST + 2] > 0).sum())
    assert journal.lost(endpoints.host_state.journal) == 0 or len(kept) == rows
    return DrawnRun(endpoints.params, endpoints.paths_of_plane, begun, kept, calls)


def copied(run: DrawnRun) -> tuple[Sender, Receiver]:
    """Return the columns of a run at its beginning, to be changed."""
    sender, receiver = run.begun
    return Sender(*(column.copy() for column in sender)), Receiver(*(column.copy() for column in receiver))


def replayed(run: DrawnRun, *, fast: bool = False) -> tuple[int, int]:
    """Return how many calls come out equal, from the first: by the rules, and by an endpoint that is given packets."""
    redo = compiled(redo_all) if fast else redo_all
    by_rules = redo(*copied(run), journal.make_journal(1), run.rows, make_replay_rows())
    state = stand_in(run.params, copied(run), paths=run.paths, rows=len(run.rows) + 1000)
    return int(by_rules), replay_simulated(state, run.rows, fast=fast)
