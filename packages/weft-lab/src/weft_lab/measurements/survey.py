"""The survey of a lab: a prober at every host, all at once, and a verdict on every link.

What Clustermapper does for a data centre (arXiv 2605.04333): links are probed by source routes from the hosts, to the
first switch and back and to those above it and back; no switch takes part. The verdicts are
`fabric.fault_localization`'s.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from weft.core.errors import FailedError
from weft.fabric.addressing import srv6
from weft.fabric.fault_localization import (
    Health,
    LinkVerdict,
    PathObservation,
    ProbePath,
    blame,
    denials,
    parts_to_blame,
    probe_paths,
)
from weft_lab.network.lab import Lab

PROBES = 1_000
"""Probes on every path: with so many, a link that loses 1 % each way is found almost always."""
PATIENCE_S = 0.5
LONGEST_S = 300.0


@dataclass(frozen=True)
class Survey:
    """What a round of probes has found."""

    lab: Lab
    paths: tuple[ProbePath, ...]
    observations: tuple[PathObservation, ...]
    """What came of each path."""
    round_trips_us: tuple[float | None, ...]
    """Median round trip of each path; none where nothing came back."""
    verdicts: tuple[LinkVerdict, ...]
    """One for every link."""

    @property
    def sick(self) -> list[LinkVerdict]:
        """Return the verdicts on links that are dead or lossy."""
        return [one for one in self.verdicts if one.health in (Health.DEAD, Health.LOSSY)]

    @property
    def parts(self) -> list[str]:
        """Return the switches and NICs that are dead altogether."""
        return parts_to_blame(self.lab.plan.topology, self.verdicts)

    def denials(self) -> dict[tuple[int, int], list[int]]:
        """Return the EVs that each pair of hosts had better not use; a pair with no other way keeps all of its EVs."""
        addressing = self.lab.plan.addressing
        found = denials(addressing.shape, [one.link for one in self.sick])
        return {pair: evs for pair, evs in found.items() if len(evs) < addressing.evs.count}

    def as_json(self) -> dict[str, Any]:
        """Return the survey for programs."""
        topology = self.lab.plan.topology
        return {
            "name": self.lab.record.spec.name,
            "probes": sum(one.sent for one in self.observations),
            "came_back": sum(one.came for one in self.observations),
            "links": [
                {
                    "link": topology.name_of_link(one.link),
                    "health": one.health.value,
                    "loss": one.loss,
                    "loss_low": one.low,
                    "loss_high": one.high,
                    "probes": one.probes,
                }
                for one in self.verdicts
            ],
            "parts": self.parts,
            "denied": [
                {"source": source, "destination": destination, "evs": evs}
                for (source, destination), evs in self.denials().items()
            ],
        }


def survey(lab: Lab, probes: int = PROBES, size: int = 128) -> Survey:
    """Probe every link of a lab from every host and judge what came back."""
    paths = probe_paths(lab.plan.topology, lab.plan.addressing.plan)
    by_host = [[path for path in paths if path.source == nic] for nic in range(lab.plan.topology.nics)]
    with ExitStack() as running:
        agents: list[subprocess.Popen[str]] = []
        for nic, own in enumerate(by_host):
            argv = (*lab.inside(nic), sys.executable, "-m", "weft_lab.agents.prober")
            agent = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            running.enter_context(agent)
            running.callback(agent.kill)
            agents.append(agent)
            carriers = [srv6.to_text(path.carrier) for path in own]
            asked = {"carriers": carriers, "size": size, "patience_s": PATIENCE_S, "probes": probes}
            assert agent.stdin is not None
            agent.stdin.write(json.dumps(asked))
            agent.stdin.close()
            agent.stdin = None
        answers = [_answer(lab, nic, agent) for nic, agent in enumerate(agents)]
    ordered = [path for own in by_host for path in own]
    rows = [row for answer in answers for row in answer]
    seen = tuple(PathObservation(path.links, row["sent"], row["came"]) for path, row in zip(ordered, rows, strict=True))
    trips = tuple(row["round_trip_ns"][0] / 1000 if row["round_trip_ns"] else None for row in rows)
    verdicts = tuple(blame(seen, len(lab.plan.topology.links)))
    return Survey(lab, tuple(ordered), seen, trips, verdicts)


def _answer(lab: Lab, nic: int, agent: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    name = lab.plan.topology.name_of_node(nic)
    try:
        out, err = agent.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        raise FailedError(f"the prober at {name} took longer than {LONGEST_S:g} s and was given up") from None
    if agent.returncode:
        reason = err.strip().splitlines()[-1] if err.strip() else f"status {agent.returncode}"
        raise FailedError(f"the prober at {name} failed: {reason}")
    return json.loads(out)
