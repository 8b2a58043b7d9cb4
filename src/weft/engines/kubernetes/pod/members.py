"""One pod's part of a training: it starts its ranks when the rendezvous says go and ends them when it says stop.

The ranks are processes of the trainer; they find each other at the store of the first pod. Every start resumes from the
newest checkpoint on the volume, so the bits are those of a run that nothing happened to.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from weft.training.launch.ranks import Child, RankSetting, spawn, start_fork_server

_PATIENCE_S = 120.0
_RETRY_S = 0.3
_SILENCE_S = 15.0


@dataclass(frozen=True)
class GangPlace:
    """Which part of a gang a pod is."""

    address: str
    """Where the gang meets."""
    port: int
    """At which port."""
    place: int
    """Its place in the gang."""
    gpus: int
    """Ranks on each pod."""
    nodes: int
    """Pods of the gang."""


class Member:
    """The agent of one pod in a gang."""

    def __init__(
        self, part: GangPlace, arguments: Mapping[str, Any], target: str = "weft.training.train:train"
    ) -> None:
        """Be a part of a gang whose ranks each run `target` with `arguments`."""
        self._part = part
        self._target, self._arguments = target, dict(arguments)
        self._children: list[Child] = []
        self._work: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asked = False
        self.ending = ""
        """How it ended: "finished", "stopped", or empty where the others were lost."""

    async def run(self) -> None:
        """Take part until the training is over, or the others are lost for good."""
        start_fork_server()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        try:
            while not self.ending and loop.time() < deadline:
                try:
                    reader, self._writer = await asyncio.open_connection(self._part.address, self._part.port)
                except OSError:
                    await asyncio.sleep(_RETRY_S)
                    continue
                await self._talk(reader)
                await self._end()
                self._writer.close()
                deadline = loop.time() + _PATIENCE_S
        finally:
            await self._end()

    def ask(self) -> None:
        """Pass on somebody's wish to stop: the ranks save a checkpoint and end after this step."""
        self._asked = True
        for child in self._children:
            if child.process.pid is not None and child.process.is_alive():
                os.kill(child.process.pid, signal.SIGTERM)
        if not self._children:
            self.ending = "stopped"
            if self._writer is not None:
                self._writer.close()

    async def _talk(self, reader: asyncio.StreamReader) -> None:
        self._say({"say": "here"})
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            while line := await _line(reader):
                word = json.loads(line)
                match word["say"]:
                    case "go":
                        self._work = asyncio.create_task(self._ranks(word["generation"], word["port"]))
                    case "stop":
                        await self._end()
                        self._say({"say": "idle"})
                    case "bye":
                        self.ending = self.ending or "finished"
                        return
                    case _:
                        self._say({"say": "beat"})

    def _say(self, word: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps({"place": self._part.place, **word}).encode() + b"\n")

    async def _ranks(self, generation: int, port: int) -> None:
        """Start this pod's ranks and wait for them."""
        part = self._part
        first, ranks = part.place * part.gpus, part.nodes * part.gpus
        settings = [
            RankSetting(first + number, ranks, port, generation, host=part.address) for number in range(part.gpus)
        ]
        self._children = [spawn(self._target, one, self._arguments) for one in settings]
        results: dict[int, Any] = {}
        open_ = dict(enumerate(self._children))
        while open_:
            ready = await asyncio.to_thread(wait, [child.pipe for child in open_.values()], 0.5)
            for number in [number for number, child in open_.items() if child.pipe in ready]:
                done = _heard(open_[number], number, results)
                if done is False:
                    self._children_end()
                    self._say({"say": "failed"})
                    return
                if done:
                    del open_[number]
        state = "stopped" if self._asked else "finished"
        self.ending = state if self._asked else self.ending
        self._children = []
        self._say({"say": "done", "state": state})

    async def _end(self) -> None:
        """End the ranks that run, at once: a collective in flight does not hear."""
        if self._work is not None:
            self._work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._work
            self._work = None
        self._children_end()

    def _children_end(self) -> None:
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.process.join()
            child.pipe.close()
        self._children = []


async def _line(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(_SILENCE_S):
        return await reader.readline()


def _heard(child: Child, number: int, results: dict[int, Any]) -> bool | None:
    """Take in one message of a rank; returns true when it is done, false when it has failed, else nothing."""
    try:
        kind, content = child.pipe.recv()
    except (EOFError, OSError):
        return number in results
    if kind == "failed":
        return False
    if kind == "done":
        results[number] = content
        return True
    return None
