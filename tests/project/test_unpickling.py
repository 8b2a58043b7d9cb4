"""No code path of the project unpickles a file, or anything that others can send: a scan of every source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("src", "packages", "verification", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts
)  # fmt: skip
FORBIDDEN = {
    "pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "dbm",
}  # fmt: skip
"""Modules that make code of bytes."""
ADDRESSES = {"src/weft/training/recovery/snapshot_keeper.py"}
"""Where connections of `multiprocessing` have an address that others could find; bytes and JSON go over them."""
EXCHANGES = {
    "all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list", "send_object_list",
    "recv_object_list",
}  # fmt: skip
BETWEEN_RANKS = {
    "src/weft/training/checkpoint/dcp.py", "src/weft/training/checkpoint/state.py", "src/weft/training/sdc/guard.py",
    "src/weft/training/recovery/tiers.py", "src/weft/training/recovery/snapshots.py",
    "src/weft/training/launch/process_group.py",
}  # fmt: skip
"""Where ranks of one job exchange objects over their process group, as docs/security.md says."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def says(call: ast.Call, keyword: str, *, value: bool) -> bool:
    return any(
        each.arg == keyword and isinstance(each.value, ast.Constant) and each.value.value is value
        for each in call.keywords
    )


def wrong_calls(call: ast.Call) -> Iterator[str]:
    name = dotted(call.func)
    last = name.rpartition(".")[2]
    if name in ("torch.load", "torch.serialization.load") and not says(call, "weights_only", value=True):
        yield "torch.load without weights_only=True"
    if name in ("np.load", "numpy.load") and not says(call, "allow_pickle", value=False):
        yield "np.load without allow_pickle=False"
    if says(call, "allow_pickle", value=True):
        yield "allow_pickle=True"
    if name in ("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all"):
        yield f"{name}; use yaml.safe_load"
    if last in ("read_pickle", "load_state_dict_from_url", "no_dist_load") or name in ("eval", "exec", "dcp.load"):
        yield name
    if last == "read_metadata" and name != "read_metadata":
        yield "a reader's own read_metadata unpickles"
    if last == "DefaultLoadPlanner":
        yield "DefaultLoadPlanner unpickles what is no tensor"


def wrong(source: str, shown: str) -> list[str]:
    """Return everything in a source that could unpickle."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [f"imports {each}" for each in modules if each.partition(".")[0] in FORBIDDEN]
        if shown not in ADDRESSES:
            found += [
                f"imports {each}" for each in modules
                if (each.rpartition(".")[2] in ("Client", "Listener") and each.startswith("multiprocessing"))
                or each == "multiprocessing.managers"
            ]  # fmt: skip
        if isinstance(node, ast.Call):
            found += wrong_calls(node)
            if dotted(node.func).rpartition(".")[2] in EXCHANGES and shown not in BETWEEN_RANKS:
                found.append(f"{dotted(node.func)}: ranks exchange objects")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_unpickles(path: Path):
    assert not wrong(path.read_text(), str(path.relative_to(ROOT)))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import dill as d", "import shelve", "from joblib import load",
        "import torch\ntorch.load(f)", "torch.load(f, weights_only=False)", "torch.load(f, weights_only=x)",
        "np.load(f)", "np.load(f, allow_pickle=True)", "numpy.load(f, mmap_mode='r')",
        "from multiprocessing.connection import Client", "from multiprocessing import managers",
        "import multiprocessing.managers", "yaml.load(f, Loader=L)", "FileSystemReader(f).read_metadata()",
        "DefaultLoadPlanner()", "dcp.load(state)", "dist.all_gather_object(a, b)", "eval(text)", "pd.read_pickle(f)",
    ],
)  # fmt: skip
def test_the_scan_sees_what_it_looks_for(source: str):
    assert wrong(source, "src/weft/some.py")


def test_what_has_an_address_takes_no_pickles():
    for shown in ADDRESSES:
        for function in ast.walk(ast.parse((ROOT / shown).read_text())):
            if isinstance(function, ast.FunctionDef) and function.name != "_obey":
                calls = {dotted(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
                # `owner` is a pipe without an address, to the process that made this one.
                assert not {each for each in calls if each.endswith((".recv", ".send"))} - {"owner.send"}, function.name
