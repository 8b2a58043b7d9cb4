"""What is written down is read again as it was, all of a transaction or nothing, also by another store."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cluster.records.job import ENDED, Gang, Job, JobState, Placement
from weft.cluster.records.node import Location, Node, NodeEvidence, NodeState
from weft.core.errors import FailedError, UsageError
from weft.engines.local.launches import Launch
from weft.engines.local.store import JobStore, StoredJob


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "state.sqlite")
    yield store
    store.close()


def stored(number: int, state: JobState = JobState.WAITING, **more: str | int | None) -> StoredJob:
    job = Job(f"j{number}", Gang(2, 4), number, state=state, array=str(more.get("array") or ""), after=("z",))
    if job.holds:
        job = replace(job, placement=Placement((0, 1), 4), start_ms=9)
    key = more.get("key")
    return StoredJob(
        number, job, Launch(("python", "x.py"), environment={"A": "b"}), key=None if key is None else str(key)
    )


def test_a_job_is_read_as_it_was_written(store: JobStore):
    entry = stored(1, JobState.RUNNING, key="k")
    entry.lost, entry.status, entry.result, entry.wait, entry.moved = 2, 75, {"loss": 0.5}, {"code": "quota"}, True
    store.add(entry)
    assert store.find("j1") == entry
    entry.attempt, entry.text, entry.ended_ms = 3, "ended by SIGKILL", 77
    entry.job = replace(entry.job, last_wait_code="nodes")
    store.save(entry)
    assert store.find("j1") == entry
    assert store.find("j2") is None


@pytest.mark.parametrize("state", list(JobState))
def test_a_job_is_open_until_it_has_ended(state: JobState, store: JobStore):
    store.add(stored(1, state))
    assert [entry.job.state for entry in store.open()] == ([] if state in ENDED else [state])
    assert store.endings(("j1", "j2")) == ({"j1": state} if state in ENDED else {})
    assert store.counts() == {str(state): 1}


def test_jobs_are_found_by_their_submission_and_their_array(store: JobStore):
    for number in range(1, 7):
        store.add(stored(number, key=f"k{number % 2}", array="a" if number > 3 else ""))
    assert [entry.number for entry in store.with_key("k0")] == [2, 4, 6]
    assert [entry.number for entry in store.of_array("a")] == [4, 5, 6]
    assert [entry.number for entry in store.newest(2)] == [6, 5]
    assert store.next_number() == 7


def test_a_transaction_that_breaks_off_leaves_nothing(store: JobStore):
    def torn() -> None:
        with store.transaction():
            store.add(stored(1))
            with store.transaction():
                store.note(5, "inside", job="j1")
            raise RuntimeError("torn apart")

    with pytest.raises(RuntimeError, match="torn apart"):
        torn()
    assert store.open() == []
    assert store.history("j1") == []
    assert store.next_number() == 1


def test_what_happened_is_listed_in_order(store: JobStore):
    for at_ms in range(5):
        store.note(at_ms, f"thing {at_ms}", job="j1" if at_ms % 2 else "", node=at_ms)
    assert [line["at_ms"] for line in store.history("j1")] == [1, 3]
    assert [line["text"] for line in store.happenings(2)] == ["thing 4", "thing 3"]


nodes = st.builds(
    Node, st.integers(0, 5), st.text("abc", min_size=1, max_size=4), st.integers(1, 8),
    st.builds(Location, st.integers(0, 9), st.integers(0, 9)), st.sampled_from(list(NodeState)),
    evidence=st.lists(
        st.builds(NodeEvidence, st.just("ecc"), st.integers(0, 99), repair=st.sampled_from(["", "link"])),
        max_size=3,
    ).map(tuple),
    idle_test_ms=st.one_of(st.none(), st.integers(0, 99)),
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.lists(nodes, max_size=4, unique_by=lambda node: node.number))
def test_nodes_are_read_in_the_order_of_their_numbers(found: list[Node]):
    store = JobStore(Path(":memory:"))
    for node in found:
        store.save_node(node)
    assert store.nodes() == sorted(found, key=lambda node: node.number)
    store.forget_nodes()
    assert store.nodes() == []
    store.close()


@pytest.mark.parametrize("value", [None, 0, "text", [1, 2], {"a": {"b": None}}])
def test_facts_are_kept_and_replaced(value: object, store: JobStore):
    assert store.fact("x") is None
    store.save_fact("x", [])
    store.save_fact("x", value)
    assert store.fact("x") == value


def test_a_second_store_sees_what_the_first_wrote_down(tmp_path: Path):
    first = JobStore(tmp_path / "state.sqlite")
    first.add(stored(1, key="k"))
    first.close()
    second = JobStore(tmp_path / "state.sqlite")
    assert second.with_key("k") == [stored(1, key="k")]
    second.close()


def test_a_database_of_another_version_is_refused(tmp_path: Path):
    path = tmp_path / "state.sqlite"
    JobStore(path).close()
    with sqlite3.connect(path) as database:
        database.execute("pragma user_version = 99")
    database.close()
    with pytest.raises(FailedError, match="another version"):
        JobStore(path)


def test_every_commit_is_on_the_disk_before_anybody_hears_of_it(store: JobStore):
    full, wal = 2, "wal"
    assert store._db.execute("pragma synchronous").fetchone()[0] == full
    assert store._db.execute("pragma journal_mode").fetchone()[0] == wal
    store.reopen()
    assert store._db.execute("pragma synchronous").fetchone()[0] == full


def test_a_commit_that_fails_leaves_no_transaction_open(store: JobStore):
    store._db.execute("pragma foreign_keys = on")
    store._db.execute("create table child (of integer references jobs (number) deferrable initially deferred)")

    def childless() -> None:
        # What refers to nobody is found out at the commit, and not before.
        with store.transaction():
            store.add(stored(1))
            store._db.execute("insert into child values (99)")

    with pytest.raises(sqlite3.IntegrityError):
        childless()
    assert not store._db.in_transaction
    with store.transaction():
        store.add(stored(2))
    store.reopen()
    assert [entry.job.id for entry in store.newest(9)] == ["j2"]


def test_another_programs_database_and_no_database_are_named(tmp_path: Path):
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("create table theirs (a)")
    other.close()
    with pytest.raises(UsageError, match="another program's database"):
        JobStore(tmp_path / "other.sqlite")
    (tmp_path / "text.sqlite").write_text("no database, but a text of some length\n" * 99)
    with pytest.raises(UsageError, match="no state of a cluster"):
        JobStore(tmp_path / "text.sqlite")
