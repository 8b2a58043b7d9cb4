"""The wait for a collective: done when its program is, with an error that names the peer where one is gone."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_Work: Any = dist.Work


class MrcWork(_Work):
    """One collective in flight."""

    def __init__(self, what: str, whose: object, outputs: Sequence[torch.Tensor], limit_s: float) -> None:
        """Wait for `what`, called by `whose` group, which fills `outputs`, for `limit_s` at most."""
        super().__init__()
        self._what, self._whose, self._outputs, self._limit_s = what, whose, list(outputs), limit_s
        self._over = False
        # A bare lock, held until the end: an event is made of three of them, which shows in short collectives.
        self._until = threading.Lock()
        self._until.acquire()
        self._error: Exception | None = None
        self._future: Any = None
        self._lock = threading.Lock()
        self.kept: Any = None
        """What must stay alive until the end."""
        self.finish: Callable[[], None] | None = None
        """What is left to do when the program is done."""

    def end(self, error: Exception | None) -> None:
        """Note that it is over."""
        if error is None and self.finish is not None:
            try:
                self.finish()
            except RuntimeError as wrong:
                error = wrong
        with self._lock:
            if self._over:
                return
            self._error = error
            self.kept = self.finish = None
            self._over = True
            future = self._future
        self._until.release()
        if future is not None:
            self._fill(future)

    def _fill(self, future: torch.futures.Future[Any]) -> None:
        if self._error is None:
            future.set_result(self._outputs)
        else:
            future.set_exception(self._error)

    def is_completed(self) -> bool:
        """Return whether it is over."""
        return self._over

    def is_success(self) -> bool:
        """Return whether it is over and went well."""
        return self._over and self._error is None

    def exception(self) -> Exception | None:
        """Return the error that it ended with."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold the result."""
        return self._outputs

    def get_future(self) -> Any:
        """Return a future of the result."""
        with self._lock:
            made = self._future is None
            if made:
                self._future = torch.futures.Future()
            ended = self._over
        if made and ended:
            self._fill(self._future)
        return self._future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is over; raises what went wrong."""
        given = self._limit_s if not timeout else timeout.total_seconds()
        if not self._until.acquire(timeout=min(given, threading.TIMEOUT_MAX)):
            raise RuntimeError(f"Operation timed out: {self._what} of {self._whose} was not over after {given:.1f} s")
        # Others may wait as well.
        self._until.release()
        if self._error is not None:
            raise self._error
        return True


def _values(done: torch.futures.Future[Any]) -> list[torch.Tensor]:
    """Return the results of several futures in one list."""
    return [tensor for one in done.value() for tensor in one.value()]


class Several(_Work):
    """Several collectives that were asked for at once."""

    def __init__(self, works: Sequence[Any]) -> None:
        """Wait for all of `works`."""
        super().__init__()
        self._works = list(works)

    def is_completed(self) -> bool:
        """Return whether all are over."""
        return all(work.is_completed() for work in self._works)

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold the results."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Any:
        """Return a future of all results."""
        whole: Any = torch.futures.collect_all([work.get_future() for work in self._works])
        return whole.then(_values)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until all are over."""
        for work in self._works:
            work.wait(timeout)
        return True
