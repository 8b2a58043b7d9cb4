"""Health checks of other distributions stand beside weft's own."""

import pytest

from weft.core.errors import UsageError
from weft.engines.health import registry
from weft.engines.health.checks import CheckSetting, Finding, HealthCheck, HealthReport
from weft.engines.health.registry import CHECKS, SUITES, known, named, run


def smells(setting: CheckSetting) -> HealthReport:
    return HealthReport("smell", (Finding("smell", "warning", f"burnt, after {setting.seconds:g} s"),))


SMELL = HealthCheck("smell", "passive", "burnt parts", "any smell", "below 1 s", smells, "matmul")


def provide(monkeypatch: pytest.MonkeyPatch, **checks: object) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: checks)


def test_a_check_of_a_plugin_runs_by_its_name(monkeypatch: pytest.MonkeyPatch):
    provide(monkeypatch, smell=SMELL)
    (report,) = run(["smell"], CheckSetting(seconds=2))
    assert report.findings[0].text == "burnt, after 2 s"
    assert known()["smell"].repair == "matmul"


def test_without_plugins_there_are_weft_s_own():
    assert known() == CHECKS


@pytest.mark.parametrize("name", sorted(CHECKS)[:3] + sorted(SUITES)[:2])
def test_a_plugin_may_not_take_the_name_of_another(name: str, monkeypatch: pytest.MonkeyPatch):
    provide(monkeypatch, **{name: HealthCheck(name, "passive", "", "", "", smells)})
    with pytest.raises(UsageError, match="that there is already"):
        known()


@pytest.mark.parametrize("check", [7, smells, HealthCheck("other", "passive", "", "", "", smells)])
def test_a_plugin_that_is_no_check_of_its_name_is_refused(check: object, monkeypatch: pytest.MonkeyPatch):
    provide(monkeypatch, smell=check)
    with pytest.raises(UsageError, match="is no HealthCheck of that name"):
        named(["matmul"])


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_stands_for_its_checks_each_once(suite: str):
    assert [check.name for check in named([suite, suite, *SUITES[suite]])] == list(SUITES[suite])
