"""Commands of other distributions: found when they are called, and what is said where they are not installed."""

import pytest
from cyclopts import App

from weft.cli import extensions
from weft.cli.main import main


def provides(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    monkeypatch.setattr(extensions, "entry_point", lambda group, name: found)


@pytest.mark.parametrize("words", [(), ("up",), ("up", "--hosts", "2"), ("exec", "0", "--", "true"), ("--nonsense",)])
def test_a_command_that_is_not_installed_says_what_to_install_whatever_is_asked(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    provides(monkeypatch, None)
    refuse = getattr(extensions, "lab")  # noqa: B009 - a name that the module makes when it is asked for
    with pytest.raises(Exception, match=r"pip install 'weft\[lab\]'") as error:
        refuse(list(words), exit_on_error=False, print_error=False)
    assert getattr(error.value, "exit_status", None) == 2


def test_an_installed_command_is_the_one_of_its_distribution(monkeypatch: pytest.MonkeyPatch):
    theirs = App(name="lab")
    provides(monkeypatch, theirs)
    assert getattr(extensions, "lab") is theirs  # noqa: B009 - the same


def test_there_is_no_command_that_nobody_promised():
    with pytest.raises(AttributeError, match="laboratory"):
        getattr(extensions, "laboratory")  # noqa: B009 - the same


def test_help_lists_the_lab_without_looking_for_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def never(group: str, name: str) -> object:
        raise AssertionError(f"{name} of {group} was looked for")

    monkeypatch.setattr(extensions, "entry_point", never)
    assert main(["--help"]) == 0
    assert "lab" in capsys.readouterr().out
