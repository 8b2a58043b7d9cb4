"""A lab from up to down: makes it, changes it, finds what is left of it and removes that.

Everything is written down before it is done, so that `remove` can clear up after a process that was killed at any
point. What is made can also be found by its names alone.
"""

import re
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import cast

from weft.core.errors import FailedError, UsageError, WeftError
from weft.core.ids import Grid
from weft.fabric.graph.naming import Kind
from weft_lab.network import machine, switch_queue
from weft_lab.network.faults import FaultChange, Faults, Filter
from weft_lab.network.machine import NAMESPACES, LabMachine
from weft_lab.network.plan import Batch, LabPlan, LabSpec
from weft_lab.network.record import LabRecord, LabRecords

SHOWN = 3
"""Names that a message lists before it counts."""


@dataclass(frozen=True)
class Removed:
    """What `remove` found and took away."""

    namespaces: int
    processes: int
    written: bool
    """Whether the lab was written down."""

    def __bool__(self) -> bool:
        """Return whether there was anything."""
        return bool(self.namespaces or self.processes or self.written)


@dataclass
class Lab:
    """A lab that is up."""

    records: LabRecords
    record: LabRecord

    @cached_property
    def plan(self) -> LabPlan:
        """Return its wiring and addresses."""
        return LabPlan(self.record.spec)

    @property
    def machine(self) -> LabMachine:
        """Return where its commands run."""
        return self.record.machine

    @property
    def faults(self) -> Faults:
        """Return what is wrong with it on purpose."""
        return self.record.faults

    def inside(self, node: int) -> tuple[str, ...]:
        """Return what goes before a command to run it at a NIC or switch."""
        return (*self.machine.entry(), machine.program("ip"), "netns", "exec", self.plan.namespaces[node])

    def node(self, text: str) -> int:
        """Return the node that `text` means: the number or name of a NIC, or the name of a switch."""
        names, nics = self.plan.topology.names, self.plan.topology.nics
        if re.fullmatch(r"h?\d{1,6}", text, re.ASCII):
            number = int(text.removeprefix("h"))
            if number >= nics:
                raise UsageError(f"there is no host {text}; they run from 0 to {nics - 1}")
            return number
        kind, dense = names.find(text, ("nic", "switch"))
        return dense if kind == "nic" else self.plan.topology.switch_node(dense)

    def host(self, text: str) -> int:
        """Return the NIC that `text` means."""
        node = self.node(text)
        if node >= self.plan.topology.nics:
            raise UsageError(f"{text} is a switch; name a host, from 0 to {self.plan.topology.nics - 1}")
        return node

    def names(self, pattern: str, kinds: tuple[Kind, ...]) -> list[str]:
        """Return the names of `kinds` that a name or a pattern with * stands for."""
        names = self.plan.topology.names
        if not set(pattern) & set("*?["):
            names.find(pattern, kinds)
            return [pattern]
        every = [
            family.name((family.first if isinstance(family, Grid) else 0) + number)
            for kind in kinds
            for family in names.families[kind]
            for number in range(family.size)
        ]
        found = [name for name in every if fnmatchcase(name, pattern)]
        if not found:
            raise UsageError(f"no name fits {pattern!r}; names look like {every[0]!r}")
        return found

    def change(self, names: Iterable[str], step: Callable[[LabPlan, Faults, str, Filter], FaultChange]) -> None:
        """Put faults in or take them out, one name after the other; each is written down before it is done."""
        # Only loss and black holes need such a program: where there is none, the rest can be done all the same.
        by = cast("Filter", machine.installed_filter() or "nft")
        with self.records.alone():
            self.record = _standing(self.records, self.record.spec.name)
            for name in names:
                before, change = self.record, step(self.plan, self.record.faults, name, by)
                if any(batch.program == by for batch in change.batches):
                    machine.filter_program()
                self.record = replace(before, faults=change.after)
                self.records.write(self.record)
                try:
                    for batch in change.batches:
                        _run(self.machine, batch)
                    if before.faults.slow != change.after.slow and self.plan.spec.trims:
                        switch_queue.change_rates(self.plan, change.after.slow)
                except WeftError:
                    self.record = before
                    self.records.write(before)
                    raise


def make(records: LabRecords, spec: LabSpec) -> Lab:
    """Make a lab; where that fails or is interrupted, nothing of it stays."""
    plan = LabPlan(spec)
    # Everything that can be wrong with what was asked shows here, before the machine is touched.
    first, then = plan.up(), plan.bring_to_life()
    settings = plan.settings()
    with records.alone():
        _refuse_collision(records, spec.name)
        records.write(LabRecord(spec, "making"))
        try:
            world = machine.machine_for(spec.name)
            record = LabRecord(spec, "making", world)
            records.write(record)
            if world.keeper is None and not NAMESPACES.is_dir():
                records.mark.touch()
            for batch in first:
                _run(world, batch)
            for argv in settings:
                world.run(argv)
            for batch in then:
                _run(world, batch)
            if spec.trims:
                switch_queue.put_in(plan)
            record = replace(record, phase="up")
            records.write(record)
        except BaseException:
            with suppress(WeftError):
                _clear(records, spec.name)
            raise
    lab = Lab(records, record)
    lab.plan = plan
    return lab


def find(records: LabRecords, name: str) -> Lab:
    """Return the lab of this name, or say which there are."""
    return Lab(records, _standing(records, name))


def remove(records: LabRecords, name: str) -> Removed:
    """Remove a lab, or whatever is left of one, and every process in it."""
    with records.alone():
        return _clear(records, name)


def remains(world: LabMachine, name: str) -> dict[str, int]:
    """Return the namespaces that carry a lab's name, whoever made them."""
    return world.namespaces(re.compile(rf"{re.escape(name)}-(h\d+|t\d+p\d+i\d+|s\d+)"))


def _standing(records: LabRecords, name: str) -> LabRecord:
    record = records.read(name)
    if record is None:
        there = ", ".join(records.names())
        raise UsageError(
            f"there is no lab called {name}; "
            + (f"there is {there}: add --name" if there else "weft lab up --hosts 4 --planes 4 --spines 2 makes one")
        )
    keeper = record.machine.keeper
    if record.phase != "up" or (keeper is not None and not keeper.alive()):
        raise UsageError(f"the lab {name} is not whole; weft lab down --name {name} clears up, then make it again")
    return record


def _refuse_collision(records: LabRecords, name: str) -> None:
    record = records.read(name)
    if record is not None:
        state = "is up" if record.phase == "up" else "was left half-made"
        raise UsageError(f"a lab called {name} {state}; weft lab down --name {name} removes it, --name makes another")
    left = [*remains(LabMachine(), name)]
    if left:
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        raise UsageError(
            f"the network namespaces {', '.join(left[:SHOWN])}{more} exist already; weft lab down --name {name} "
            "removes them, --name makes a lab beside them"
        )


def _clear(records: LabRecords, name: str) -> Removed:
    with suppress(UsageError):
        record = records.read(name)
        if record is not None:
            records.write(replace(record, phase="removing"))
    written = name in records.names()
    namespaces = processes = 0
    for keeper in machine.keepers(name):
        namespaces += len(remains(LabMachine(keeper), name))
        # The keeper itself is one of them; with it goes everything that it holds.
        processes += machine.end_processes((), [machine.user_number(keeper)]) - 1
    world = LabMachine()
    left = remains(world, name)
    if left:
        processes += machine.end_processes(left.values())
        world.run(("ip", "-force", "-batch", "-"), "".join(f"netns del {one}\n" for one in left), check=False)
        if still := remains(world, name):
            raise FailedError(f"{len(still)} namespaces of the lab {name} could not be removed: {', '.join(still)}")
    records.forget(name)
    if records.mark.exists() and not records.names():
        _remove_folder(world)
        records.mark.unlink()
    return Removed(namespaces + len(left), processes, written)


def _remove_folder(world: LabMachine) -> None:
    """Remove the folder of network namespaces and its mount, if nobody else uses it by now."""
    if NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
        world.run(("umount", str(NAMESPACES)), check=False)
        with suppress(OSError):
            NAMESPACES.rmdir()


def _run(world: LabMachine, batch: Batch) -> None:
    if batch.lines:
        world.run(batch.argv(), batch.text())


def execute(lab: Lab, node: int, command: list[str]) -> int:
    """Run a command of the user at a node, on this terminal, and return its exit status."""
    return subprocess.run((*lab.inside(node), *command), check=False).returncode
