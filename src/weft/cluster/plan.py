"""`plan`: from a cluster's state to what is to be done; every engine and every replay carries out the same.

`plan(snapshot, now_ms)` is one pass over a fresh `Book`. Who plans again and again keeps a book, tells it what has
changed and calls `decide`, which makes the same pass over it; tests hold the two equal.
"""

from weft.cluster.actions import Action, Wait
from weft.cluster.balloons import balloons
from weft.cluster.book import Book
from weft.cluster.elastic import growth
from weft.cluster.passes import held, queue_pass
from weft.cluster.preemption import orphans, overdue
from weft.cluster.quarantine import health_pass
from weft.cluster.repair import emptied, mend
from weft.cluster.snapshot import Snapshot


def plan(snapshot: Snapshot, now_ms: int) -> tuple[Action, ...]:
    """Return what is to be done with the cluster at `now_ms`; same snapshot, same actions."""
    return decide(Book(snapshot), now_ms)


def decide(book: Book, now_ms: int) -> tuple[Action, ...]:
    """Make one pass over a book and return what is to be done; the book takes it as carried out."""
    book.shares.advance(now_ms)
    actions = [*health_pass(book, now_ms), *mend(book, now_ms), *emptied(book, now_ms)]
    over = [*overdue(book, now_ms), *orphans(book)]
    for action in over:
        book.take_up(action, now_ms)
    actions += over
    actions += queue_pass(book, now_ms)
    actions += growth(book, now_ms)
    actions += balloons(book, now_ms)
    actions += held(book)
    for action in actions:
        if isinstance(action, Wait):
            book.take_up(action, now_ms)
    book.planned_ms = now_ms
    return tuple(actions)
