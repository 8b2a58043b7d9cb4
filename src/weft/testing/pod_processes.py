"""Runs the commands of simulated pods as processes of this machine: a pod really trains and really dies.

There is no container: what a pod mounts is a folder below ours (a claim keeps its own, a node's path is itself), and
its path in the pod is replaced by that folder wherever command or environment name it. Output goes to a file.
"""

import asyncio
import base64
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.resources import CONFIG_MAPS

_WEFT = [sys.executable, "-c", "from weft.cli.main import run; run()"]
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    """What is kept of a pod on an simulated node."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    leaving: bool
    grace_s: int
    item: Mapping[str, Any] | None
    """The whole object, where it is needed to run it."""

    @property
    def key(self) -> str:
        """Return what tells it from all others."""
        return self.uid


class Executor(Protocol):
    """Runs the commands of pods."""

    def start(self, pod: SimulatedPod, ended: Callable[[SimulatedPod, int], None]) -> None:
        """Start a pod's command and call `ended` with its exit status."""
        ...

    async def stop(self, pod: SimulatedPod, grace_s: float) -> None:
        """Ask a pod's command to end, end it after the grace, and return when it has gone."""
        ...

    def lose(self, node: str) -> None:
        """End everything on a node at once, silently."""
        ...


class NoProcesses:
    """An executor that runs nothing: pods run because it is said."""

    def start(self, pod: SimulatedPod, ended: Callable[[SimulatedPod, int], None]) -> None:
        """Start nothing."""

    async def stop(self, pod: SimulatedPod, grace_s: float) -> None:
        """Stop nothing."""

    def lose(self, node: str) -> None:
        """Lose nothing."""


class PodProcesses:
    """Processes of pods, by uid."""

    def __init__(self, folder: Path, client: ApiClient) -> None:
        """Keep volumes and logs below `folder`."""
        self._folder = folder.absolute()
        self._client = client
        self._running: dict[str, tuple[SimulatedPod, asyncio.subprocess.Process]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, pod: SimulatedPod, ended: Callable[[SimulatedPod, int], None]) -> None:
        """Start a pod's command; `ended` hears its exit status."""
        task = asyncio.create_task(self._run(pod, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def log(self, namespace: str, name: str) -> Path:
        """Return the file that holds what a pod has printed."""
        return self._folder / "logs" / namespace / f"{name}.log"

    async def _run(self, pod: SimulatedPod, ended: Callable[[SimulatedPod, int], None]) -> None:
        assert pod.item is not None, "a pod is run from its whole object"
        spec = pod.item["spec"]
        # One after the other, as a kubelet does; the first that fails is the end of the pod.
        code = 0
        for container in (*(spec.get("initContainers") or ()), spec["containers"][0]):
            code = await self._run_container(pod, spec, container)
            if code:
                break
        ended(pod, code)

    async def _run_container(self, pod: SimulatedPod, spec: Mapping[str, Any], container: Mapping[str, Any]) -> int:
        """Run one container's command; returns its exit status as a kubelet reports it."""
        paths = await self._mount(pod, spec, container)
        words = [_moved(word, paths) for word in (*container.get("command", ()), *container.get("args", ()))]
        command = [*_WEFT, *words[1:]] if words[0] == "weft" else words
        given = {one["name"]: _moved(one.get("value", ""), paths) for one in container.get("env") or ()}
        log = self.log(pod.namespace, pod.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        work = _moved(container["workingDir"], paths) if "workingDir" in container else self._work(pod)
        with log.open("ab") as out:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                    env={**os.environ, **given}, cwd=work,
                )  # fmt: skip
            except OSError as error:
                out.write(f"{command[0]}: {error.strerror}\n".encode())
                return _NOT_FOUND
        self._running[pod.uid] = (pod, process)
        code = await process.wait()
        _end_group(process.pid)
        del self._running[pod.uid]
        return code if code >= 0 else 128 - code

    def _work(self, pod: SimulatedPod) -> Path:
        path = self._folder / "pods" / pod.uid
        path.mkdir(parents=True, exist_ok=True)
        return path

    async def _mount(
        self, pod: SimulatedPod, spec: Mapping[str, Any], container: Mapping[str, Any]
    ) -> list[tuple[str, str]]:
        """Return the folder behind every mounted path, the longest path first."""
        sources = {one["name"]: one for one in spec.get("volumes") or ()}
        paths: list[tuple[str, str]] = []
        for mount in container.get("volumeMounts") or ():
            folder = await self._source(pod, sources.get(mount["name"], {"name": mount["name"]}))
            paths.append((mount["mountPath"], str(folder)))
        return sorted(paths, key=lambda pair: -len(pair[0]))

    async def _source(self, pod: SimulatedPod, volume: Mapping[str, Any]) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            folder = self._folder / "claims" / pod.namespace / volume["persistentVolumeClaim"]["claimName"]
        else:
            folder = self._work(pod) / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            held = await self._client.get(CONFIG_MAPS, volume["configMap"]["name"], pod.namespace)
            for name, text in (held.get("data") or {}).items():
                (folder / name).write_text(text, encoding="utf-8")
            for name, data in (held.get("binaryData") or {}).items():
                (folder / name).write_bytes(base64.b64decode(data))
        return folder

    async def stop(self, pod: SimulatedPod, grace_s: float) -> None:
        """Ask a pod's command to end, end it after the grace, and return when it has gone."""
        held = self._running.get(pod.uid)
        if held is None:
            return
        _, process = held
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM if grace_s else signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.1, grace_s)):
                await process.wait()
        _end_group(process.pid)
        await process.wait()

    def lose(self, node: str) -> None:
        """End everything on a node at once, silently."""
        for pod, process in list(self._running.values()):
            if pod.node == node:
                _end_group(process.pid)


def _end_group(pid: int) -> None:
    """End what a pod's program has left behind, as the end of a container would."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _moved(text: str, paths: list[tuple[str, str]]) -> str:
    for inside, outside in paths:
        if text == inside or text.startswith(inside + "/"):
            return outside + text[len(inside) :]
    return text
