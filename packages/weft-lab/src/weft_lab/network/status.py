"""What a lab is doing, read from the kernel: which namespaces and ports are there, what the planes have carried."""

import json
from dataclasses import dataclass
from typing import Any

from weft.core.errors import FailedError
from weft_lab.network.lab import Lab, remains


@dataclass(frozen=True)
class PlaneStatus:
    """One plane as its NIC ports see it."""

    plane: int
    ports: int
    """NIC ports in it."""
    ports_up: int
    """Those with a carrier."""
    sent_bytes: int
    """What NICs have sent into it."""
    received_bytes: int
    """What NICs have received from it."""

    @property
    def up(self) -> bool:
        """Return whether any NIC can use it."""
        return self.ports_up > 0


@dataclass(frozen=True)
class LabStatus:
    """A lab as it stands."""

    lab: Lab
    namespaces: int
    """Namespaces that are there."""
    planes: tuple[PlaneStatus, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the status for programs."""
        spec, shape = self.lab.record.spec, self.lab.plan.addressing.shape
        return {
            "name": spec.name,
            "phase": self.lab.record.phase,
            "world": "root" if self.lab.machine.keeper is None else "user",
            "hosts": shape.hosts,
            "switches": shape.switches,
            "links": sum(shape.links),
            "rate_bps": spec.rate_bps,
            "queue_bytes": spec.queue_bytes,
            "mtu": spec.mtu,
            "namespaces": self.namespaces,
            "namespaces_wanted": len(self.lab.plan.namespaces),
            "planes": [
                {
                    "plane": row.plane,
                    "ports": row.ports,
                    "ports_up": row.ports_up,
                    "sent_bytes": row.sent_bytes,
                    "received_bytes": row.received_bytes,
                }
                for row in self.planes
            ],
            "faults": self.lab.faults.as_json(),
        }


def status_of(lab: Lab) -> LabStatus:
    """Read how a lab stands."""
    plan = lab.plan
    there = remains(lab.machine, lab.record.spec.name)
    hosts, planes = plan.topology.nics, plan.addressing.shape.planes
    up, sent, received = [0] * planes, [0] * planes, [0] * planes
    for nic in range(hosts):
        namespace = plan.host_namespace(nic)
        if namespace not in there:
            continue
        for device in _devices(lab, namespace):
            plane = device["ifname"].removeprefix("p")
            if device["ifname"].startswith("p") and plane.isdecimal():
                counted = device["stats64"]
                up[int(plane)] += device["operstate"] == "UP"
                sent[int(plane)] += counted["tx"]["bytes"]
                received[int(plane)] += counted["rx"]["bytes"]
    rows = (PlaneStatus(plane, hosts, up[plane], sent[plane], received[plane]) for plane in range(planes))
    return LabStatus(lab, len(there), tuple(rows))


def _devices(lab: Lab, namespace: str) -> list[dict[str, Any]]:
    text = lab.machine.run(("ip", "-n", namespace, "-j", "-s", "link"))
    try:
        return json.loads(text)
    except ValueError:
        raise FailedError(f"ip -n {namespace} -j -s link printed no JSON; iproute2 6.1 or newer is needed") from None
