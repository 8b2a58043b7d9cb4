"""How fast a year of a fleet is: 131,072 GPUs, all classes of faults, one seed, one core; CPU time, memory, events.

The scenario `standard` is one gang on the whole fleet; `mixed` (an argument) adds experiments, serving and maintenance.
"""

import resource
import sys
import time

from weft.campaign.outcome import outcome_of
from weft.campaign.seeds_in_parallel import Question, operated
from weft.specs import load_campaign, load_site

SITE = "gb200-8x100g-131k"


def main() -> None:
    """Measure and print."""
    scenario = sys.argv[1] if len(sys.argv) > 1 else "standard"
    question = Question(load_site(SITE), load_campaign(scenario))
    begin = time.process_time()
    done = operated(question, 0)
    took = time.process_time() - begin
    found = outcome_of(done)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{scenario}: {found['gpus']:,} GPUs over {found['days']:g} days in {took:.1f} CPU s, {memory:,.0f} MiB")
    print(
        f"        {found['events']:,} events, {found['passes']:,} passes, {took / found['passes'] * 1e6:.0f} us a pass"
    )
    print(f"        {sum(found['gpu_ms'].values()) - found['gpu_ms_in_all']} GPU-ms not accounted for")


if __name__ == "__main__":
    main()
