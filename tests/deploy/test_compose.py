"""The compose files: valid by the specification, without a secret, and joined by names that MLflow answers to."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "compose"
FILES = sorted(FOLDER.glob("docker-compose*.yml"))
CONTENT: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = CONTENT["services"]
TEXT = (FOLDER / "docker-compose.yml").read_text(encoding="utf-8")


def faults(content: dict[str, Any]) -> list[str]:
    schema = json.loads((Path(__file__).parent / "schemas" / "compose.json").read_text(encoding="utf-8"))
    return [f"{error.json_path}: {error.message[:200]}" for error in Draft202012Validator(schema).iter_errors(content)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_valid_by_the_compose_specification(file: Path) -> None:
    assert faults(yaml.safe_load(file.read_text(encoding="utf-8"))) == []
    assert faults({**CONTENT, "services": {"mlflow": {"image": "a", "health_check": {}}}})


def test_everything_that_serves_has_a_health_check_and_what_needs_it_waits_for_it() -> None:
    serving = set(SERVICES) - {"bucket"}
    assert {name for name in serving if "healthcheck" not in SERVICES[name]} == set()
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if needed == "bucket" else "service_healthy"
            assert how["condition"] == wanted


def test_mlflow_asks_for_a_user_and_answers_to_the_name_that_the_others_call_it_by() -> None:
    mlflow = SERVICES["mlflow"]
    assert "--app-name=basic-auth" in mlflow["command"]
    hosts = mlflow["environment"]["MLFLOW_SERVER_ALLOWED_HOSTS"].partition("${")[0].split(",")
    assert {"mlflow:*", "localhost:*", "127.0.0.1:*"} <= set(hosts), "the last one is of the health check"
    assert set(mlflow["networks"]) & set(SERVICES["ray-head"]["networks"])


def test_what_is_published_listens_on_this_machine_alone_and_database_and_store_have_no_way_out() -> None:
    assert SERVICES["postgres"]["networks"] == SERVICES["store"]["networks"] == ["tracking"]
    assert CONTENT["networks"]["tracking"] == {"internal": True}
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_our_containers_have_a_read_only_root_and_no_capabilities_and_ray_asks_for_a_token() -> None:
    for environment in (SERVICES[name]["environment"] for name in ("ray-head", "ray-worker")):
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?")
    for name in ("mlflow", "bucket", "ray-head", "ray-worker"):
        assert SERVICES[name]["read_only"] is True
        assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert all("no-new-privileges:true" in service["security_opt"] for service in SERVICES.values())


def test_every_secret_comes_from_the_environment_and_the_example_has_none() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    example = (FOLDER / ".env.example").read_text(encoding="utf-8")
    named = dict(re.findall(r"^([A-Z_0-9]+)=(.*)$", example, re.MULTILINE))
    used = set(re.findall(r"\$\{?([A-Z][A-Z_0-9]+)", TEXT))
    assert used == set(named)
    assert {name for name, value in named.items() if value} == {"WORKER_CPUS", "WORKER_MEMORY"}
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET|ACCESS_KEY", name):
                assert value.startswith("${"), name


def test_no_address_holds_a_password() -> None:
    config = configparser.ConfigParser()
    config.read(FOLDER / "basic_auth.ini", encoding="utf-8")
    addresses = [config["mlflow"]["database_uri"], SERVICES["mlflow"]["environment"]["MLFLOW_BACKEND_STORE_URI"]]
    assert all(re.fullmatch(r"postgresql\+psycopg2://mlflow@postgres/mlflow", address) for address in addresses)
    assert "admin_password" not in config["mlflow"]


def test_mlflows_image_has_the_version_of_the_constraints_and_runs_as_a_user_who_is_not_root() -> None:
    dockerfile = (FOLDER / "mlflow.Dockerfile").read_text(encoding="utf-8")
    assert "--constraint /tmp/constraints.txt" in dockerfile
    assert re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE) == ["mlflow"]
