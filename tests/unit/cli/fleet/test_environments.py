from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from cli.fleet.credentials import read_credentials
from cli.fleet.environments import (
    SECRET_SETTINGS,
    node_environment,
    service_environment,
    write_lane_secrets,
)
from cli.fleet.servers import OwnServers, Servers
from dispatcher.settings import DispatcherSettings
from gateway.settings import GatewaySettings
from worker.settings import WorkerSettings

_ALL = (DispatcherSettings, GatewaySettings, WorkerSettings)


def test_every_secret_setting_is_known() -> None:
    secret = {
        f"BATCHYARD_{name.upper()}"
        for settings in _ALL
        for name, field in settings.model_fields.items()
        if _is_secret(field)
    }

    # The others are only options of `batchyard up`.
    assert secret | {"BATCHYARD_S3_ACCESS_KEY"} == {
        name for name in SECRET_SETTINGS if "_LANE_" not in name
    }


def test_rays_node_has_no_secret_wherever_it_comes_from(tmp_path: Path) -> None:
    planted = {name: f"hush-{name}" for name in SECRET_SETTINGS}
    planted["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization=hush"

    of_node = node_environment({**planted, "BATCHYARD_LINGER_SECONDS": "3", "A": "b"}, tmp_path)

    assert not SECRET_SETTINGS & of_node.keys()
    assert "hush" not in str(of_node)
    assert (of_node["BATCHYARD_LINGER_SECONDS"], of_node["A"]) == ("3", "b")


def test_gateway_and_dispatcher_inherit_the_metrics_token_and_no_other_secret() -> None:
    planted = dict.fromkeys(SECRET_SETTINGS, "hush")

    assert service_environment({**planted, "A": "b"}) == {
        "BATCHYARD_METRICS_TOKEN": "hush",
        "A": "b",
    }


def test_a_lane_job_reads_its_own_logins_from_files_that_only_their_owner_can_read(
    tmp_path: Path,
) -> None:
    made = read_credentials(tmp_path)
    addresses = Servers(tmp_path, OwnServers(), made).addresses

    write_lane_secrets(tmp_path, addresses, made)

    [folder] = tmp_path.glob("lane-secrets")
    assert folder.stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    settings = WorkerSettings(
        _secrets_dir=folder, s3_endpoint=addresses.s3_endpoint, catalog=tmp_path
    )
    assert settings.redis_url.get_secret_value() == addresses.lane_redis_url
    assert f"lane:{made.lane_redis_password}@" in addresses.lane_redis_url
    assert (settings.s3_access_key, settings.s3_secret_key.get_secret_value()) == (
        made.lane_s3_access_key,
        made.lane_s3_secret_key,
    )
    assert settings.cache_key == made.cache_secret.encode()


def test_at_servers_of_ones_own_lane_jobs_have_the_login_that_is_named_for_them(
    tmp_path: Path,
) -> None:
    made = read_credentials(tmp_path)
    whole = OwnServers(
        redis_url="redis://:all@h/0",
        s3_endpoint="https://s3",
        s3_access_key="all",
        s3_secret_key="all",
    )
    limited = whole._replace(
        lane_redis_url="redis://lane:few@h/0", lane_s3_access_key="few", lane_s3_secret_key="few"
    )

    alone, together = (Servers(tmp_path, own, made) for own in (limited, whole))

    assert alone.addresses.lane_redis_url == "redis://lane:few@h/0"
    assert alone.addresses.lane_s3_access_key == alone.addresses.lane_s3_secret_key == "few"
    assert alone.shared_logins(limited) == []
    assert together.addresses.lane_redis_url == "redis://:all@h/0"
    assert together.shared_logins(whole) == ["Redis", "S3"]


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation in (SecretStr, SecretStr | None)
