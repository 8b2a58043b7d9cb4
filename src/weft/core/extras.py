"""Optional packages: which extra of weft brings a package that is not installed.

The answer is read from weft's own metadata, so that `pyproject.toml` is the only place that lists what an extra holds.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from types import MappingProxyType

from weft.core.errors import UsageError

_OTHER_NAMES: Mapping[str, str] = MappingProxyType({"yaml": "pyyaml", "google": "protobuf", "pynvml": "nvidia-ml-py"})
"""Distributions whose package is called otherwise; a distribution that is not installed cannot be asked."""
_REQUIREMENT = re.compile(r"""^([\w.-]+)[^;]*;\s*extra\s*==\s*["']([\w-]+)["']""")


class MissingPackageError(UsageError):
    """A package that is not part of the base installation is missing; the text says what to install."""


def need(*modules: str, extra: str | None = None) -> None:
    """Raise with what to install where one of `modules` is not installed; call it before anything is done.

    `extra` is the one to name where several bring a package.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingPackageError(
                remedy(module, extra) or f"{module} is not installed: pip install {_distribution(module)}"
            )


def missing(error: BaseException | None) -> MissingPackageError | None:
    """Return what to say of an import that failed because an extra is missing; nothing where it failed otherwise."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name and (text := remedy(error.name)):
            return MissingPackageError(text)
        error = error.__cause__ or error.__context__
    return None


def remedy(module: str, extra: str | None = None) -> str | None:
    """Return what brings `module`, as a sentence, by `extra` where it does; nothing where no extra of weft does."""
    name = _distribution(module)
    extras = _extras()
    bringing = [extra for extra, held in extras.items() if name in held]
    if not bringing:
        return None
    if extra not in bringing:
        # Several extras bring some packages: the smallest one is the shortest way.
        extra = min(bringing, key=lambda each: len(extras[each]))
    return f"this needs {name}, which is not installed: pip install 'weft[{extra}]'"


def _distribution(module: str) -> str:
    top = module.partition(".")[0]
    return _OTHER_NAMES.get(top, top.replace("_", "-"))


def _extras() -> Mapping[str, frozenset[str]]:
    """Return what each extra of the installed weft holds, by names of distributions."""
    found: dict[str, set[str]] = {}
    for name, extra in _requirements():
        found.setdefault(extra, set()).add(name)
    return {extra: frozenset(held) for extra, held in found.items()}


def _requirements() -> Iterator[tuple[str, str]]:
    try:
        lines = distribution("weft").requires or []
    except PackageNotFoundError:
        # Sources on a path, without an installation.
        return
    for line in lines:
        if match := _REQUIREMENT.match(line):
            yield re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]
