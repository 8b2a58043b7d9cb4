"""What is refused at once, and in which words."""

from dataclasses import replace

import pytest

from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.node import Node
from weft.cluster.scheduling.admission import admit, admit_team
from weft.core.errors import UsageError

NODES = tuple(Node(number, f"n{number}", 8) for number in range(4))
TEAMS = (Team("red", 16), Team("blue", 8, 8))
GOOD = Job("good", Gang(2, 8), 0, team="red")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (replace(GOOD, gang=Gang(5, 8)), "needs 5 nodes with 8 GPUs each; the cluster has 4"),
        (replace(GOOD, gang=Gang(1, 9)), "the largest has 8 GPUs"),
        (replace(GOOD, gang=Gang(0, 8)), "at least 1 of both"),
        (replace(GOOD, gang=Gang(2, 8, min_nodes=3)), "does not fit"),
        (replace(GOOD, team="green"), "there are: blue, red"),
        (replace(GOOD, team="blue"), "may have at most 8"),
        (replace(GOOD, priority=-1), "a priority of -1; write one from 0 to 1000"),
        (replace(GOOD, id="Nice Name"), "cannot name a job"),
        (replace(GOOD, limit_ms=0), "write a longer one"),
        (replace(GOOD, after=("nobody",)), "'nobody', which is no job here"),
    ],
)
def test_what_can_never_run_is_refused(job: Job, words: str):
    with pytest.raises(UsageError, match=words):
        admit(job, NODES, TEAMS)


def test_what_can_run_is_admitted():
    admit(GOOD, NODES, TEAMS)
    admit(replace(GOOD, after=("first",)), NODES, TEAMS, known={"first"})


@pytest.mark.parametrize("team", [Team("green", 9), Team("green", -1), Team("green", 4, 3), Team("Green", 1)])
def test_a_quota_that_is_not_there_is_refused(team: Team):
    with pytest.raises(UsageError):
        admit_team(team, TEAMS, NODES)


def test_a_quota_that_is_there_is_given():
    admit_team(Team("green", 8), TEAMS, NODES)
