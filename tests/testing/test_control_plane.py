"""The programs of a control plane are started with the flags that their version knows."""

from pathlib import Path

import pytest

from weft.core.errors import UsageError
from weft.testing.control_plane import minor_version, plain_port_flags, scheduler_configuration


def _programs(folder: Path, says: str) -> Path:
    program = folder / "kube-apiserver"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("says", "minor", "ports", "version"),
    [
        ("Kubernetes v1.20.2", 20, ["--port", "0"], "v1beta1"),
        ("Kubernetes v1.22.17", 22, ["--port", "0"], "v1beta2"),
        ("Kubernetes v1.24.0", 24, [], "v1beta2"),
        ("Kubernetes v1.36.4", 36, [], "v1"),
        ("Kubernetes v1.37.0-alpha.1", 37, [], "v1"),
    ],
)
def test_flags_follow_the_version(says: str, minor: int, ports: list[str], version: str, tmp_path: Path) -> None:
    assert minor_version(_programs(tmp_path, says)) == minor
    assert plain_port_flags(minor) == ports
    assert scheduler_configuration(minor, "config", 5)["apiVersion"] == f"kubescheduler.config.k8s.io/{version}"


def test_programs_without_a_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no version"):
        minor_version(_programs(tmp_path, "nonsense"))
