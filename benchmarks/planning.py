"""How fast plans are searched: one trillion parameters on 131,072 GPUs, and one evaluation against a plain loop.

Prints the time of the whole search, the time of one evaluation when many are made together, and the ratio to the same
model evaluated one plan at a time, which is what a search without columns would do.
"""

import time

import numpy as np

from weft.planning.candidates import candidates
from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.memory import memory_of
from weft.planning.cost_model.plans import Workload, dimensions_of
from weft.planning.cost_model.step import step_times
from weft.planning.search import search
from weft.specs import load_job, load_site
from weft.specs.software import SoftwareSpec

SITE, JOB = "gb200-8x100g-131k", "gpt-1t"
ALONE = 300
ROUNDS = 3


def main() -> None:
    """Measure and print."""
    machine, job, practice = machine_of(load_site(SITE)), load_job(JOB), SoftwareSpec()
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)
    whole: list[float] = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        found = search(work, machine, practice)
        whole.append(time.process_time() - begin)
    print(f"search: {found.considered:,} plans of {JOB} on {machine.gpus:,} GPUs in {min(whole):.2f} s of one core")

    plans, _ = candidates(work, machine, machine.gpus, {})
    begin = time.process_time()
    memory_of(work, plans, practice)
    together = step_times(work, plans, machine, practice).step_s
    each = (time.process_time() - begin) / len(plans)
    rows = np.linspace(0, len(plans) - 1, ALONE).astype(np.int64)
    singles = [plans.take([int(row)]) for row in rows]
    begin = time.process_time()
    for single in singles:
        memory_of(work, single, practice)
    alone = [float(step_times(work, single, machine, practice).step_s[0]) for single in singles]
    apart = (time.process_time() - begin) / ALONE
    assert np.allclose(alone, together[rows]), "one plan at a time must give the same"
    print(f"one evaluation: {each * 1e6:.1f} us among many, {apart * 1e6:.0f} us alone, ratio {apart / each:.0f}")


if __name__ == "__main__":
    main()
