"""`weft top`: runs and the cluster at a glance on a terminal, for whoever comes by ssh."""

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli.cluster.local import HomeOption, home_of
from weft.cli.output import JsonFlag, print_json, print_table
from weft.cli.screen.tables import clean, folded
from weft.cli.training.runs import sparkline
from weft.core.errors import UsageError
from weft.core.extras import need
from weft.core.quantity import significant

_RUNS = Path("runs")
_SPARKS = 24
_PADDING, _SCROLL_BAR = 2, 2
_LEAST_LAST = 12
"""Letters that the last column of a table keeps on the narrowest terminal."""


def top(
    *folders: Annotated[Path, Parameter(help="Folders of runs; default: runs.")],
    every: Annotated[float, Parameter(help="Seconds between two looks.")] = 1.0,
    home: HomeOption = None,
    json: JsonFlag = False,
) -> None:
    """Show runs and the cluster, again and again; q ends it.

    Without a terminal it is printed once.
    """
    need("textual", "starlette", "prometheus_client")
    from weft.web.console.cluster_window import ClusterWindow
    from weft.web.console.run_files import RunLibrary

    if not 0 < every < float("inf"):
        raise UsageError(f"--every {every}: write seconds above 0")
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder; name a folder of runs")
    runs, window = RunLibrary(folders or (_RUNS,)), ClusterWindow(home_of(home))
    if json:
        print_json({"runs": runs.listed(), "cluster": window.shown()})
        return
    if not os.isatty(1):
        print_table("runs", RUN_HEAD, run_rows(runs.listed()), words=(0, 1, 4))
        print_table("cluster", CLUSTER_HEAD, cluster_rows(window.shown()), words=(0, 1, 2, 4))
        return
    _watch(lambda: (run_rows(runs.listed()), cluster_rows(window.shown())), every)


RUN_HEAD = ("run", "state", "step", "loss", "over steps", "incidents")
CLUSTER_HEAD = ("job", "state", "team", "GPUs", "where, or why not")


def run_rows(runs: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the table of runs."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        if run["error"] is not None:
            rows.append((run["run"], "unreadable", "-", "-", "", "-"))
            continue
        loss = "-" if run["loss"] is None else significant(run["loss"])
        losses = [float("inf") if each is None else each for each in run["losses"]]
        rows.append((run["run"], run["state"], f"{run['steps']:,}/{run['steps_asked']:,}", loss,
                     sparkline(losses, _SPARKS), str(run["incidents"])))  # fmt: skip
    return rows


def cluster_rows(shown: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table of the cluster's open jobs; one row that says so where it is down."""
    if not shown["up"]:
        return [("-", "down", "-", "-", shown["problem"])]
    rows: list[tuple[str, ...]] = []
    for job in shown["jobs"]:
        if job["ended_ms"] is None:
            where = ", ".join(job["on"]) or shown["why"].get(job["id"], {}).get("text") or job["text"]
            rows.append((job["id"], job["state"], job["team"], str(job["nodes"] * job["gpus_per_node"]), where))
    return rows or [("-", "idle", "-", "-", "nothing runs or waits")]


def fitted(head: tuple[str, ...], rows: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Return rows whose last cells are folded at spaces, so that a table of `head` is no wider than `width`."""
    from rich.cells import cell_len

    cells = [tuple(map(clean, row)) for row in rows]
    before = sum(max(map(cell_len, column)) + _PADDING for column in list(zip(head, *cells, strict=True))[:-1])
    room = max(_LEAST_LAST, width - before - _PADDING - _SCROLL_BAR)
    return [(*row[:-1], "\n".join(folded(row[-1], room))) for row in cells]


def _watch(look: Any, every: float) -> None:
    """Show two tables until somebody ends it."""
    from rich.text import Text
    from textual.app import App, ComposeResult
    from textual.widgets import DataTable, Footer, Header
    from typing_extensions import override

    heads = (("runs", RUN_HEAD), ("cluster", CLUSTER_HEAD))

    class Top(App[None]):
        """Runs above, the cluster below."""

        TITLE = "weft top"
        BINDINGS = [("q", "quit", "Quit")]  # noqa: RUF012 - textual's own type
        CSS = "DataTable { height: 1fr; }"

        @override
        def compose(self) -> ComposeResult:
            yield Header(show_clock=True)
            yield DataTable(id="runs", cursor_type="row")
            yield DataTable(id="cluster", cursor_type="row")
            yield Footer()

        def on_mount(self) -> None:
            """Begin to look."""
            for name, head in heads:
                self.query_one(f"#{name}", DataTable).add_columns(*head)
            self.set_interval(every, self.look)
            self.look()

        def look(self) -> None:
            """Fill both tables anew, and leave the cursor where it is."""
            for (name, head), rows in zip(heads, look(), strict=True):
                found = self.query_one(f"#{name}", DataTable)
                row = found.cursor_row
                found.clear()
                for cells in fitted(head, rows, self.size.width):
                    # A name is text, whatever markup it looks like.
                    found.add_row(*(Text(cell) for cell in cells), height=1 + cells[-1].count("\n"))
                found.move_cursor(row=min(row, max(0, len(rows) - 1)))

    Top().run()
