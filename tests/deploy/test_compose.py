"""docker-compose.yml matches the Compose specification, the code, and the images."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from processes import CLIENT, GATEWAY
from sluiceway import __version__
from sluiceway_gateway.cli.entry import COMMANDS
from sluiceway_gateway.core.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
README = (ROOT / "README.md").read_text()
LONG_RUNNING = {"kafka", "postgres", "gateway"}


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    """The parsed file. It has no variables to substitute, as a test below checks."""
    config_: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return config_


@pytest.fixture(scope="module")
def services(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    services_: dict[str, dict[str, Any]] = config["services"]
    return services_


def test_the_file_conforms_to_the_compose_specification(
    config: dict[str, Any], tmp_path: Path
) -> None:
    def violations(path: Path) -> str:
        schema = ["--builtin-schema", "vendor.compose-spec"]
        checked = subprocess.run(
            [sys.executable, "-m", "check_jsonschema", *schema, str(path)],
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        return "" if checked.returncode == 0 else checked.stdout + checked.stderr

    assert violations(COMPOSE) == ""
    misspelt = config | {"services": {"kafka": config["services"]["kafka"] | {"volume": []}}}
    (tmp_path / "docker-compose.yml").write_text(yaml.safe_dump(misspelt))
    assert "volume" in violations(tmp_path / "docker-compose.yml")


def test_the_file_needs_no_shell_variables() -> None:
    assert re.findall(r"(?<!\$)\$\{?\w+", COMPOSE.read_text()) == []


@pytest.mark.long
def test_docker_compose_parses_the_same_services(services: dict[str, Any]) -> None:
    result = subprocess.run(
        ["docker-compose", "--file", str(COMPOSE), "--profile", "spark", "config"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    parsed = yaml.safe_load(result.stdout)["services"]
    assert parsed.keys() == services.keys()
    for name, service in services.items():
        assert parsed[name]["image"] == service["image"]
        assert parsed[name].get("environment", {}) == service.get("environment", {})


def test_images_are_pinned_and_sluiceways_have_this_version(services: dict[str, Any]) -> None:
    images = {name: service["image"] for name, service in services.items()}
    assert images == {
        "kafka": "apache/kafka:4.3.1",
        "postgres": "postgres:18",
        "migrate": f"sluiceway-gateway:{__version__}",
        "gateway": f"sluiceway-gateway:{__version__}",
        "spark": f"sluiceway-spark:{__version__}",
    }
    for name in ("migrate", "gateway", "spark"):
        build = services[name]["build"]
        assert build["context"] == "."
        assert (ROOT / build["dockerfile"]).is_file()


def test_the_broker_has_the_version_used_by_the_tests(services: dict[str, Any]) -> None:
    pinned = next((ROOT / "gateway/sluiceway_gateway/dev/embedded").glob("kafka-*.sha256"))
    assert services["kafka"]["image"] == f"apache/kafka:{pinned.stem.removeprefix('kafka-')}"


def test_long_running_services_have_a_healthcheck_and_restart(services: dict[str, Any]) -> None:
    assert {
        name for name, service in services.items() if service["restart"] != "no"
    } == LONG_RUNNING
    for name in LONG_RUNNING:
        check = services[name]["healthcheck"]
        assert check["test"][0] == "CMD", "the check must not need a shell"
        assert {"interval", "timeout", "retries"} <= check.keys()
        assert "curl" not in check["test"], "images need not contain curl"


def test_services_start_in_dependency_order(services: dict[str, Any]) -> None:
    def after(name: str) -> dict[str, str]:
        return {
            other: dependency["condition"]
            for other, dependency in services[name].get("depends_on", {}).items()
        }

    assert after("migrate") == {"postgres": "service_healthy"}
    assert after("gateway") == {
        "migrate": "service_completed_successfully",
        "kafka": "service_healthy",
    }
    assert after("spark") == {"gateway": "service_healthy"}
    assert services["spark"]["profiles"] == ["spark"], "it must start on request only"


def test_commands_are_the_gateways_own(services: dict[str, Any]) -> None:
    for name, command in (("migrate", ["migrate"]), ("gateway", ["serve"])):
        assert services[name]["command"] == command
        assert command[0] in COMMANDS


def test_variables_are_settings(services: dict[str, Any]) -> None:
    for name, settings in (("gateway", GATEWAY), ("migrate", GATEWAY), ("spark", CLIENT)):
        assert services[name]["environment"].keys() <= settings, name


def test_the_gateways_settings_are_valid(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch, secrets: Path
) -> None:
    for name, value in services["gateway"]["environment"].items():
        monkeypatch.setenv(name, value.replace("/run/secrets", str(secrets)))
    settings = Settings.load()
    url = settings.database_url.get_secret_value()
    assert url == (
        f"postgresql://sluiceway:{(secrets / 'postgres-password').read_text().strip()}"
        "@postgres/sluiceway"
    )
    assert settings.token_key is not None
    assert settings.tls_by_proxy
    # The published port is the listening port and the port of the healthcheck.
    assert services["gateway"]["ports"] == [f"127.0.0.1:8900:{settings.port}"]
    assert f":{settings.port}/readyz" in services["gateway"]["healthcheck"]["test"][-1]
    listeners = settings.listeners
    assert listeners.default == "external"
    assert services["spark"]["environment"]["SLUICEWAY_LISTENER"] in listeners.properties
    assert services["spark"]["environment"]["SLUICEWAY_URL"] == f"http://gateway:{settings.port}"


def test_kafka_listens_at_its_advertised_address(services: dict[str, Any]) -> None:
    kafka, gateway = services["kafka"]["environment"], services["gateway"]["environment"]
    advertised = dict(
        listener.split("://") for listener in kafka["KAFKA_ADVERTISED_LISTENERS"].split(",")
    )
    bound = dict(listener.split("://") for listener in kafka["KAFKA_LISTENERS"].split(","))
    listeners = yaml.safe_load(gateway["SLUICEWAY_KAFKA_LISTENERS"])
    assert listeners == {"internal": advertised["INTERNAL"], "external": advertised["EXTERNAL"]}
    assert gateway["SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS"] == advertised["INTERNAL"]
    protocols = kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    assert {protocol.split(":")[0] for protocol in protocols} == bound.keys()
    for name, address in advertised.items():
        assert address.rpartition(":")[2] == bound[name].rpartition(":")[2]
    assert bound["CONTROLLER"].rpartition(":")[2] in kafka["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    port = bound["EXTERNAL"].lstrip(":")
    assert services["kafka"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert advertised["INTERNAL"] in services["kafka"]["healthcheck"]["test"]
    assert kafka["KAFKA_LOG_DIRS"] in services["kafka"]["volumes"][0]


def test_secrets_are_files_outside_git_and_images(
    config: dict[str, Any], services: dict[str, Any]
) -> None:
    files = {name: ROOT / secret["file"] for name, secret in config["secrets"].items()}
    assert {path.parent for path in files.values()} == {ROOT / "secrets"}
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    for service in services.values():
        secrets_of_service = set(service.get("secrets", []))
        assert secrets_of_service <= files.keys()
        for name, value in service.get("environment", {}).items():
            # Secrets are passed as files only, and each file is one of the service's secrets.
            assert not re.search(r"PASSWORD$|TOKEN$|_KEY$|_URL$", name) or name == "SLUICEWAY_URL"
            if name.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in secrets_of_service


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The files that the README's commands create."""
    (lines,) = [
        block for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "-m " in block
    ]
    subprocess.run(["sh", "-euc", lines], cwd=tmp_path, check=True, timeout=480)
    return tmp_path / "secrets"


def test_the_readme_creates_every_secret(config: dict[str, Any], secrets: Path) -> None:
    assert secrets.stat().st_mode & 0o77 == 0, "other users must not read the files"
    created_by_the_gateway = {"token"}
    names = {path.name for path in secrets.iterdir()}
    assert names | created_by_the_gateway == config["secrets"].keys()
    # Without -T, Compose allocates a terminal, and the file would have the notes for it, too.
    assert "run --rm -T gateway token create --scope admin me > secrets/token" in README


def test_the_readmes_commands_name_existing_services_and_profiles(
    services: dict[str, Any],
) -> None:
    lines = re.findall(r"^docker-compose (.*)$", README, re.MULTILINE)
    assert len(lines) == 3
    for name in re.findall(r"run --rm (?:-T )?(\S+)", "\n".join(lines)):
        assert name in services
    assert re.findall(r"--profile (\S+)", "\n".join(lines)) == ["spark"]
