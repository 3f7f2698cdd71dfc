import json
from pathlib import Path

from cli.fleet.credentials import read_credentials


def test_secrets_are_made_once(tmp_path: Path) -> None:
    assert read_credentials(tmp_path) == read_credentials(tmp_path)


def test_a_run_directory_of_an_older_version_keeps_its_secrets_and_gets_the_new_ones(
    tmp_path: Path,
) -> None:
    made = read_credentials(tmp_path)
    path = tmp_path / "credentials.json"
    old = {name: value for name, value in made._asdict().items() if name != "cache_secret"}
    path.chmod(0o600)
    path.write_text(json.dumps(old))

    read = read_credentials(tmp_path)

    assert {**read._asdict(), "cache_secret": ""} == {**made._asdict(), "cache_secret": ""}
    assert read.cache_secret not in ("", made.cache_secret)
    assert read == read_credentials(tmp_path)
