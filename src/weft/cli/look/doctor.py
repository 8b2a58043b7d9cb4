"""`weft doctor`: reads anybody's files of a training and says what is slow, stuck or wrong, and who is to blame."""

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft import api
from weft.cli.output import JsonFlag, print_json, print_table, progress, say, writing, written_to
from weft.core.errors import FailedError, UsageError
from weft.core.provenance import provenance
from weft.core.quantity import counted
from weft.doctor.examination import Examination, examine_evidence
from weft.doctor.expected import expectation
from weft.doctor.gather import gather
from weft.doctor.live import watch_job
from weft.doctor.readers.evidence import Evidence

_LISTED_FILES = 12
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0


def doctor(
    *paths: Annotated[
        str, Parameter(help="Files, folders or patterns: traces, logs, dumps, tables; also packed by gzip, bzip2, xz.")
    ],
    job: Annotated[str | None, Parameter(help="Job that ran, to compare with what is expected; needs --site.")] = None,
    site: Annotated[str | None, Parameter(help="Site that it ran on; needs --job.")] = None,
    page: Annotated[
        Path | None,
        Parameter(name="--html", help="Write the answer as a page to FILE."),
        written_to("--html", ".html", ".htm"),
    ] = None,
    perfetto: Annotated[
        Path | None,
        Parameter(help="Write a typical step with the verdict marked to FILE, for Perfetto."),
        written_to("--perfetto", ".json"),
    ] = None,
    live: Annotated[
        bool, Parameter(negative="", help="Go on while the job runs; a line whenever the answer changes.")
    ] = False,
    every: Annotated[float, Parameter(help="Seconds between two looks with --live.")] = 5.0,
    json: JsonFlag = False,
) -> None:
    """Find out whether a training is as fast as it should be, and if not, who is to blame.

    Reads profiler traces, tables of operations, flight recorder dumps, Chakra traces, NCCL RAS reports and logs,
    nccl-tests, MLPerf, torchtitan, Megatron-LM and NeMo logs, device counters and runs of weft.
    Example: weft doctor traces/ log.txt.gz
    """
    if not paths:
        raise UsageError("name at least one file, folder or pattern, as in weft doctor traces/")
    if (job is None) != (site is None):
        raise UsageError("--job and --site go together: both say what to expect")
    if live:
        _follow(paths, every, alone=not json and page is None and perfetto is None and job is None)
        return
    expected = None if job is None or site is None else expectation(api.plan(job, site))
    with progress() as watch:
        evidence = gather(paths, watch)
    _refuse_unread(evidence)
    found = examine_evidence(evidence, expected)
    if page is not None:
        from weft.doctor.page import page_of

        _write(page, page_of(found))
    if perfetto is not None:
        from weft.doctor.trace_file import trace_of

        _write(perfetto, json_format.dumps(trace_of(found)))
    if json:
        asked = {"paths": list(paths), "job": job, "site": site}
        print_json({**found.as_json(), "provenance": provenance(asked).as_json()})
        return
    _print(found)
    for written in (page, perfetto):
        if written is not None:
            say(f"written: {written}")


def _refuse_unread(evidence: Evidence) -> None:
    """Raise where not one file could be read."""
    sources = evidence.sources
    if any(source.reader for source in sources):
        return
    if len(sources) == 1:
        raise UsageError(f"{sources[0].path} could not be read: it {sources[0].found}")
    reasons = [f"{one.path} {one.found}" for one in sources[:_LISTED_FILES]]
    raise UsageError("\n  ".join([f"none of {len(sources)} files could be read", *reasons]))


def _follow(paths: Sequence[str], every: float, *, alone: bool) -> None:
    """Look at a running job again and again."""
    if not alone:
        raise UsageError("--live prints lines; leave --json, --html, --perfetto, --job and --site out")
    if not _SHORTEST_S <= every <= _LONGEST_S:
        raise UsageError(f"--every {every:g}: write {_SHORTEST_S:g} to {_LONGEST_S:g} seconds")
    watch_job(paths, every, say)


def _write(target: Path, text: str) -> None:
    with writing(target) as part:
        try:
            part.write_text(text, encoding="utf-8")
        except OSError as error:
            raise FailedError(f"{target} cannot be written: {error.strerror}") from None


def _print(found: Examination) -> None:
    """Print the verdict first, then why, then what was read."""
    from weft.doctor.page import label, shown

    say(found.verdict())
    findings = found.findings()
    for number, one in enumerate(findings, 1):
        hours = found.gpu_hours_a_day(one)
        share = f", {one.cost_share:.1%} of GPU time" if one.cost_share else ""
        share += f": {hours:,.3g} GPU-hours a day" if hours else ""
        say(f"\n{number}. {one.verdict}: {one.subject or one.cause} (confidence {one.confidence:.0%}{share})")
        if number > 1 or one.sentence != found.verdict():
            say(f"   {one.sentence}")
        for line in one.evidence:
            say(f"   - {line}")
    for name, section in found.sections.items():
        if section.figures:
            rows = [(label(key), shown(value)) for key, value in section.figures.items()]
            say("")
            print_table(name, ("figure", "value"), rows)
    sources = found.evidence.sources
    rows = [(Path(one.path).name, one.reader or "not read", one.found) for one in sources[:_LISTED_FILES]]
    more = f", the first {_LISTED_FILES}" if len(sources) > _LISTED_FILES else ""
    print_table(f"{counted(len(sources), 'file')}{more}", ("file", "kind", "found"), rows, words=(0, 1, 2))
