"""The Kubernetes manifests match the types of the API, each other, and the code."""

import dataclasses
import importlib
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from processes import GATEWAY
from sluiceway import __version__
from sluiceway_gateway.cli.entry import COMMANDS
from sluiceway_gateway.core.settings import Settings

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy" / "kubernetes"
FILES = sorted(DIRECTORY.rglob("*.yaml"))
KINDS = {"ConfigMap", "Deployment", "Job", "Pod", "PodDisruptionBudget", "Service"}


def model(document: dict[str, Any]) -> type:
    """Return the type of a document in Kubernetes' API."""
    # The models are dataclasses for a client library, which is not needed here.
    schema = types.ModuleType("lightkube.core.schema")
    vars(schema).update(DictMixin=object, field=dataclasses.field, dataclass=dataclasses.dataclass)
    sys.modules.setdefault("lightkube.core", types.ModuleType("lightkube.core"))
    sys.modules.setdefault("lightkube.core.schema", schema)
    group = document["apiVersion"].replace("/", "_") if "/" in document["apiVersion"] else "core_v1"
    type_: type = getattr(importlib.import_module(f"lightkube.models.{group}"), document["kind"])
    return type_


def mismatches(value: Any, hint: Any, path: str) -> Iterator[str]:
    """Yield the differences between a document and its type in the API."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        alternatives = [
            list(mismatches(value, argument, path))
            for argument in arguments
            if argument is not type(None)
        ]
        yield from min(alternatives, key=len)
    elif origin is list:
        if not isinstance(value, list):
            yield f"{path} is not a list"
            return
        for number, item in enumerate(value):
            yield from mismatches(item, arguments[0], f"{path}[{number}]")
    elif dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            yield f"{path} is not an object"
            return
        hints = typing.get_type_hints(hint)
        for name, field_value in value.items():
            if name in hints:
                yield from mismatches(field_value, hints[name], f"{path}.{name}")
            else:
                yield f"{path}.{name} is not a field of {hint.__name__}"
        for field in dataclasses.fields(hint):
            optional = dataclasses.MISSING
            required = field.default is optional and field.default_factory is optional
            if required and field.name not in value:
                yield f"{path}.{field.name} is missing"
    elif hint is not Any and type(value) is not (origin or hint):
        yield f"{path} is {value!r}, not of {hint}"


def documents() -> dict[str, dict[str, Any]]:
    by_kind = {}
    for path in FILES:
        for document in yaml.safe_load_all(path.read_text()):
            assert document["kind"] not in by_kind
            by_kind[document["kind"]] = document
    return by_kind


DOCUMENTS = documents()
PODS = {
    "Deployment": DOCUMENTS["Deployment"]["spec"]["template"],
    "Job": DOCUMENTS["Job"]["spec"]["template"],
    "Pod": DOCUMENTS["Pod"],
}


def container(kind: str) -> dict[str, Any]:
    (only,) = PODS[kind]["spec"]["containers"]
    container_: dict[str, Any] = only
    return container_


def test_there_is_one_manifest_of_each_kind() -> None:
    assert DOCUMENTS.keys() == KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_manifest_has_its_type_and_no_namespace(kind: str) -> None:
    document = DOCUMENTS[kind]
    assert list(mismatches(document, model(document), kind)) == []
    assert "namespace" not in document["metadata"]


def test_the_type_check_detects_errors() -> None:
    deployment = DOCUMENTS["Deployment"]
    (pod,) = deployment["spec"]["template"]["spec"]["containers"]
    broken = {**pod, "readinesProbe": {}, "args": "serve", "name": 1}
    errors = list(
        mismatches(
            {"containers": [broken]},
            importlib.import_module("lightkube.models.core_v1").PodSpec,
            "spec",
        )
    )
    assert len(errors) == 3, errors
    assert list(
        mismatches(
            {"template": {}},
            importlib.import_module("lightkube.models.apps_v1").DeploymentSpec,
            "spec",
        )
    ) == ["spec.selector is missing"]


def test_pods_run_unprivileged_with_a_read_only_root() -> None:
    for pod in (template["spec"] for template in PODS.values()):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        (only,) = pod["containers"]
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= only["resources"]["requests"].keys()
        assert "memory" in only["resources"]["limits"]
        # The user of the image.
        user = pod["securityContext"]["runAsUser"]
        assert f"USER {user}:{user}" in (ROOT / "gateway" / "Dockerfile").read_text()


def test_images_and_commands_are_sluiceways() -> None:
    for kind, command in (("Deployment", "serve"), ("Job", "migrate")):
        assert container(kind)["image"] == f"sluiceway-gateway:{__version__}"
        assert container(kind)["args"] == [command]
        assert command in COMMANDS
    assert container("Pod")["image"] == f"sluiceway-gateway:{__version__}"


def test_only_the_pod_for_commands_is_applied_by_itself() -> None:
    """`kubectl apply -f` with a directory does not read its subdirectories."""
    apart = {path for path in FILES if path.parent != DIRECTORY}
    assert [yaml.safe_load(path.read_text())["kind"] for path in apart] == ["Pod"]


def test_probes_use_the_gateways_health_paths() -> None:
    gateway = container("Deployment")
    (port,) = gateway["ports"]
    probes = {name: gateway[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness")}
    probes["liveness"] = gateway["livenessProbe"]["httpGet"]
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/readyz",
        "readiness": "/livez",
        "liveness": "/livez",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert str(port["containerPort"]) == DOCUMENTS["ConfigMap"]["data"]["SLUICEWAY_PORT"]


def test_selectors_match_only_the_gateways_pods() -> None:
    labels = {kind: pod["metadata"]["labels"].items() for kind, pod in PODS.items()}
    selectors = [
        DOCUMENTS["Deployment"]["spec"]["selector"]["matchLabels"],
        DOCUMENTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        DOCUMENTS["Service"]["spec"]["selector"],
    ]
    for selector in selectors:
        assert selector.items() <= labels["Deployment"]
        for other in ("Job", "Pod"):
            assert not selector.items() <= labels[other], f"a {other} must get no requests"
    (port,) = DOCUMENTS["Service"]["spec"]["ports"]
    assert port["targetPort"] == container("Deployment")["ports"][0]["name"]
    budget = DOCUMENTS["PodDisruptionBudget"]["spec"]["minAvailable"]
    assert budget < DOCUMENTS["Deployment"]["spec"]["replicas"] == 2


def test_variables_are_valid_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    template = yaml.safe_load((DIRECTORY / "secret.yaml.template").read_text())
    assert set(template["stringData"].values()) == {""}, "a template must have no values"
    (tmp_path / "database-url").write_text("postgresql://u:p@h/d\n")
    (tmp_path / "token-key").write_text("k" * 64)
    assert {path.name for path in tmp_path.iterdir()} == template["stringData"].keys()
    variables = dict(DOCUMENTS["ConfigMap"]["data"])
    for kind in PODS:
        (mount,) = container(kind)["volumeMounts"]
        environment = {variable["name"]: variable["value"] for variable in container(kind)["env"]}
        for value in environment.values():
            assert value.startswith(mount["mountPath"] + "/")
            assert value.removeprefix(mount["mountPath"] + "/") in template["stringData"]
        variables |= {
            name: value.replace(mount["mountPath"], str(tmp_path))
            for name, value in environment.items()
        }
    assert variables.keys() <= GATEWAY
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load()
    assert settings.tls_by_proxy
    assert settings.database_url.get_secret_value() == "postgresql://u:p@h/d"


def test_references_between_manifests_resolve() -> None:
    template = yaml.safe_load((DIRECTORY / "secret.yaml.template").read_text())
    for pod in PODS.values():
        (volume,) = pod["spec"]["volumes"]
        assert volume["secret"]["secretName"] == template["metadata"]["name"]
    (source,) = container("Deployment")["envFrom"]
    assert source["configMapRef"]["name"] == DOCUMENTS["ConfigMap"]["metadata"]["name"]


def test_service_variables_of_kubernetes_are_not_settings() -> None:
    assert {template["spec"]["enableServiceLinks"] for template in PODS.values()} == {False}
    prefix = re.sub(r"\W", "_", DOCUMENTS["Service"]["metadata"]["name"]).upper()
    assert not {f"{prefix}_PORT", f"{prefix}_SERVICE_HOST", f"{prefix}_SERVICE_PORT"} & GATEWAY
