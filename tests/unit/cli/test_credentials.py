import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cli.credentials import S3, compose_variables, kubernetes_secrets, main
from tests.k8s.rules import SECRETS

_ROOT = Path(__file__).parents[3]
_S3 = S3("https://s3.example", "key", "hush", "lane-key", "lane-hush")


def test_no_secret_is_made_twice() -> None:
    first, second = compose_variables(), compose_variables()

    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    assert main(["compose", "--output", str(tmp_path / ".env")]) == 0

    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    names = [line.partition("=")[0] for line in (tmp_path / ".env").read_text().splitlines()]
    assert names == list(compose_variables())


def test_credentials_of_a_running_fleet_are_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").write_text("REDIS_PASSWORD=old\n")

    assert main(["compose", "--output", str(tmp_path / ".env")]) == 2

    assert (tmp_path / ".env").read_text() == "REDIS_PASSWORD=old\n"
    assert "exists" in capsys.readouterr().err


def test_no_value_needs_quotes() -> None:
    for name, value in compose_variables().items():
        assert value.isprintable(), name
        assert not set(value) & set(" '\"$#\\"), name


def test_the_secrets_are_those_that_the_manifests_name() -> None:
    made = {secret["metadata"]["name"]: secret["stringData"] for secret in _secrets()}

    for name, keys in SECRETS.items():
        # The token of the models' hub is the operator's own, and optional.
        assert name == "batchyard-models" or keys <= made[name].keys()


def test_kubernetes_needs_the_keys_of_the_s3_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BATCHYARD_S3_ACCESS_KEY", raising=False)
    monkeypatch.delenv("BATCHYARD_S3_SECRET_KEY", raising=False)

    assert main(["kubernetes", "--s3-endpoint", "https://s3.example"]) == 2

    assert "BATCHYARD_S3_SECRET_KEY" in capsys.readouterr().err


def test_it_runs_where_nothing_is_installed(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", _BARE, "compose", "--output", str(tmp_path / ".env")],
        cwd=_ROOT,
        check=True,
    )

    assert (tmp_path / ".env").exists()


def test_the_s3_login_of_lane_jobs_is_one_of_its_own_or_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = ["--s3-endpoint=https://s3", "--s3-access-key=all", "--s3-secret-key=hush"]

    assert main(["kubernetes", *whole]) == 0
    shared = capsys.readouterr()
    assert main(["kubernetes", *whole, "--lane-s3-access-key=few", "--lane-s3-secret-key=x"]) == 0
    alone = capsys.readouterr()
    assert main(["kubernetes", *whole, "--lane-s3-access-key=few"]) == 2

    assert "lane jobs get the S3 login of gateway and dispatcher" in shared.err
    assert alone.err == ""
    keys = [_lane(shown.out)["BATCHYARD_S3_ACCESS_KEY"] for shown in (shared, alone)]
    assert keys == ["all", "few"]


def test_compose_says_that_lane_jobs_share_a_login(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compose", "--output", str(tmp_path / ".env")]) == 0

    assert "lane jobs share the S3 login" in capsys.readouterr().err


def _lane(printed: str) -> dict[str, str]:
    [found] = [
        one["stringData"]
        for one in json.loads(printed)["items"]
        if one["metadata"]["name"] == "batchyard-lane"
    ]
    return dict(found)


_BARE = "import sys; sys.path.insert(0, '.'); from cli.credentials import main; sys.exit(main())"


def _secrets() -> list[dict[str, dict[str, str]]]:
    found: list[dict[str, dict[str, str]]] = json.loads(json.dumps(kubernetes_secrets(_S3)))
    return found
