"""The command line: what it prints, and how it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.core.version import VERSION


def run(*arguments: str) -> int:
    return main(list(arguments))


@pytest.mark.parametrize("site", ["gb200-8x100g-131k", "gb200-3tier-64k", "gb200-4x200g-32k", "laptop"])
def test_design_prints_the_promised_json(site: str, capsys: pytest.CaptureFixture[str]):
    assert run("design", site, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    promised = {
        "gpus", "planes", "tiers", "radix", "port_rate_bps", "switches", "optics", "hops_max", "paths_cross_t1", "loss",
        "bisection_bps", "power_w", "ratio_to_three_tier",
    }  # fmt: skip
    assert promised <= set(found)


def test_the_same_question_gets_the_same_bytes(capsys: pytest.CaptureFixture[str]):
    run("design", "--gpus", "4096", "--json")
    first = capsys.readouterr().out
    run("design", "--gpus", "4096", "--json")
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("arguments", [("design", "laptop"), ("design", "--gpus", "4096"), ("site", "list")])
def test_tables_are_plain_text_in_a_pipe(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture_is_drawn_and_is_the_same_each_time(suffix: str, tmp_path: Path):
    pictures = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for picture in pictures:
        assert run("design", "laptop", "--json", "--plot", str(picture)) == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {picture.name for picture in pictures}


BAD = {
    "planes": ('extends = "gb200-8x100g-131k"\n[fabric]\nplanes = 7\n', ["fabric.planes", "7 planes", "planes = 8"]),
    "unknown": ('extends = "laptop"\n[fabric]\nradixx = 3\n', ["fabric.radixx", "did you mean 'radix'"]),
    "negative": ('extends = "laptop"\n[fabric]\nradix = -4\n', ["fabric.radix", "found -4"]),
    "two": ('extends = "laptop"\nnmae = "x"\n[fabric]\nplanes = 0\n', ["2 mistakes", "nmae", "fabric.planes"]),
    "too many": ('extends = "laptop"\n[fabric]\ngpus = 400\n', ["fabric.gpus", "400 GPUs do not fit"]),
    "ratio": ('extends = "laptop"\n[fabric]\noversubscription = "half"\n', ["oversubscription", "'1:1'"]),
    "nodes": ('extends = "gb200-4x200g-32k"\n[fabric]\ngpus = 1023\n', ["whole number of nodes"]),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_wrong_site_names_every_mistake(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text, hints = BAD[case]
    path = tmp_path / "site.toml"
    path.write_text(text)
    assert run("design", str(path)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(hint in err for hint in hints), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("design",),
        ("design", "laptop", "--gpus", "4"),
        ("design", "--gpus", "many"),
        ("design", "--gpus", "-4"),
        ("design", "nowhere.toml"),
        ("design", "."),
        ("design", "labtop"),
        ("design", "laptop", "--plot", "picture.doc"),
        ("desing", "laptop"),
        ("site",),
        ("site", "show", "nothing"),
        ("schema", "people"),
        ("check",),
        ("check", "nowhere.toml"),
        ("--nonsense",),
        ("design", ""),
        ("design", "laptop", "--nic", "400 Gb/s"),
        ("design", "laptop", "--planes", "4"),
        ("plan", "tiny-gpt", "--site", "laptop", "--fix", "tp=1", "--fix", "tp=2"),
        ("plan", "tiny-gpt", "--site", "laptop", "--empty-fix"),
        ("rehearse", "laptop", "tiny-gpt", "--folder", "pyproject.toml"),
    ],
)
def test_what_was_asked_wrongly_ends_with_status_2(arguments, capsys: pytest.CaptureFixture[str]):
    status = run(*arguments)
    _, err = capsys.readouterr()
    if arguments == ("site",):
        assert status == 0
    else:
        assert status == 2
        assert err.startswith("error: ")
    assert "Traceback" not in err


def test_binary_rubbish_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "x.toml"
    path.write_bytes(bytes(range(256)))
    assert run("design", str(path)) == 2
    assert "not text" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / ".x.png.part.png").mkdir()  # where the picture stands until it is whole
    assert run("design", "laptop", "--plot", str(tmp_path / "x.png")) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("simulate", "permutation"), "--plot x.png"), (("simulate", "permutation"), "--flows x.csv"),
        (("simulate", "permutation"), "--series x.jsonl"), (("rehearse", "laptop", "tiny-gpt"), "--html x.html"),
        (("cluster", "replay", "trace.csv"), "--jobs x.csv"), (("scale", "ladder"), "--out x.csv"),
    ],
)  # fmt: skip
def test_a_file_that_could_not_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], option: str
):
    name, file = option.split()
    (tmp_path / file).mkdir()
    refused = {
        tmp_path / "no" / file: f"there is no folder {tmp_path / 'no'}",
        tmp_path / file: "that is a folder",
        tmp_path / f"{240 * 'a'}{file}": "write a name of at most 240 bytes",
    }
    for target, why in refused.items():
        assert run(*command, name, str(target)) == 2
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1)
        assert f"{name} {target}: {why}" in said.err


def test_every_file_of_the_examples_is_right(capsys: pytest.CaptureFixture[str]):
    examples = Path(__file__).parents[2] / "examples"
    files = sorted(str(path) for path in examples.glob("*.toml"))
    assert files
    assert run("check", *files) == 0
    assert capsys.readouterr().out.count("no mistakes") == len(files)


def test_the_package_itself_is_the_command():
    done = subprocess.run([sys.executable, "-m", "weft", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, VERSION)


def test_help_loads_nothing_heavy():
    program = (
        "import sys; from weft.cli.main import main; main(['--help']);"
        "sys.exit({'numpy', 'torch', 'matplotlib', 'pydantic', 'numba'} & set(sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "design" in done.stdout


def test_importing_weft_loads_nothing_heavy():
    program = "import sys, weft; sys.exit({'numpy', 'torch', 'pydantic'} & set(sys.modules) or None)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_early_is_no_failure():
    command = (
        f"{sys.executable} -c 'from weft.cli.main import run; run()' schema site | head -n 1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("asked", ["tiny-gpt", "examples/job.toml"])
def test_a_job_where_a_site_is_wanted_is_called_one(asked: str, capsys: pytest.CaptureFixture[str]):
    assert run("design", asked) == 2
    assert capsys.readouterr().err == f"error: {asked} is a job; a site is wanted here\n"


def test_a_file_that_cannot_be_read_does_not_hide_the_mistakes_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rubbish, wrong = tmp_path / "rubbish.toml", tmp_path / "wrong.toml"
    rubbish.write_bytes(b"\xff\xfe")
    wrong.write_text('extends = "laptop"\nnmae = "x"\n', encoding="utf-8")
    assert run("check", str(rubbish), str(wrong)) == 2
    error = capsys.readouterr().err
    assert "is not text" in error
    assert "nmae" in error


def test_a_word_too_many_is_named(capsys: pytest.CaptureFixture[str]):
    assert run("site", "show", "laptop", "laptop2") == 2
    assert "unexpected 'laptop2'; leave it out" in capsys.readouterr().err


def test_a_title_wider_than_its_table_stays_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    edges = tmp_path / "edges.csv"
    edges.write_text("a,b\nh1,s1\nh2,s1\n", encoding="utf-8")
    assert run("fabric", "import", str(edges), "--hosts", "name:h*") == 0
    assert capsys.readouterr().out.startswith(f"{edges}: a network of 2 hosts\n")


def test_nothing_is_drawn_where_the_page_has_a_wrong_name(tmp_path: Path):
    assert run("rehearse", "laptop", "tiny-gpt", "--plot", str(tmp_path / "a.png"), "--html", "a.txt") == 2
    assert not list(tmp_path.iterdir())


def test_a_schema_is_json_with_the_flag_too(capsys: pytest.CaptureFixture[str]):
    assert run("schema", "site", "--json") == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_full_disk_under_the_output_is_said_in_one_line(flags: tuple[str, ...]):
    code = f"import sys; from weft.cli.main import main; sys.exit(main(['site', 'list', *{flags!r}]))"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, "error: the output cannot be written: No space left on device\n")
