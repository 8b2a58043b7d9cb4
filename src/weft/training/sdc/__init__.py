"""Silent data corruption (SDC): detection, voting, verdicts about ranks, and injected faults to measure them with."""
