"""Where every GPU-hour went: integers of GPU-milliseconds, each in exactly one bucket.

GPUs that no job holds are counted here by where they are; jobs account for their own time in the same buckets. The sum
over all of them is GPUs times duration, exactly, and every campaign asserts it.
"""

USEFUL = ("training", "experiments", "serving")
"""Buckets that are goodput."""
BUCKETS: dict[str, str] = {
    "training": "steps of gangs that a checkpoint kept, or that ran to the end",
    "experiments": "run time of experiments that ended, or ran to the end",
    "serving": "run time of serving replicas",
    "checkpoints": "gangs standing while a checkpoint is written",
    "rolled back": "steps since the last checkpoint, lost with a failure",
    "poisoned": "steps thrown away because silent corruption was found",
    "detection": "gangs standing until a failure is known",
    "restart": "gangs starting again",
    "in-step recovery": "gangs standing while a rank is replaced inside the step",
    "no room": "a gang's own nodes while it waits for others",
    "network": "share of steps that a degraded or flapping network takes",
    "cooling": "share of steps that throttled GPUs take",
    "power cap": "share of steps that power caps take, and pauses that the grid asks for",
    "screening": "gangs standing for tests",
    "planned": "gangs standing for planned maintenance, and nodes in it",
    "experiments lost": "run time of experiments that had to start again",
    "diagnosis": "nodes out of service that are being tested",
    "repair queue": "nodes that wait for a technician or a part",
    "repair": "nodes in repair",
    "validation": "nodes tested before they return",
    "given up": "nodes that wait for their replacement",
    "deferred": "broken parts whose repair is put off",
    "standby": "trays of a domain that stand by in it",
    "spare": "free nodes that are kept to replace failed ones",
    "idle": "free nodes for which there is no work",
}
"""Every bucket and what is in it."""
OUT = ("diagnosis", "repair queue", "repair", "validation", "given up", "planned", "deferred")
"""Buckets of GPUs that are out of service."""


class GpuTime:
    """GPU-milliseconds by bucket; one owner."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.total: dict[str, int] = dict.fromkeys(BUCKETS, 0)
        self.count: dict[str, int] = dict.fromkeys(BUCKETS, 0)
        """GPUs that are in each bucket now, of those that no job holds."""
        self._since_ms: dict[str, int] = dict.fromkeys(BUCKETS, 0)

    def set(self, bucket: str, gpus: int, now_ms: int) -> None:
        """From now on so many GPUs that no job holds are in a bucket."""
        assert gpus >= 0, f"{gpus} GPUs in {bucket}"
        self.total[bucket] += self.count[bucket] * (now_ms - self._since_ms[bucket])
        self.count[bucket], self._since_ms[bucket] = gpus, now_ms

    def shift(self, bucket: str, gpus: int, now_ms: int) -> None:
        """Let GPUs enter a bucket, or leave it where the number is negative."""
        self.set(bucket, self.count[bucket] + gpus, now_ms)

    def add(self, bucket: str, gpu_ms: int) -> None:
        """Account for time that a job has used."""
        self.total[bucket] += gpu_ms

    def close(self, now_ms: int) -> None:
        """Bring every bucket up to the end."""
        for bucket in BUCKETS:
            self.set(bucket, self.count[bucket], now_ms)

    def out(self) -> int:
        """Return how many GPUs are out of service now."""
        return sum(map(self.count.__getitem__, OUT))
