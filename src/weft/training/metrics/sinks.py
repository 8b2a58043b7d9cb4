"""Where metrics go besides the run folder: every sink that is installed, and W&B and MLflow where a job names them.

TensorBoard ships; other distributions add theirs as entry points of group `weft.sinks`, each a function
`open(folder, resumed_at)` that returns a `Sink` or nothing. A sink never stops a training: one that fails is reported
once and left out from then on.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, cast

from weft.core import plugins
from weft.training.metrics.step_line import StepLine
from weft.training.metrics.tracking_sinks import TRACKERS, scalars_of

TENSORBOARD = "tensorboard"
GROUP = "weft.sinks"


class Sink(Protocol):
    """Takes the numbers of a run as they come."""

    def step(self, line: StepLine) -> None:
        """Take one step."""
        ...

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Take one evaluation."""
        ...

    def close(self) -> None:
        """Write out what is left."""
        ...


class TensorBoard:
    """Writes event files that TensorBoard shows."""

    def __init__(self, writer: Any) -> None:
        """Write with torch's `SummaryWriter`."""
        self._writer = writer

    def step(self, line: StepLine) -> None:
        """Write loss, gradient norm, learning rate, tokens per second and the shares of time."""
        for name, value in scalars_of(line).items():
            self._writer.add_scalar(name, value, line.step)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write the results under "evaluation"."""
        for name, value in values.items():
            self._writer.add_scalar(f"evaluation/{name}", value, step)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def tensorboard(folder: Path, resumed_at: int | None = None) -> TensorBoard | None:
    """Return a TensorBoard sink that writes below the run folder, or nothing where TensorBoard is not installed.

    `resumed_at` tells TensorBoard to forget what it showed of later steps.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    purge = None if resumed_at is None else resumed_at + 1
    return TensorBoard(SummaryWriter(str(folder / TENSORBOARD), purge_step=purge))


class Sinks:
    """All sinks of one run, as one."""

    def __init__(self, sinks: Mapping[str, Sink], report: Callable[[str], None]) -> None:
        """Feed `sinks`, by their names; `report` is called with what goes wrong."""
        self._sinks, self._report = dict(sinks), report

    @classmethod
    def open(
        cls, folder: Path, resumed_at: int | None, report: Callable[[str], None], asked: Sequence[str] = ()
    ) -> Self:
        """Open every sink that is installed, for the run in `folder`, and those of `TRACKERS` that are `asked` for."""
        made = cls({}, report)
        openers: dict[str, Callable[[], Sink | None]] = {TENSORBOARD: lambda: tensorboard(folder, resumed_at)}
        for name in plugins.names(GROUP):
            openers[name] = lambda name=name: cast("Any", plugins.entry_point(GROUP, name))(folder, resumed_at)
        for name in asked:
            if name in TRACKERS:
                openers[name] = lambda name=name: TRACKERS[name](folder, resumed_at)
            elif name not in openers:
                report(
                    f"metrics do not go to {name}: no sink is called so; there are {', '.join((*openers, *TRACKERS))}"
                )
        for name, opener in openers.items():
            found: list[Sink | None] = []
            made._try(name, lambda opener=opener, found=found: found.append(opener()))
            if found and found[0] is not None:
                made._sinks[name] = found[0]
        return made

    def _try(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a sink is somebody else's code, and the run matters more
            self._sinks.pop(name, None)
            self._report(f"metrics no longer go to {name}: {error!r}")

    def step(self, line: StepLine) -> None:
        """Give one step to every sink."""
        for name, sink in list(self._sinks.items()):
            self._try(name, lambda sink=sink: sink.step(line))

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Give one evaluation to every sink."""
        for name, sink in list(self._sinks.items()):
            self._try(name, lambda sink=sink: sink.evaluation(step, values))

    def close(self) -> None:
        """Close every sink."""
        for name, sink in list(self._sinks.items()):
            self._try(name, sink.close)
