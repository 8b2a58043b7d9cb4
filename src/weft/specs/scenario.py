"""What can be written in a `scenario` file, an experiment on a site, and in a sweep file, which varies one."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from weft.core import quantity
from weft.core.spec import Check, Duration, Quantity, Spec
from weft.core.units import Bytes, Picoseconds
from weft.specs.rivals import TransportName, TransportsSpec
from weft.specs.site import Name, Share

FlowSize = Annotated[Bytes, Quantity(quantity.SIZE, at_least=1)]
Nic = Annotated[int, Field(ge=0)]
Uplinks = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]
_MICROSECOND = 10**6


class FlowSpec(Spec):
    """One write of some bytes from one NIC to another."""

    name: str = ""
    """How later flows and reports call it; its number where absent."""
    source: Nic
    """Number of the NIC that sends."""
    destination: Nic
    """Number of the NIC that receives."""
    size: FlowSize
    """Bytes."""
    at: Duration = Picoseconds(0)
    """When it may begin at the earliest."""
    after: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of flows that must have arrived before it begins; `at` then counts from there."""
    uplinks: Uplinks = ()
    """Only these uplinks of the T0 carry it; any where absent."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("destination", "source"),
            lambda s: (
                f"the flow goes from NIC {s.source} to itself; name another destination"
                if s.source == s.destination
                else None
            ),
        ),
    )


class PartSizeSpec(Spec):
    """One size out of a mixture."""

    size: FlowSize
    """Bytes of such a flow."""
    share: Annotated[float, Field(gt=0, le=1)]
    """Share of the flows that have it."""


def _sizes_are_whole(spec: Any) -> str | None:
    total = sum(part.share for part in spec.sizes)
    close = 1e-6
    return None if not spec.sizes or abs(total - 1) < close else f"the shares add up to {total:g}; make them 1"


def _flows_fit_the_pattern(spec: Any) -> str | None:
    if (spec.pattern == "flows") == bool(spec.flows):
        return None
    return "flows and pattern = 'flows' go together; write both or neither"


def _pair_is_two(spec: Any) -> str | None:
    if spec.pattern == "pair" and spec.source == spec.destination:
        return f"the pair is NIC {spec.source} and itself; name another destination"
    return None


def _routing_fits_the_pattern(spec: Any) -> str | None:
    if (spec.pattern == "experts") == (spec.routing is not None):
        return None
    return "routing and pattern = 'experts' go together; write both or neither"


class TrafficSpec(Spec):
    """Who sends what to whom."""

    pattern: Literal[
        "pair", "permutation", "incast", "all-to-all", "nccl-all-to-all", "collective", "experts", "poisson", "flows"
    ] = "permutation"  # fmt: skip
    """Shape of the traffic: one pair; everybody to one other; many to one, with a victim beside it; everybody to
    everybody; the same between servers and in the order of NCCL and RCCL; a collective whose sends wait for each other;
    tokens to experts and back, as a routing table says; flows at random times between random NICs; or the flows listed
    below."""
    size: FlowSize = Bytes(8 * 2**20)
    """Bytes of one flow; of a collective, its whole buffer."""
    sizes: Annotated[tuple[PartSizeSpec, ...], Field(strict=False)] = ()
    """Sizes to draw from instead."""
    hosts: Annotated[int, Field(ge=2)] | None = None
    """NICs that take part, from number 0 on; all where absent."""
    source: Nic = 0
    """Pair: who sends."""
    destination: Nic = 1
    """Pair, incast: who receives."""
    across: bool = False
    """Permutation, incast: whether every flow goes to another T0."""
    senders: Annotated[int, Field(ge=1)] = 7
    """Incast: how many send to one."""
    victim: bool = False
    """Incast: whether one more flow goes to another NIC beside the receiver, which the incast should not hurt."""
    kind: Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"] = "all-reduce"
    """Collective: what it achieves."""
    algorithm: str | None = None
    """Collective: how, as `ring`, `halving-doubling`, `double-tree`, `direct`, or the name of a plugin; a ring where
    absent, or direct sends for an all-to-all."""
    ranks: Annotated[int, Field(ge=2, le=512)] | None = None
    """Collective: how many take part; as many as fit where absent."""
    stride: Annotated[int, Field(ge=1)] = 1
    """Collective: NICs from one rank to the next."""
    server: Annotated[int, Field(ge=1)] = 8
    """NCCL's all-to-all: NICs of one server, whose GPUs reach each other over links of their own."""
    channels: Annotated[int, Field(ge=1, le=64)] = 2
    """NCCL's all-to-all: connections between two ranks; NCCL_NCHANNELS_PER_NET_PEER, which is 2 up to 128 ranks with 64
    channels. A send that is too short for all of them takes fewer."""
    at_once: Annotated[int, Field(ge=1)] = 32
    """NCCL's all-to-all: peers that a rank works for at a time: its channels, 64 on AMD's MI355X, over those of a
    peer."""
    times: Annotated[int, Field(ge=1, le=1000)] = 1
    """NCCL's all-to-all: how many follow each other, a rank's next after all that it sends and receives."""
    routing: str | None = None
    """Experts: the path of a CSV file with the columns source, destination and tokens, ranks that lie `stride` apart;
    ranks to themselves send nothing. What a rank has received it sends back once all of it is there."""
    token: FlowSize = Bytes(14336)
    """Experts: bytes of one token: 7,168 values of two bytes, as in DeepSeek-V3 (arXiv 2412.19437)."""
    load: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Poisson: share of every NIC's rate that is offered on average."""
    lasts: Duration = Picoseconds(100 * _MICROSECOND)
    """Poisson: how long flows keep coming."""
    at: Duration = Picoseconds(0)
    """When it begins."""
    queue_pairs: Annotated[int, Field(ge=1, le=64)] = 1
    """Queue pairs that each flow is cut over."""
    uplinks: Uplinks = ()
    """Only these uplinks of every T0 carry it; any where absent."""
    flows: Annotated[tuple[FlowSpec, ...], Field(strict=False)] = ()
    """The flows themselves, for pattern = "flows"."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("sizes",), _sizes_are_whole),
        Check(("flows", "pattern"), _flows_fit_the_pattern),
        Check(("destination", "source", "pattern"), _pair_is_two),
        Check(("routing", "pattern"), _routing_fits_the_pattern),
    )


_NEED_AMOUNT = {"loss": "packets lost", "slow": "the rate that is left"}


def _amount_fits(spec: Any) -> str | None:
    what = _NEED_AMOUNT.get(spec.kind)
    if what is not None and spec.amount is None:
        return f"a fault of kind {spec.kind!r} needs an amount, the share of {what}; add amount = 0.01"
    if spec.kind == "slow" and spec.amount == 0:
        return "a link that is slowed down to nothing is dead; write kind = 'link-down'"
    return None


def _flap_fits(spec: Any) -> str | None:
    if spec.kind == "flap" and (spec.period is None or spec.period <= 0):
        return "a flap needs a period, from one going down to the next; add period = '1 ms'"
    return None


class FaultSpec(Spec):
    """Something that breaks, and when."""

    kind: Literal["link-down", "switch-down", "port-down", "optic-down", "black-hole", "loss", "slow", "flap"]
    """What happens. A black hole swallows everything while its links stay up; a NIC sees its own link go down, and
    only that."""
    target: str
    """Name of the link, switch, optic or NIC, as `weft fabric` prints it: "link1-p0-i2-u3", "t1-p0-i3", "nic-i5"."""
    at: Duration = Picoseconds(0)
    """When it begins."""
    lasts: Duration | None = None
    """How long; for good where absent."""
    amount: Share | None = None
    """Share of packets lost, or of the rate that is left; of a flap's period, the share for which it is down (0.5)."""
    period: Duration | None = None
    """Flap: from one going down to the next."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("amount", "kind"), _amount_fits),
        Check(("period", "kind"), _flap_fits),
    )


class QueuesSpec(Spec):
    """When switches mark, trim and drop, in bandwidth-delay products of one plane (UEC 1.0 section 3.6.17).

    A link of another rate than the NICs', or one that a fault slows, holds its own rate's share of that.
    """

    ecn_low: Annotated[float, Field(ge=0)] = 0.2
    """Bytes behind a leaving packet from which it is marked at times."""
    ecn_high: Annotated[float, Field(ge=0)] = 0.8
    """Bytes behind a leaving packet from which it is always marked."""
    trim: Annotated[float, Field(gt=0)] = 1.0
    """Bytes that a data queue holds; what comes on top is trimmed."""
    trim_last_hop: Annotated[float, Field(gt=0)] | None = None
    """The same on the last hop to a NIC. Without it 1.5, as UEC recommends, where the last hop does not mark (`mrc`),
    and `trim` where it does (`uet`, `reps`), as in htsim."""
    control: Annotated[float, Field(gt=0)] = 1.0
    """Bytes that a control queue holds; what comes on top is dropped."""
    drop: Annotated[float, Field(gt=0)] = 2.0
    """Bytes that a data queue holds where nothing is trimmed; what comes on top is dropped."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("ecn_low", "ecn_high"),
            lambda s: None if s.ecn_low <= s.ecn_high else "ecn_low lies above ecn_high; swap them",
        ),
    )


class NetworkSpec(Spec):
    """What a simulator needs to know of the network beyond the site file."""

    host_delay: Duration = Picoseconds(4_400_000)
    """From a packet's last bit at a NIC to the NIC acting on it. Default: what the network's own 0.68 us leave of the
    5.09 us published for two NICs at one T0 (arXiv 2605.04333 section 5.2.1)."""
    queues: QueuesSpec = QueuesSpec()
    """Switch queues."""


class MeasureSpec(Spec):
    """What is recorded, and for how long."""

    bin: Duration = Picoseconds(10 * _MICROSECOND)
    """Width of the bins of everything that is recorded over time."""
    until: Duration | None = None
    """When the run ends at the latest; when all flows are over where absent."""
    links: bool = False
    """Whether every link counts, by bin, its bytes, deepest queue, marks, trims and drops."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("bin",), lambda s: None if s.bin > 0 else "a bin of no width holds nothing; write bin = '10 us'"),
    )


class SharerSpec(Spec):
    """One of several jobs on a fabric: steps of compute and a collective, over NICs of its own."""

    name: Name
    """Short name, used in results."""
    first: Nic = 0
    """NIC of its rank 0."""
    stride: Annotated[int, Field(ge=1)] = 1
    """NICs from one rank to the next."""
    ranks: Annotated[int, Field(ge=2, le=512)]
    """Its ranks."""
    kind: Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"] = "all-reduce"
    """What its collective achieves."""
    algorithm: str | None = None
    """How, as in `traffic.algorithm`."""
    size: FlowSize = Bytes(8 * 2**20)
    """The whole buffer of its collective."""
    compute: Duration = Picoseconds(0)
    """Compute of every rank before each collective."""
    steps: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many steps follow each other."""
    at: Duration = Picoseconds(0)
    """When it begins."""


def _something_to_do(spec: Any) -> str | None:
    asked = [spec.traffic is not None, spec.job is not None, bool(spec.jobs)]
    return None if sum(asked) == 1 else "a scenario has either traffic, a job or [[jobs]]; write one of them"


def _names_differ(spec: Any) -> str | None:
    names = [job.name for job in spec.jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    return None if twice is None else f"two jobs are called {twice!r}; give each its own name"


class ScenarioSpec(Spec):
    """An experiment: a site, traffic or a job, faults over time."""

    name: Name
    """Short name, used in reports."""
    description: str = ""
    """One sentence for people."""
    site: str
    """Built-in name or path of the site."""
    gpus: Annotated[int, Field(ge=2)] | None = None
    """Build the site's fabric with this many GPUs only; switches keep their radix, and every pair its paths."""
    traffic: TrafficSpec | None = None
    """What is sent."""
    background: TrafficSpec | None = None
    """What is sent besides and not counted in the completion times."""
    job: str | None = None
    """Built-in name or path of a job whose step is sent instead."""
    job_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the step's bytes that is sent, and of its compute that is waited for, so that large jobs can be looked
    at; latencies are not cut, so it is for steps whose messages stay long."""
    jobs: Annotated[tuple[SharerSpec, ...], Field(strict=False)] = ()
    """Several jobs on the fabric at once instead; each is also run alone, to show what the others cost it."""
    transport: TransportsSpec = TransportsSpec()
    """How it is sent."""
    network: NetworkSpec = NetworkSpec()
    """What it is sent over."""
    faults: tuple[FaultSpec, ...] = Field((), strict=False)
    """What breaks."""
    denied: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Links and switches that the operator has denied: no EV of MRC that crosses one is used."""
    measure: MeasureSpec = MeasureSpec()
    """What is recorded."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Root of everything random."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("traffic", "job", "jobs"), _something_to_do),
        Check(("jobs",), _names_differ),
    )


class SweepSpec(Spec):
    """A scenario run over every combination of some of its values; a list that is absent leaves the scenario's own."""

    name: Name
    """Short name, used in results."""
    description: str = ""
    """One sentence for people."""
    scenario: str
    """Built-in name or path of the scenario."""
    gpus: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(strict=False)] = ()
    """Sizes of the fabric."""
    size: Annotated[tuple[FlowSize, ...], Field(strict=False)] = ()
    """Bytes of a flow."""
    load: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(strict=False)] = ()
    """Share of every NIC's rate that is offered; for pattern = "poisson"."""
    transport: Annotated[tuple[TransportName, ...], Field(strict=False)] = ()
    """Transports."""
    failed_links: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = ()
    """Links between switches, drawn from the seed, that are down from the beginning."""
    vary: dict[str, Annotated[tuple[Any, ...], Field(strict=False, min_length=1)]] = Field(default_factory=dict)
    """Any other key of the scenario, dotted ("transport.mrc.ev.active", "network.queues.ecn_low", "faults.0.kind"), or
    of the site's fabric ("fabric.oversubscription"), and its values. Where "fabric.planes" is varied the NIC's rate and
    the switch's capacity stay: ports are slower and more by as much, unless they are varied, too."""
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Seeds 0, 1, ... that every combination is run with."""
