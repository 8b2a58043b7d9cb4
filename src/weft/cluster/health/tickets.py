"""Repair tickets: what a technician is to do about a finding, how long it takes, which parts, what the fault costs.

The times are classes: a reset or a reboot takes minutes, a tray one to four hours, a part sent back days (SemiAnalysis
on GB200 service, and arXiv 2410.21680 on how faults are spread). A ticket names what was seen, also where it did not
come again.
"""

from dataclasses import dataclass
from typing import Any

from weft.cluster.records.actions import Ticket
from weft.cluster.records.node import Node, NodeEvidence

DOES_NOT_REPRODUCE = "does not reproduce"
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Repair:
    """One way to repair a node."""

    action: str
    parts: tuple[str, ...]
    technician_min: int
    """A technician's time, in minutes."""
    out_min: int
    """How long the node is out for it, in minutes."""


REPAIRS: dict[str, Repair] = {
    "silent": Repair("power-cycle, then look at the console", (), 10, 30),
    "xid": Repair("reset the GPU; swap the tray if it comes again", ("GPU tray",), 60, 240),
    "ecc": Repair("reset to remap rows; swap the tray if rows run out", ("GPU tray",), 60, 240),
    "reset-gpu": Repair("reset the GPU (nvidia-smi --gpu-reset); swap the tray if it comes again", (), 10, 30),
    "reboot": Repair("reboot; swap the tray if it comes again", (), 10, 30),
    "swap-gpu": Repair("swap the GPU's tray: rows can no longer be remapped", ("GPU tray",), 60, 240),
    "power": Repair("check the power cables of the GPU board", ("power cable",), 30, 90),
    "nic": Repair("reset the NIC's firmware; swap the NIC if it comes again", ("NIC",), 45, 120),
    "dimm": Repair("swap the memory module", ("DIMM",), 30, 120),
    "cpu": Repair("run the vendor's processor test; swap processor or board", ("CPU",), 60, 240),
    "disk": Repair("swap the drive", ("drive",), 20, 60),
    "throttling": Repair("clean and reseat the cooling of the tray", ("thermal pads",), 45, 120),
    "link": Repair("clean or swap the optic, then the cable", ("optic", "fibre"), 20, 60),
    "memory": Repair("swap the tray: its memory fails patterns", ("GPU tray",), 60, 240),
    "matmul": Repair("swap the tray: it computes wrongly", ("GPU tray",), 60, 240),
    "lemon": Repair("swap the tray and send it to the vendor", ("GPU tray",), 60, 240),
    "": Repair("reseat, power-cycle, run the long test", (), 30, 120),
}
"""By name, which is that of the check unless its evidence names another; the last is for everything else.

A health check names its repair in the registry (`engines.health.registry`)."""


def repair_for(node: Node, finding: str, now_ms: int) -> Ticket:
    """Return the ticket for a node with a finding."""
    repair = REPAIRS[_repair_name(node.evidence, finding)]
    out_ms = repair.out_min * _MINUTE_MS + (now_ms - node.out_ms if node.out_ms is not None else 0)
    return Ticket(
        node.number, finding, repair.action, repair.parts, repair.technician_min, node.gpus * out_ms, node.evidence
    )


def ticket_document(node: Node, ticket: Ticket) -> dict[str, Any]:
    """Return a ticket as a webhook gets it; its id is the same whenever the same repair is asked for."""
    return {
        "id": f"{node.name}-{node.since_ms}", "node": node.name, "finding": ticket.finding, "action": ticket.action,
        "parts": list(ticket.parts), "technician_min": ticket.technician_min, "attempt": node.attempts,
        "blast_gpu_hours": round(ticket.blast_gpu_ms / 3_600_000, 3),
        "evidence": [
            {"check": one.check, "severity": one.severity, "text": one.text, "gpu": one.gpu, "at_ms": one.at_ms}
            for one in ticket.evidence
        ],
    }  # fmt: skip


def _repair_name(evidence: tuple[NodeEvidence, ...], finding: str) -> str:
    """Return the repair that the newest evidence with a known one calls for."""
    if "lemon" in finding:
        return "lemon"
    seen = (each for each in reversed(evidence) if each.severity != "note")
    named = (each.repair or each.check.removeprefix("test:") for each in seen)
    return next((name for name in named if name in REPAIRS), "")
