"""A real control plane on this machine: etcd, kube-apiserver and, where wanted, controller manager and scheduler.

For rehearsals, tests and measurements: the programs come from a folder (`make kube-assets` fills one), everything
listens on loopback, state lives in a temporary folder and goes with it. It runs no kubelets; `kubelets` simulates them.
"""

import contextlib
import csv
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from weft.core.errors import FailedError, UsageError
from weft.engines.kubernetes.api.access import Access, load

PROGRAMS = ("kube-apiserver", "etcd")
_READY_S = 120.0
_ADMIN = "weft-admin"
_GRACE_S = 10.0
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class User:
    """Somebody whom the server lets in by a token."""

    name: str
    """What RBAC calls them; "system:serviceaccount:NAMESPACE:NAME" for a service account."""
    groups: tuple[str, ...] = ()
    """Groups that they are in."""

    @property
    def token(self) -> str:
        """Return the token, made from the name: the server is reachable from this machine alone."""
        return "token-" + self.name.replace(":", "-")


ADMIN = User(_ADMIN, ("system:masters",))


def assets(environment: Mapping[str, str]) -> Path:
    """Return the folder with the programs: KUBEBUILDER_ASSETS, or the one that `make kube-assets` fills."""
    home = Path(environment.get("HOME", "/"))
    named = environment.get("KUBEBUILDER_ASSETS") or environment.get("WEFT_KUBE_ASSETS")
    return Path(named) if named else home / ".cache" / "weft" / "kube"


def missing(folder: Path) -> list[str]:
    """Return which of the programs are not in `folder`."""
    return [name for name in PROGRAMS if not (folder / name).is_file()]


def minor_version(folder: Path) -> int:
    """Return the minor version of the programs in `folder`: 20 of Kubernetes v1.20.2."""
    done = subprocess.run(  # noqa: S603 - a program of the folder that the user names
        [str(folder / "kube-apiserver"), "--version"], capture_output=True, text=True, check=False, timeout=_READY_S
    )
    found = re.search(r"v1\.(\d+)\.", done.stdout)
    if found is None:
        raise UsageError(f"{folder / 'kube-apiserver'} names no version; make kube-assets builds one that works")
    return int(found[1])


_NO_PLAIN_PORT = 23
"""From this minor version on no program has a port without TLS, and --port is refused (CHANGELOG-1.23, 1.24)."""
_SCHEDULER_VERSIONS = ((25, "v1"), (22, "v1beta2"), (0, "v1beta1"))
"""Since which minor version which configuration of the scheduler is served (CHANGELOG-1.22 and 1.25)."""


def plain_port_flags(minor: int) -> list[str]:
    """Return what keeps a program from listening without TLS: older ones do unless a flag keeps them from it."""
    return ["--port", "0"] if minor < _NO_PLAIN_PORT else []


def scheduler_configuration(minor: int, kubeconfig: str, requests_per_s: int) -> dict[str, Any]:
    """Return a kube-scheduler's configuration in the version that it reads."""
    version = next(name for since, name in _SCHEDULER_VERSIONS if minor >= since)
    return {
        "apiVersion": f"kubescheduler.config.k8s.io/{version}", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig, "qps": requests_per_s, "burst": 2 * requests_per_s},
        "leaderElection": {"leaderElect": False},
    }  # fmt: skip


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((_HOST, 0))
        return one.getsockname()[1]


@dataclass
class ControlPlane:
    """etcd and an API server that live as long as the `with` block."""

    programs: Path
    """The folder of programs."""
    users: tuple[User, ...] = ()
    """Who is let in beside the administrator."""
    extra: tuple[str, ...] = ()
    """More flags of the API server."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """What runs, by name."""

    def __enter__(self) -> Self:
        """Start both and wait until the server is ready."""
        lacking = missing(self.programs)
        if lacking:
            raise UsageError(f"{' and '.join(lacking)} not found in {self.programs}; make kube-assets builds them")
        self.minor = minor_version(self.programs)
        self.folder = Path(tempfile.mkdtemp(prefix="weft-control-plane-"))
        try:
            self._start_etcd()
            self._start_server()
            self._wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything that was started, the last first."""
        for name in reversed(list(self.processes)):
            self.stop(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a program of the folder; it ends when this process does."""
        # setpriv makes the kernel end the program with us, even if we are killed.
        guard = shutil.which("setpriv")
        prefix = [guard, "--pdeathsig", "KILL"] if guard else []
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603 - programs of the folder that the user names
                [*prefix, str(self.programs / name), *command], stdout=log, stderr=log, start_new_session=True
            )

    def stop(self, name: str) -> None:
        """End one program."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_S if name != "kube-apiserver" else 1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def peak_memory_bytes(self, name: str) -> int:
        """Return the most memory that a program has held so far."""
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def _start_etcd(self) -> None:
        self._etcd = f"http://{_HOST}:{_free_port()}"
        peer = f"http://{_HOST}:{_free_port()}"
        command = ["--data-dir", str(self.folder / "etcd"), "--listen-client-urls", self._etcd,
                   "--advertise-client-urls", self._etcd, "--listen-peer-urls", peer,
                   "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                   "--quota-backend-bytes", str(4 * 2**30)]  # fmt: skip
        self.start("etcd", command)

    def _start_server(self) -> None:
        certificates = self.folder / "certificates"
        certificates.mkdir()
        key = self.folder / "accounts.key"
        openssl = shutil.which("openssl")
        if openssl is None:
            raise UsageError("openssl is needed to make the key of service accounts; install it")
        subprocess.run(  # noqa: S603 - found on the path
            [openssl, "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(key)],
            check=True, capture_output=True,
        )  # fmt: skip
        with (self.folder / "tokens.csv").open("w", encoding="utf-8", newline="") as tokens:
            rows = csv.writer(tokens)
            for user in (ADMIN, *self.users):
                rows.writerow([user.token, user.name, user.name, ",".join(user.groups)])
        self.port = _free_port()
        issuer = f"https://{_HOST}:{self.port}"
        command = [
            "--etcd-servers", self._etcd, "--secure-port", str(self.port), "--bind-address", _HOST,
            "--advertise-address", _HOST, "--cert-dir", str(certificates),
            "--token-auth-file", str(self.folder / "tokens.csv"), "--authorization-mode", "RBAC",
            "--service-account-issuer", issuer, "--service-account-key-file", str(key),
            "--service-account-signing-key-file", str(key), "--service-cluster-ip-range", "10.0.0.0/24",
            "--disable-admission-plugins", "ServiceAccount", "--allow-privileged=true",
            "--max-requests-inflight", "2000",
            "--max-mutating-requests-inflight", "1000", *self.extra,
        ]  # fmt: skip
        self.start("kube-apiserver", command)

    def _wait_ready(self) -> None:
        url = f"https://{_HOST}:{self.port}/readyz"
        # The server makes its own certificate when it starts; until it has, there is nothing to check it against.
        unchecked = ssl._create_unverified_context()  # noqa: S323, SLF001 - loopback, a server that we started ourselves
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {ADMIN.token}"})
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise FailedError(f"{name} ended at once:\n{self.log(name)}")
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(request, context=unchecked, timeout=5),  # noqa: S310
            ):
                return
            time.sleep(0.1)
        raise FailedError(f"kube-apiserver was not ready after {_READY_S:.0f} s:\n{self.log('kube-apiserver')}")

    def log(self, name: str) -> str:
        """Return the last lines that a program has written."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-20:])

    def kubeconfig(self, user: User = ADMIN, *, server: str | None = None) -> Path:
        """Write the kubeconfig of `user` and return its path."""
        path = self.folder / f"{user.token}.kubeconfig"
        cluster: dict[str, Any] = {"server": server or f"https://{_HOST}:{self.port}"}
        if server is None:
            cluster["certificate-authority"] = str(self.folder / "certificates" / "apiserver.crt")
        entry = {"cluster": "local", "user": user.name}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "local",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": user.name, "user": {"token": user.token}}],
            "contexts": [{"name": "local", "context": entry}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        path.chmod(0o600)
        return path

    def access(self, user: User = ADMIN) -> Access:
        """Return the access of `user`."""
        return load(None, {}, self.kubeconfig(user))

    def start_controllers(
        self, controllers: str = "nodelifecycle,disruption,garbagecollector", grace_s: int = 40
    ) -> None:
        """Start kube-controller-manager with some of its controllers."""
        command = [
            "--kubeconfig", str(self.kubeconfig()), "--controllers", controllers, "--leader-elect=false",
            "--bind-address", _HOST, "--secure-port", str(_free_port()), *plain_port_flags(self.minor),
            "--cert-dir", str(self.folder / "controllers"), "--node-monitor-grace-period", f"{grace_s}s",
            "--node-monitor-period", "1s", "--kube-api-qps", "500", "--kube-api-burst", "1000",
        ]  # fmt: skip
        self.start("kube-controller-manager", command)

    def start_scheduler(self, requests_per_s: int = 10_000) -> None:
        """Start kube-scheduler with its request limit lifted to `requests_per_s`."""
        document = scheduler_configuration(self.minor, str(self.kubeconfig()), requests_per_s)
        if self.minor < _NO_PLAIN_PORT:
            # Otherwise it listens on every address.
            document |= {name: f"{_HOST}:{_free_port()}" for name in ("healthzBindAddress", "metricsBindAddress")}
        path = self.folder / "scheduler.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        command = ["--config", str(path), "--bind-address", _HOST, "--secure-port", str(_free_port()),
                   *plain_port_flags(self.minor), "--cert-dir", str(self.folder / "scheduler")]  # fmt: skip
        self.start("kube-scheduler", command)
