"""A job and a site, named in either order: which of two references is which follows from what they are."""

from pathlib import Path

from weft.core.errors import UsageError
from weft.specs import JOBS, SITES
from weft.specs.files import kind_of_file


def job_and_site(one: str, other: str | None, site: str | None = None) -> tuple[str, str]:
    """Return the job and the site among two references, or those of a job and of --site."""
    if other is None:
        if site is None:
            raise UsageError("name a job and a site, in either order: gpt-1t gb200-8x100g-131k, or the site as --site")
        return one, site
    kinds = _kind(one), _kind(other)
    if kinds[0] == kinds[1] and kinds[0] is not None:
        raise UsageError(f"{one} and {other} are both a {kinds[0]}; name a job and a site")
    return (other, one) if kinds[0] == "site" or kinds[1] == "job" else (one, other)


def _kind(reference: str) -> str | None:
    """Return what a reference is as far as its name or its keys say."""
    if reference in SITES.names():
        return "site"
    if reference in JOBS.names():
        return "job"
    return kind_of_file(Path(reference)) if Path(reference).is_file() else None
