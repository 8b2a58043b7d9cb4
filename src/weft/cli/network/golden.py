"""`weft simulate golden FOLDER`: recorded results beside what is found for the same inputs."""

from pathlib import Path

from weft.cli.output import print_json, print_table, progress, say
from weft.core.errors import UsageError
from weft.netsim.golden import SHARES, compared, shares_of


def run_golden(folder: str | None, seed: int | None, *, json: bool) -> None:
    """Run every recorded case of a folder and print the shares within 5 and 10 %."""
    if folder is None or not Path(folder).is_dir():
        raise UsageError("name the folder of recorded results: weft simulate golden FOLDER")
    with progress() as watch:
        rows = tuple(compared(Path(folder), seed, watch))
    shares = shares_of(rows)
    if json:
        print_json({"within": list(SHARES), "cases": [row.as_json() for row in rows], "share": shares})
        return
    for what, found in shares.items():
        said = ", ".join(f"{share:.0%} within {limit:.0%}" for share, limit in zip(found, SHARES, strict=True))
        say(f"{what} completion of {len(rows)} cases: {said}")
    columns = (
        "case",
        "transport",
        "flows",
        "recorded mean",
        "found",
        "error",
        "recorded last",
        "found last",
        "error last",
    )
    table = [
        (row.name, row.transport, f"{row.flows:,}", f"{row.recorded_mean_us:.4g} us", f"{row.mean_us:.4g} us",
         f"{row.mean_error:+.1%}", f"{row.recorded_last_us:.4g} us", f"{row.last_us:.4g} us", f"{row.last_error:+.1%}")
        for row in rows
    ]  # fmt: skip
    print_table("recorded and found", columns, table, words=(0, 1))
