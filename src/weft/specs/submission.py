"""What can be handed to a cluster: a command or a training, what it needs, and its place in the queue.

Data only. The command line fills it in, the HTTP interface takes it as JSON, and its schema is a part of that
interface's document.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from weft.core.spec import Check, Duration, Spec
from weft.specs.faults import FaultsSpec
from weft.specs.job import JobSpec
from weft.specs.site import Name

JobId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,79}$")]
Argument = Annotated[str, Field(max_length=32_768, pattern=r"^[^\x00]*$")]
MOST_NODES = 1_000_000
MOST_MEMBERS = 1_000
"""Jobs of one array."""


def _one_purpose(submission: Any) -> str | None:
    if bool(submission.command) == (submission.job is not None):
        return "give a command or a job, one of them"
    if submission.kind == "training" and submission.job is None:
        return "a training needs a job; a command is an experiment or a service"
    if submission.command and not submission.command[0].strip():
        return "the first word of a command is a program, and it is empty"
    return None


def _fewest(submission: Any) -> str | None:
    if submission.min_nodes <= submission.nodes:
        return None
    return f"min_nodes = {submission.min_nodes} is more than nodes = {submission.nodes}; write at most that"


def _members(submission: Any) -> str | None:
    count = 1
    for values in submission.sweep.values():
        count *= len(values)
    return None if count <= MOST_MEMBERS else f"a sweep of {count:,} jobs; the most are {MOST_MEMBERS:,}"


def _compared(submission: Any) -> str | None:
    alone = submission.early_stop and not submission.sweep
    return "early_stop compares the jobs of a sweep; write a sweep too" if alone else None


Shared = Literal["domain", "rack", "t0", "pod"]
"""What nodes can share: a scale-up domain, a rack, a first-tier switch, the T0s below common T1s."""


def shape_problem(asked: Any) -> str | None:
    """Return what is wrong with what a job requires of the topology."""
    width = asked.slice_nodes
    if asked.within and asked.apart:
        return "nodes are either within one place or apart; write one of them"
    if width and not asked.within:
        return f"slice_nodes = {width} needs within: what must the nodes of a slice share?"
    counts = (asked.nodes, asked.min_nodes) if getattr(asked, "job", None) is None else ()
    step = getattr(asked, "step", width) if asked.min_nodes else width
    if width and any(nodes % width for nodes in (*counts, step)):
        return f"slices of {width} nodes do not divide the job's; write nodes, min_nodes and step as multiples"
    return None


class SubmissionSpec(Spec):
    """A job, or an array of jobs, as it is handed in."""

    name: Name = "job"
    """Short name; a number is put behind it."""
    kind: Literal["training", "experiment", "service"] = "experiment"
    """A training, any command that ends (or a small training), or a server that runs on and yields last."""
    command: tuple[Argument, ...] = Field((), strict=False, max_length=4096)
    """Program and arguments; {key} is replaced by a sweep's value."""
    job: JobSpec | None = None
    """A training."""
    faults: FaultsSpec | None = None
    """What goes wrong in the training on purpose."""
    team: Name = "default"
    """Team whose quota is charged."""
    priority: Annotated[int, Field(ge=0, le=1000)] = 100
    """Higher goes first."""
    time_limit: Duration | None = None
    """Most that it may run; short ones with a limit start sooner."""
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)] = 1
    """Nodes that a command gets, all at once; it is started once on each. A training's plan says it for itself."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 1
    """GPUs on each of them."""
    min_nodes: Annotated[int, Field(ge=0, le=MOST_NODES)] = 0
    """Fewest nodes with which it starts; 0 where it needs all."""
    within: Shared | None = None
    """What its nodes must share; it waits until they can."""
    slice_nodes: Annotated[int, Field(ge=0, le=MOST_NODES)] = 0
    """How many nodes, in rank order, must share it (16 trays of a domain's 18); 0 for all."""
    apart: Shared | None = None
    """What no two of its nodes may share."""
    after: tuple[JobId, ...] = Field((), strict=False, max_length=1000)
    """Jobs that must be done before."""
    snapshot: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The working folder, as it was uploaded."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")], Argument] = Field(
        default_factory=dict, max_length=256
    )
    """Variables of its environment; those that begin with WEFT_ are set by the cluster."""
    sweep: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")],
        Annotated[tuple[Argument, ...], Field(min_length=1, max_length=MOST_MEMBERS, strict=False)],
    ] = Field(default_factory=dict, max_length=8)
    """Values for each key: one job for each combination."""
    at_once: Annotated[int, Field(ge=0, le=MOST_MEMBERS)] = 0
    """Most jobs of the array that run together; 0 for all."""
    metric: Annotated[str, Field(pattern=r"^(min:|max:)?[A-Za-z_][A-Za-z0-9_.-]{0,63}$")] = "min:loss"
    """The number by which the jobs of an array are compared, and which is best: min:loss, max:accuracy."""
    early_stop: Annotated[int, Field(ge=0, le=10**12)] = 0
    """Step at which its jobs are first compared while they run, and the worse ones stopped (ASHA); 0 for never."""
    keep_one_in: Annotated[int, Field(ge=2, le=100)] = 3
    """One job in this many goes on from there; the next comparison is at as many times the steps."""
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{8,64}$")] | None = None
    """Made up by whoever submits: the same key twice is the same job, so a lost answer can be asked for again."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("command", "job", "kind"), _one_purpose),
        Check(("min_nodes", "nodes"), _fewest),
        Check(("within", "slice_nodes", "apart", "nodes", "min_nodes", "job"), shape_problem),
        Check(("sweep",), _members),
        Check(("sweep", "early_stop"), _compared),
    )
