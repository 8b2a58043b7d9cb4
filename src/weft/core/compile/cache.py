"""Where compiled rules are stored between runs: folders named by a digest of every source that they are made from.

The sources are computed: the modules of a package in which rules stand, and from there on, every module that gives them
a name, be it a rule or a constant that compiled code freezes. So no list of files can fall behind the code.
"""

import ast
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from weft.core.compile.rules import rules, target, use_cache

_DIGITS = 16
_OWN = "weft."
SHIPPED = Path(__file__).parents[2] / "compiled_code"
"""Code that came with the installation: made by `weft compile --into`, used where version and processor match."""
OBJECT = ".o"
_MAKER = Path(__file__).with_name("objects.py")
LIST, _MOST_LISTED = "sources.txt", 6
_PRIVATE = 0o700


def can_compile() -> bool:
    """Return whether the compiler is installed."""
    return find_spec("numba") is not None


def sources_of(package: str) -> dict[str, Path]:
    """Return the files that compiled rules of a package are made from, by module name.

    Rules of other distributions that are registered by now, such as a plugin's, count too: a specialisation may use
    them.
    """
    found: dict[str, Path] = {}
    waiting = _with_rules(package)
    while waiting:
        module = waiting.pop()
        file = _file_of(module)
        if file is not None and module not in found:
            found[module] = file
            waiting += _imported(module, file)
    return found


def _with_rules(package: str) -> list[str]:
    """Return the modules in which a package's rules stand, and those of rules of other distributions."""
    home = _file_of(package)
    assert home is not None, f"there is no package {package}"
    below = {
        ".".join((package, *file.relative_to(home.parent).with_suffix("").parts)).removesuffix(".__init__")
        for file in home.parent.rglob("*.py")
        if b"\n@rule\n" in file.read_bytes()
    }
    return [*below, *(each.__module__ for name, each in rules().items() if not name.startswith(_OWN))]


@cache
def _imported(module: str, file: Path) -> list[str]:
    """Return the modules of weft, or of the same distribution, that a module takes names from for compiled code.

    What only classes and annotations name is left out: no compiled code is made from it.
    """
    tops = {"weft", module.partition(".")[0]}
    origin: dict[str, str] = {}
    used: set[str] = set()
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in tops:
            origin |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            used |= {each.id for part in (*node.body, *node.decorator_list) for each in _names(part)}
        elif not isinstance(node, ast.ClassDef):
            used |= {each.id for each in _names(node)}
    # A name may be a module itself or something that its parent defines.
    return [
        whole if _file_of(whole) else whole.rpartition(".")[0] for name, whole in sorted(origin.items()) if name in used
    ]


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Name))


@cache
def _file_of(module: str) -> Path | None:
    """Return the file of a module, None where there is none of that name; only its top package is imported."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        return None
    if not rest and spec.submodule_search_locations is None:
        return Path(spec.origin)
    place = Path(spec.origin).parent.joinpath(*rest)
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def digest_of(package: str) -> str:
    """Return a digest of all sources of a package's compiled rules, of the compiler, and of what it compiles for."""
    return _digest(sources_of(package))


def _digest(sources: Mapping[str, Path]) -> str:
    made_by = (sys.implementation.cache_tag or "", version("numba"), version("llvmlite"), *target())
    digest = hashlib.sha256("\0".join(made_by).encode() + _MAKER.read_bytes())
    for module, file in sorted(sources.items()):
        digest.update(module.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:_DIGITS]


def listed_digest(package: str, prefix: str) -> str:
    """Return `digest_of(package)`, by a list of its sources that lies beside stored code where there is one.

    To find all sources takes a tenth of a second. A list is right where every module with a rule is on it and it leads
    to the name of its folder: what those modules import is then what it was when the list was written.
    """
    rule_modules = set(_with_rules(package))
    with suppress(OSError):
        lists = [file for place in (next(homes(prefix)).parent, SHIPPED) for file in place.glob(f"{prefix}-*/{LIST}")]
        for file in sorted(lists, key=os.path.getmtime, reverse=True)[:_MOST_LISTED]:
            modules = file.read_text(errors="replace").split()
            sources = {name: found for name in modules if name.startswith(_OWN) and (found := _file_of(name))}
            whole = len(sources) == len(modules) and rule_modules <= sources.keys()
            if whole and file.parent.name == f"{prefix}-{(digest := _digest(sources))}":
                return digest
    return digest_of(package)


def put(place: Path, content: bytes) -> None:
    """Put a file in place whole, so that another process finds nothing half-done; or leave it where nothing can be."""
    part = place.with_name(f".{place.name}.{os.getpid()}")
    with suppress(OSError):
        part.write_bytes(content)
        part.replace(place)


def homes(name: str, folder: Path | None = None, *, make: bool = False) -> Iterator[Path]:
    """Give the places where what is compiled under a name may be stored, the best first.

    Code is loaded from there, so a place that others can write to is none: the one among temporary files is our own.
    """
    if folder is not None:
        yield folder / name
        return
    caches = os.environ.get("XDG_CACHE_HOME")
    yield (Path(caches) if caches else Path.home() / ".cache") / "weft" / name
    private = Path(tempfile.gettempdir()) / f"weft-{os.getuid()}"
    with suppress(OSError):
        if make:
            private.mkdir(mode=_PRIVATE, exist_ok=True)
        found = private.lstat()
        # lstat, not stat: a link that somebody else put there must not lead us to a folder of theirs.
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == _PRIVATE:
            yield private / name


def is_cached(name: str, folder: Path | None = None, kind: str = "*.nbc") -> bool:
    """Return whether a compiled file of a kind is stored under a name already, or comes with weft."""
    return any(any(home.rglob(kind)) for home in (*homes(name, folder), SHIPPED / name))


def home_of(name: str, folder: Path | None = None) -> Path | None:
    """Return the folder in which what is compiled under a name is stored, made if need be; None where none can be."""
    for home in homes(name, folder, make=True):
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home
    return None


def cache_under(name: str, folder: Path | None = None) -> bool:
    """Store what is compiled from now on under a name; return whether there is a place for it."""
    home = home_of(name, folder)
    if home is not None:
        _unpack(name, home)
        use_cache(str(home))
    return home is not None


def _unpack(name: str, home: Path) -> None:
    """Copy what came with weft under a name to where the user's own is stored, once: numba writes beside what it reads.

    Files are put in place whole, the index of a rule after its code, so that another process finds nothing half-done.
    """
    came = sorted((SHIPPED / name).glob("*.nb[ci]"), key=lambda file: file.suffix)
    for file in came:
        place = home / file.name
        if not place.exists():
            put(place, file.read_bytes())
