"""`weft site`, `weft schema`, `weft check`, `weft completion`: commands about files and the command line."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from weft.cli.output import JsonFlag, SiteArgument, print_json, print_table, say, write_text
from weft.core import quantity
from weft.core.errors import Mistake, SpecError, UsageError
from weft.core.provenance import provenance
from weft.core.specfile import schema as describe
from weft.specs import SITES, load_site
from weft.specs.files import KINDS, load_any

Kind = Literal["site", "job", "scenario", "faults", "policy"]


def list_sites(*, json: JsonFlag = False) -> None:
    """List the built-in sites."""
    sites = [load_site(name) for name in SITES.names()]
    if json:
        print_json([{"name": site.name, "gpus": site.fabric.gpus, "description": site.description} for site in sites])
        return
    rows = [
        (site.name, f"{site.fabric.gpus:,}", f"{site.fabric.planes} x {quantity.RATE.format(site.fabric.port_rate)}",
         str(site.fabric.tiers), site.description)
        for site in sites
    ]  # fmt: skip
    print_table("built-in sites", ("site", "GPUs", "planes", "tiers", "description"), rows, words=(0, 4))


def show_site(site: SiteArgument, /, *, json: JsonFlag = False) -> None:
    """Print a site with everything it inherits, as TOML that can be saved and changed."""
    spec = load_site(site)
    if json:
        print_json({**spec.as_written(), "provenance": provenance(spec.as_written()).as_json()})
        return
    from weft.core.toml import written

    write_text(written(spec.as_written()))


def schema(kind: Annotated[Kind, Parameter(help="Kind of file.")], /, *, json: JsonFlag = False) -> None:  # noqa: ARG001 - it is JSON either way
    """Print the JSON schema of site, job, scenario, faults or policy files; it is JSON with --json and without."""
    print_json(describe(KINDS[kind]))


def check(
    *files: Annotated[
        str,
        Parameter(
            help="Site, job, scenario, faults or policy files, or built-in names; the kind follows from the content."
        ),
    ],
    json: JsonFlag = False,
) -> None:
    """Check files and report every mistake in each."""
    if not files:
        raise UsageError("name at least one file to check")
    found: list[dict[str, str]] = []
    mistakes: list[Mistake] = []
    for file in files:
        try:
            kind, spec = load_any(file)
            found.append({"file": file, "kind": kind, "name": str(spec.as_written().get("name", Path(file).stem))})
        except SpecError as error:
            mistakes += error.mistakes
        except UsageError as error:
            # One file is reported in its own words; among several it must not hide the mistakes of the others.
            if len(files) == 1:
                raise
            mistakes.append(Mistake(file, "", str(error)))
    if mistakes:
        raise SpecError(mistakes)
    if json:
        print_json(found)
        return
    for row in found:
        article = "" if row["kind"] == "faults" else "a "
        say(f"{row['file']}: {article}{row['kind']} called {row['name']}, no mistakes")


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Shell.")], /) -> None:
    """Print the completion script of a shell; save it where that shell looks for completions."""
    from weft.cli.main import app

    write_text(app.generate_completion(shell=shell))
