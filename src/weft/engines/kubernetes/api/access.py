"""How to reach an API server: kubeconfig files, tokens, certificates and plugins, read as kubectl reads them.

It only reads; `api_client` connects. The environment is an argument, because only commands read it. A wrong file, a
missing context or a plugin that fails is the user's mistake and gives one sentence.
"""

import base64
import binascii
import json
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from weft.core.errors import UsageError
from weft.core.input_files import read_text

_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLUGIN_S = 60
_EARLY = timedelta(seconds=30)


@dataclass(frozen=True)
class Plugin:
    """A program that hands out credentials (`users[].user.exec`)."""

    command: tuple[str, ...]
    """What is run."""
    environment: tuple[tuple[str, str], ...]
    """What is added to its environment."""
    version: str
    """The API version in which it speaks."""


@dataclass(frozen=True)
class Credential:
    """What one request carries, and until when."""

    token: str | None = None
    """Bearer token, where there is one."""
    expires: datetime | None = None
    """When it has to be asked for again."""

    def fresh(self, now: datetime) -> bool:
        """Return whether it may still be used at `now`."""
        return self.expires is None or now < self.expires - _EARLY


@dataclass(frozen=True)
class Access:
    """A server and how to be let in."""

    server: str
    """Base address, without a slash at the end."""
    context: str
    """What the user calls it."""
    namespace: str = "default"
    """Where objects go that name no other."""
    tls: ssl.SSLContext | None = None
    """Certificates, for https."""
    token: str | None = None
    """A bearer token that does not change."""
    token_file: Path | None = None
    """A file that holds a token which others renew; read again every minute."""
    basic: tuple[str, str] | None = None
    """User and password, where a server still takes them."""
    plugin: Plugin | None = None
    """A program that hands out tokens."""
    server_name: str | None = None
    """The name in the server's certificate, where it is not the one in the address."""

    def credential(self, now: datetime, environment: Mapping[str, str]) -> Credential:
        """Return what a request has to carry."""
        if self.token_file is not None:
            return Credential(_read(self.token_file, "the token file").strip(), now + timedelta(minutes=1) + _EARLY)
        if self.plugin is not None and self.token is None:
            return ask_plugin(self.plugin, environment)
        return Credential(self.token)


def _read(path: Path, what: str) -> str:
    try:
        return read_text(path, _LARGEST_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{what} {path} cannot be read: {reason}") from None


def files(environment: Mapping[str, str]) -> list[Path]:
    """Return the kubeconfig files that count: those in KUBECONFIG, or the one in the home folder."""
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(":") if part]
    return named or [Path(environment.get("HOME", "/")) / ".kube" / "config"]


def load(context: str | None, environment: Mapping[str, str], config: Path | None = None) -> Access:
    """Return the access of `context`, or of the current one; `config` stands in for KUBECONFIG."""
    paths = [config] if config is not None else files(environment)
    found = [path for path in paths if path.exists()]
    if not found:
        if context is None and config is None and "KUBERNETES_SERVICE_HOST" in environment:
            return in_pod(environment)
        raise UsageError(f"no kubeconfig at {', '.join(map(str, paths))}; set KUBECONFIG or give --kubeconfig FILE")
    merged = _merge(found)
    name = context or merged["current-context"]
    if not name:
        known = ", ".join(sorted(merged["contexts"])) or "none"
        raise UsageError(f"{found[0]} has no current context; name one with --on CONTEXT (it knows {known})")
    entry = _entry(merged, "contexts", name, found[0])
    cluster = _entry(merged, "clusters", entry.get("cluster"), found[0])
    user = _entry(merged, "users", entry["user"], found[0]) if entry.get("user") else {}
    return _access(name, entry, cluster, user)


def in_pod(environment: Mapping[str, str]) -> Access:
    """Return the access of a pod's own service account."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    authority = _IN_POD / "ca.crt"
    tls = ssl.create_default_context(cafile=str(authority)) if authority.exists() else ssl.create_default_context()
    namespace = _IN_POD / "namespace"
    return Access(
        server=f"https://{host}:{port}",
        context="in-cluster",
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "default",
        tls=tls,
        token_file=_IN_POD / "token",
    )


_LARGEST_FILE_BYTES = 4 * 2**20
_LISTS = {"contexts": "context", "clusters": "cluster", "users": "user"}


def _merge(paths: list[Path]) -> dict[str, Any]:
    """Join kubeconfig files: the first one that names a thing wins, and relative paths belong to their own file."""
    merged: dict[str, Any] = {"current-context": "", "contexts": {}, "clusters": {}, "users": {}}
    for path in paths:
        try:
            document = yaml.safe_load(_read(path, "the kubeconfig"))
        except (RecursionError, ValueError):
            raise UsageError(f"the kubeconfig {path} is not YAML that weft reads: too deep, or odd values") from None
        except yaml.YAMLError as error:
            where = getattr(error, "problem_mark", None)
            line = f" (line {where.line + 1})" if where is not None else ""
            raise UsageError(f"the kubeconfig {path} is not YAML{line}") from None
        if not isinstance(document, dict):
            raise UsageError(f"the kubeconfig {path} is empty; it needs clusters, users and contexts")
        merged["current-context"] = merged["current-context"] or document.get("current-context") or ""
        for plural, singular in _LISTS.items():
            for one in document.get(plural) or []:
                if not isinstance(one, dict) or "name" not in one or not isinstance(one.get(singular), dict):
                    raise UsageError(f"the kubeconfig {path} has an entry in {plural} without name or {singular}")
                merged[plural].setdefault(one["name"], {**one[singular], ".folder": path.parent})
    return merged


def _entry(merged: Mapping[str, Any], plural: str, name: Any, path: Path) -> dict[str, Any]:
    try:
        return merged[plural][name]
    except (KeyError, TypeError):
        known = ", ".join(sorted(map(str, merged[plural]))) or "none"
        raise UsageError(f"{path} has no {_LISTS[plural]} {name!r}; it knows {known}") from None


def _access(name: str, entry: Mapping[str, Any], cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Access:
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        raise UsageError(f"context {name!r}: the cluster's server is {server!r}; write https://HOST:PORT")
    plugin = None
    if isinstance(run := user.get("exec"), dict):
        added = tuple((one["name"], one["value"]) for one in run.get("env") or [])
        command = (str(run.get("command", "")), *map(str, run.get("args") or []))
        plugin = Plugin(command, added, str(run.get("apiVersion", "client.authentication.k8s.io/v1")))
    elif "auth-provider" in user:
        raise UsageError(f"context {name!r} uses an auth-provider, which Kubernetes 1.26 dropped; use an exec plugin")
    token_file = user.get("tokenFile")
    basic = (str(user["username"]), str(user.get("password", ""))) if "username" in user else None
    return Access(
        server=server.rstrip("/"),
        context=name,
        namespace=entry.get("namespace") or "default",
        tls=_tls(name, cluster, user) if server.startswith("https://") else None,
        token=user.get("token"),
        token_file=None if token_file is None else _beside(user, token_file),
        basic=basic,
        plugin=plugin,
        server_name=cluster.get("tls-server-name"),
    )


def _beside(entry: Mapping[str, Any], path: str) -> Path:
    return Path(entry[".folder"]) / path


def _data(name: str, entry: Mapping[str, Any], key: str) -> bytes | None:
    """Return what `key` holds, inline or in a file."""
    inline, path = entry.get(f"{key}-data"), entry.get(key)
    if inline is not None:
        try:
            return base64.b64decode(inline, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise UsageError(f"context {name!r}: {key}-data is not base64") from None
    return None if path is None else _read(_beside(entry, path), f"context {name!r}: the {key}").encode()


def _tls(name: str, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = _data(name, cluster, "certificate-authority")
    certificate, key = _data(name, user, "client-certificate"), _data(name, user, "client-key")
    try:
        context = ssl.create_default_context(cadata=None if authority is None else authority.decode())
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None and key is not None:
            # ssl reads certificates from files only; they are gone again before anybody can look.
            with tempfile.NamedTemporaryFile() as pair:
                pair.write(certificate + b"\n" + key)
                pair.flush()
                context.load_cert_chain(pair.name)
    except (ssl.SSLError, ValueError, UnicodeDecodeError):
        raise UsageError(f"context {name!r}: a certificate or key in the kubeconfig is not valid PEM") from None
    return context


def ask_plugin(plugin: Plugin, environment: Mapping[str, str]) -> Credential:
    """Run a credential plugin and return what it hands out."""
    order = {"apiVersion": plugin.version, "kind": "ExecCredential", "spec": {"interactive": False}}
    added = dict(plugin.environment)
    try:
        done = subprocess.run(  # noqa: S603 - the user's kubeconfig names the program
            plugin.command,
            env={**environment, **added, "KUBERNETES_EXEC_INFO": json.dumps(order)},
            capture_output=True,
            timeout=_PLUGIN_S,
            check=True,
        )
        status = json.loads(done.stdout)["status"]
        expires = status.get("expirationTimestamp")
        when = None if expires is None else datetime.fromisoformat(expires).astimezone(UTC)
        return Credential(status["token"], when)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it gave no token"
        raise UsageError(f"the credential plugin {plugin.command[0]!r} of the kubeconfig failed: {what}") from None
