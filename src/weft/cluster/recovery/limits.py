"""How long is too long: limits that are learned from the run itself.

A fixed limit restarts healthy jobs on a busy machine, and waits for ever on a quick one. Here every phase of a run (its
start-up, its steps, its evaluations) is judged by how long it has taken so far, and of late. One that was given up
while nobody was found stopped or dead may only have been slow: the next one gets three times as long, so steps that
became longer for good end no run in a crash loop. Pure: durations in, a limit out.
"""

from dataclasses import dataclass, field, replace

from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds

_LEAST = Picoseconds(3 * PICOSECONDS_PER_SECOND)
STOPPED_PS = _LEAST
"""How long a process may be stopped by a signal before it is given up, however long its steps take."""
_FIRST = Picoseconds(120 * PICOSECONDS_PER_SECOND)
_NOTHING = Picoseconds(0)
_MOST = Picoseconds(600 * PICOSECONDS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class LimitRule:
    """How a limit follows from durations."""

    least_ps: Picoseconds = _LEAST
    """No limit is below this: a short pause of the machine (paging, a neighbour's burst) is no failure."""
    factor: int = 5
    """Times the 99th percentile: what a slow but healthy step may take."""
    first_ps: Picoseconds = _FIRST
    """The limit while fewer than `needed` durations are known."""
    needed: int = 3
    """Durations before anything is said to be learned."""
    window: int = 512
    """Newest durations that count: a job that has become slower is not judged by its youth."""
    late: int = 8
    """Newest durations of which the longest counts as the percentile does: what is slow now need not last for hours."""
    longer: int = 3
    """Times what was waited in vain."""
    most_ps: Picoseconds = _MOST
    """No wait in vain makes the limit longer than this; durations may."""


@dataclass(frozen=True, slots=True)
class LearnedLimit:
    """What is known of one phase."""

    rule: LimitRule = field(default_factory=LimitRule)
    """How to judge."""
    durations_ps: tuple[Picoseconds, ...] = ()
    """The newest durations, oldest first."""
    waited_ps: Picoseconds = _NOTHING
    """How long the last one was waited for in vain, where the run got no further since."""

    def with_duration(self, duration_ps: Picoseconds) -> "LearnedLimit":
        """Return what is known after one more duration."""
        return replace(self, durations_ps=(*self.durations_ps, duration_ps)[-self.rule.window :])

    def with_wait(self, waited_ps: Picoseconds) -> "LearnedLimit":
        """Return what is known after one was given up that nobody was seen to hold up; 0 when the run got further."""
        return replace(self, waited_ps=waited_ps)

    @property
    def limit_ps(self) -> Picoseconds:
        """Return how long the phase may take before it is suspect."""
        rule = self.rule
        again = min(rule.longer * self.waited_ps, rule.most_ps)
        if len(self.durations_ps) < rule.needed:
            return Picoseconds(max(rule.first_ps, again))
        usual = max(percentile(self.durations_ps, 99), *self.durations_ps[-rule.late :])
        return Picoseconds(max(rule.least_ps, rule.factor * usual, again))


def percentile(values: tuple[Picoseconds, ...], percent: int) -> Picoseconds:
    """Return the smallest of `values` that at least `percent` of a hundred of them do not exceed."""
    assert values, "a percentile needs a value"
    return sorted(values)[-(-len(values) * percent // 100) - 1]
