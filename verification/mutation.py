"""Do the tests notice when a rule is changed? One small change at a time, in a copy of the tree, and the tests beside it.

`python -m verification.mutation --sample 150 --seed 1` draws changes over the rules and decisions, runs for each the
tests that are mapped to its file (its own; with `--deep` the rest of its package's too), and prints what they noticed; it
ends with status 1 below the floor. A change that hangs counts as noticed. Some changes mean nothing, and some are noticed
only by tests that are not asked: the score is a lower bound.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from typing_extensions import override

ROOT = Path(__file__).parents[1]
FLOOR = 0.8
_PATIENCE_S, _SLOWER, _LONGEST_S = 20.0, 4.0, 900.0
"""A run has this long, and so many times what it takes without a change."""


@dataclass(frozen=True)
class Package:
    """Files that are changed, and the tests that should notice."""

    name: str
    files: tuple[str, ...]
    """Globs below src/weft."""
    tests: tuple[str, ...]
    """Asked after the test of the same name as the file."""


PACKAGES = (
    Package("mrc", ("mrc/rules/*.py", "mrc/rules/congestion/*.py"), ("tests/mrc",)),
    Package("wire", ("mrc/wire/*.py",), ("tests/mrc/wire",)),
    Package("cluster", ("cluster/*.py", "cluster/[!r]*/*.py", "cluster/recovery/*.py"), ("tests/cluster",)),
    Package(
        "planning", ("planning/run/goodput.py", "planning/cost_model/arithmetic.py", "planning/legality.py"),
        ("tests/planning/run", "tests/planning/cost_model", "tests/planning/test_legality.py"),
    ),
    Package(
        "training", ("training/sdc/voting.py", "training/sdc/checksums.py", "training/sdc/bit_flips.py",
                     "training/checkpoint/manifest.py", "training/recovery/piece.py",
                     "training/recovery/copy_placement.py", "training/data/permutation.py"),
        ("tests/training/sdc/test_voting.py", "tests/training/sdc/test_checksums.py",
         "tests/training/checkpoint/test_manifest.py", "tests/training/recovery/test_pieces.py",
         "tests/training/recovery/test_copy_placement.py", "tests/training/data"),
    ),
)  # fmt: skip

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Mod: ast.FloorDiv,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    package: Package
    file: Path
    line: int
    text: str
    """What is changed, in words."""
    source: str
    """The whole file with the change."""


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield each small change of `node`: words, and what stands there instead (nothing where a statement goes)."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARED:
            other = copy.copy(node)
            other.ops = [_COMPARED[type(operator)]()]
            yield "comparison", other
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _COMPUTED:
            other = copy.copy(node)
            other.op = _COMPUTED[type(node.op)]()
            yield "operator", other
        case ast.BoolOp():
            other = copy.copy(node)
            other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and / or", other
        case ast.If() | ast.While() | ast.IfExp():
            other = copy.copy(node)
            other.test = ast.UnaryOp(ast.Not(), node.test)
            yield "condition negated", other
        case ast.Constant(value=bool(value)):
            yield "truth", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "off by one", ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "doubled", ast.Constant(value * 2 + 1e-6)
        case ast.Call(func=ast.Name(id=("min" | "max") as name)):
            other = copy.copy(node)
            other.func = ast.Name("max" if name == "min" else "min", ast.Load())
            yield "min / max", other
        case _:
            pass
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "statement dropped", None


class _Places(ast.NodeTransformer):
    """Numbers every change of a file; makes the one that is wanted."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.count = wanted, 0
        self.made = ("", 0)

    @override
    def visit(self, node: ast.AST) -> ast.AST:
        """Look at a node and what is below it."""
        for text, other in _changed(node):
            if self.count == self.wanted:
                self.made = (text, getattr(node, "lineno", 0))
                self.count += 1
                return ast.Pass() if other is None else other
            self.count += 1
        return self.generic_visit(node)

    @override
    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Go on below, but not into what says nothing about behaviour: annotations, texts, messages of errors."""
        if isinstance(node, ast.Assert | ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr | ast.arg):
            return node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                value: Any = self.visit(node.value)
                node.value = value
            return node
        if isinstance(node, ast.FunctionDef):
            body: list[Any] = [self.visit(each) for each in node.body]
            node.body = body
            return node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return node
        return super().generic_visit(node)


def changes_in(file: Path) -> int:
    """Return how many changes a file allows."""
    places = _Places()
    places.visit(ast.parse(file.read_text(encoding="utf-8")))
    return places.count


def mutant(package: Package, file: Path, number: int) -> Mutant:
    """Return one change of a file, by its number."""
    places = _Places(number)
    tree = places.visit(ast.parse(file.read_text(encoding="utf-8")))
    text, line = places.made
    return Mutant(package, file.relative_to(ROOT), line, text, ast.unparse(ast.fix_missing_locations(tree)) + "\n")


def drawn(sample: int, seed: str, packages: Sequence[Package]) -> list[Mutant]:
    """Return a sample of changes: as many of each package, every change of a package as likely as another."""
    die = random.Random(seed)  # noqa: S311 - drawn again from the same number
    found: list[Mutant] = []
    for place, package in enumerate(packages):
        files = sorted({file for glob in package.files for file in (ROOT / "src/weft").glob(glob)})
        every = [(file, number) for file in files for number in range(changes_in(file))]
        share = sample // len(packages) + (place < sample % len(packages))
        found += [mutant(package, *one) for one in die.sample(every, min(share, len(every)))]
    return found


def _stages(one: Mutant, *, deep: bool) -> list[list[str]]:
    """Return the tests that are asked, the nearest first; all of the package's where there are no near ones."""
    near = [
        str(path.relative_to(ROOT)) for place in one.package.tests for path in _tests_of(ROOT / place, one.file.stem)
    ]
    return [*([near] if near else []), *([list(one.package.tests)] if deep or not near else [])]


def _tests_of(place: Path, stem: str) -> list[Path]:
    return sorted(place.rglob(f"test_{stem}.py")) if place.is_dir() else [place] if place.stem == f"test_{stem}" else []


class Worker:
    """A copy of the tree in which one change at a time is tried."""

    def __init__(self, folder: Path, known_s: dict[tuple[str, ...], float]) -> None:
        """Copy what the tests need; `known_s` is how long tests take, shared by all."""
        self.folder, self._known_s = folder, known_s
        for name in ("src", "tests", "packages", "verification", "examples"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)

    def passes(self, tests: Sequence[str], patience_s: float) -> bool | None:
        """Return whether tests pass; none where they do not end in time."""
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([f"{self.folder}/src", f"{self.folder}/packages/weft-lab/src", os.environ.get("PYTHONPATH", "")]),
            "XDG_CACHE_HOME": str(self.folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_PROFILE": "ci",
        }  # fmt: skip
        program = [
            sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header",
            "-m", "not slow and not root and not kube", "--tb=no", *tests,
        ]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 - our own tests
                program, cwd=self.folder, env=environment, capture_output=True, timeout=patience_s, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        return done.returncode == 0

    def judge(self, one: Mutant, *, deep: bool) -> str:
        """Return what became of a change: killed, timeout or survived."""
        file = self.folder / one.file
        before = file.read_text(encoding="utf-8")
        for tests in _stages(one, deep=deep):
            patience_s = _PATIENCE_S + _SLOWER * self._usual_s(tests)
            file.write_text(one.source, encoding="utf-8")
            try:
                passed = self.passes(tests, patience_s)
            finally:
                file.write_text(before, encoding="utf-8")
            if not passed:
                return "timeout" if passed is None else "killed"
        return "survived"

    def _usual_s(self, tests: Sequence[str]) -> float:
        """Return how long tests take without a change; they must pass, or nothing can be said."""
        known = self._known_s.get(tuple(tests))
        if known is None:
            began = time.monotonic()
            if not self.passes(tests, _LONGEST_S):
                raise SystemExit(f"mutation: {' '.join(tests)} do not pass without a change; nothing can be said")
            known = self._known_s[tuple(tests)] = time.monotonic() - began
        return known


def tried(mutants: Sequence[Mutant], workers: int, *, deep: bool) -> list[str]:
    """Return what became of each change."""
    with tempfile.TemporaryDirectory(prefix="weft-mutation-") as place:
        free: SimpleQueue[Worker] = SimpleQueue()
        known_s: dict[tuple[str, ...], float] = {}
        for number in range(workers):
            free.put(Worker(Path(place) / f"copy-{number}", known_s))

        def judged(one: Mutant) -> str:
            worker = free.get()
            try:
                outcome = worker.judge(one, deep=deep)
            finally:
                free.put(worker)
            mark = "" if outcome != "survived" else "   <- no test noticed"
            print(f"{outcome:8}  {one.package.name:8}  {one.file}:{one.line}  {one.text}{mark}", flush=True)
            return outcome

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(judged, mutants))


def main() -> int:
    """Draw, try, and print the score."""
    parser = argparse.ArgumentParser(prog="python -m verification.mutation")
    parser.add_argument("--sample", type=int, default=150, help="how many changes")
    parser.add_argument("--seed", default="1", help="which ones: a number, or any text, such as a commit")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--floor", type=float, default=FLOOR, help="least share that must be noticed")
    parser.add_argument("--package", action="append", choices=[each.name for each in PACKAGES])
    parser.add_argument("--deep", action="store_true", help="where the nearest tests notice nothing, ask the others")
    given = parser.parse_args()
    packages = [each for each in PACKAGES if not given.package or each.name in given.package]
    mutants = drawn(given.sample, given.seed, packages)
    outcomes = tried(mutants, given.workers, deep=given.deep)
    print(f"\n{'package':10} {'changes':>8} {'killed':>8} {'timeout':>8} {'survived':>9} {'score':>7}")
    for name in [*(each.name for each in packages), "all"]:
        own = [each for one, each in zip(mutants, outcomes, strict=True) if name in (one.package.name, "all")]
        counts = [own.count(each) for each in ("killed", "timeout", "survived")]
        score = 1 - counts[2] / max(1, len(own))
        print(f"{name:10} {len(own):8} {counts[0]:8} {counts[1]:8} {counts[2]:9} {score:7.1%}")
    if score < given.floor:
        print(f"mutation: {score:.1%} is below the floor of {given.floor:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
