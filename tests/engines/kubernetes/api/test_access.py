import base64
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from weft.core.errors import UsageError
from weft.engines.kubernetes.api.access import load

_NOW = datetime(2026, 11, 15, tzinfo=UTC)


def _config(folder: Path, name: str = "config", **more) -> Path:
    document = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "mine"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        **more,
    }
    path = folder / name
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_plain_file_gives_server_namespace_and_token(tmp_path):
    access = load(None, {"KUBECONFIG": str(_config(tmp_path))})
    assert (access.server, access.namespace, access.context) == ("http://127.0.0.1:1", "mine", "one")
    assert access.credential(_NOW, {}).token == "secret"


def test_of_several_files_the_first_that_names_a_thing_wins(tmp_path):
    first = _config(tmp_path, "first", users=[], **{"current-context": ""})
    second = _config(tmp_path, "second", clusters=[{"name": "c", "cluster": {"server": "http://other"}}])
    access = load(None, {"KUBECONFIG": f"{first}:{tmp_path / 'absent'}:{second}"})
    assert access.server == "http://127.0.0.1:1"
    assert access.credential(_NOW, {}).token == "secret"


def test_a_token_file_is_read_beside_its_config_and_again_when_it_changes(tmp_path):
    (tmp_path / "token").write_text("a\n")
    access = load(None, {}, _config(tmp_path, users=[{"name": "u", "user": {"tokenFile": "token"}}]))
    assert access.credential(_NOW, {}).token == "a"
    (tmp_path / "token").write_text("b\n")
    assert access.credential(_NOW, {}).token == "b"


def test_a_plugin_hands_out_a_token_with_an_end(tmp_path):
    program = tmp_path / "plugin.py"
    program.write_text(
        "import json, os; order = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "print(json.dumps({'apiVersion': order['apiVersion'], 'status': {'token': os.environ['WHO'],"
        " 'expirationTimestamp': '2026-11-15T00:01:00Z'}}))\n"
    )
    run = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(program)],
        "env": [{"name": "WHO", "value": "me"}],
    }
    access = load(None, {}, _config(tmp_path, users=[{"name": "u", "user": {"exec": run}}]))
    credential = access.credential(_NOW, {"PATH": "/usr/bin:/bin"})
    assert credential.token == "me"
    assert credential.fresh(_NOW)
    assert not credential.fresh(datetime(2026, 11, 15, 0, 0, 45, tzinfo=UTC))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"current-context": ""}, "no current context"),
        ({"current-context": "two"}, "no context 'two'; it knows one"),
        ({"clusters": []}, "no cluster 'c'; it knows none"),
        ({"users": []}, "no user 'u'; it knows none"),
        ({"clusters": [{"name": "c", "cluster": {"server": "127.0.0.1"}}]}, "write https://HOST:PORT"),
        ({"clusters": [{"cluster": {}}]}, "without name or cluster"),
        ({"users": [{"name": "u", "user": {"auth-provider": {}}}]}, "auth-provider"),
        ({"users": [{"name": "u", "user": {"tokenFile": "absent"}}]}, "token file"),
        ({"users": [{"name": "u", "user": {"exec": {"command": "/no/such"}}}]}, "credential plugin"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority-data": "%%"}}]},
            "not base64",
        ),
        (
            {
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {
                            "server": "https://x",
                            "certificate-authority-data": base64.b64encode(b"no").decode(),
                        },
                    }
                ]
            },
            "not valid PEM",
        ),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(tmp_path, more, said):
    path = _config(tmp_path, **more)
    with pytest.raises(UsageError, match=said) as raised:
        load(None, {}, path).credential(_NOW, {})
    assert "\n" not in str(raised.value)


def test_no_file_at_all_names_where_it_was_looked_for(tmp_path):
    with pytest.raises(UsageError, match=r"\.kube/config"):
        load(None, {"HOME": str(tmp_path)})


def test_what_is_not_yaml_names_the_line(tmp_path):
    path = tmp_path / "broken"
    path.write_text("a: [\nb: }")
    with pytest.raises(UsageError, match="is not YAML"):
        load(None, {}, path)
