"""A real API server for the tests that need one, once for all of them; each test has its own pool and namespace."""

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.engines.kubernetes.stage import BARE, CONTROLLER, GRACE_S, NOBODY, Theatre

from weft.engines.kubernetes.commands.installation import install
from weft.testing.control_plane import ControlPlane, assets, missing

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """Give kube-apiserver, etcd and kube-controller-manager on loopback."""
    folder = assets(os.environ)
    if missing(folder):
        why = f"NO API SERVER in {folder}: the tests against a real one did not run; make kube-assets builds it"
        if os.environ.get("WEFT_KUBE_EXPECTED"):
            pytest.fail(why)
        pytest.skip(why)
    with ControlPlane(folder, users=(CONTROLLER, NOBODY)) as one:
        BARE.append(_without_kinds(one))
        asyncio.run(install(one.access()))
        one.start_controllers(grace_s=GRACE_S)
        yield one


def _without_kinds(plane: ControlPlane) -> tuple[int, str]:
    """Return how a command ends on a server that does not know our kinds yet."""
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig())}
    command = [sys.executable, "-c", "from weft.cli.main import run; run()", "jobs", "--on", "."]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.fixture
def theatre(plane: ControlPlane) -> Theatre:
    """Give a namespace, a pool and a team of its own."""
    return Theatre(plane, f"t{os.getpid()}-{next(_NUMBERS)}")
