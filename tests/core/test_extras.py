"""Optional packages: what brings one that is missing is said by weft's own metadata."""

import re
from importlib.metadata import distribution, packages_distributions

import pytest

from weft.core.extras import MissingPackageError, missing, need, remedy


def optional() -> set[str]:
    """Return the distributions that only extras bring."""
    lines = distribution("weft").requires or []
    return {re.split(r"[<>=;\[ ]", line)[0].lower() for line in lines if "extra ==" in line}


def test_every_module_of_an_optional_package_has_a_remedy():
    for module, providers in packages_distributions().items():
        own = {name.lower().replace("_", "-") for name in providers} & optional()
        # Compiled parts beside a package are never what is imported first.
        if own and not module.startswith("_") and (module == "google" or len(providers) == 1):
            words = {name.replace("-", "_") for name in own} | {"yaml", "google", "pynvml"}
            if module in words:
                assert "pip install 'weft[" in (remedy(module) or ""), module


def test_the_smallest_extra_that_brings_it_is_named():
    assert remedy("torch.distributed") == "this needs torch, which is not installed: pip install 'weft[train]'"
    assert "weft[doctor]" in (remedy("polars") or "")
    assert "nvidia-ml-py" in (remedy("pynvml") or "")
    assert remedy("no_such_module") is None


def test_an_import_that_failed_for_an_extra_is_told_from_a_mistake():
    inner = ModuleNotFoundError("No module named 'torch'", name="torch")
    outer = ImportError("cannot import the command")
    outer.__cause__ = inner
    found = missing(outer)
    assert isinstance(found, MissingPackageError)
    assert found.exit_status == 2
    assert missing(ModuleNotFoundError("x", name="weft.nothing")) is None
    assert missing(ImportError("cannot import name")) is None
    need("json", "weft")
    with pytest.raises(MissingPackageError, match="pip install no-such-module"):
        need("no_such_module")
