"""The next items made in the background while the present one is used."""

import contextlib
import queue
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

_LOOK_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


def prefetch(items: Iterable[Item], depth: int) -> Generator[Item, None, None]:
    """Yield `items` in order while a thread makes up to `depth` of them ahead; its errors are raised where they belong.

    Closing the iterator ends the thread after the item in hand.
    """
    assert depth >= 1, "a prefetch of nothing"
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    closed = threading.Event()

    def hand_over(item: Item | _End) -> None:
        while not closed.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=_LOOK_UP_S)
                return

    def make() -> None:
        try:
            for item in items:
                hand_over(item)
                if closed.is_set():
                    return
            hand_over(_End(None))
        except BaseException as error:  # noqa: BLE001 - it is raised again where the item was wanted
            hand_over(_End(error))

    thread = threading.Thread(target=make, name="weft-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return
    finally:
        closed.set()
        thread.join()
