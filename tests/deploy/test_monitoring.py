"""The Grafana dashboard and the alerts, with a real gateway's metrics and in Prometheus."""

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from sluiceway import Gateway
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.endpoints.model import Health
from sluiceway_gateway.provisioning.reconciler import ReconcileCounts
from sluiceway_gateway.status.reader_progress import ProgressState
from waiting import until

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARD = json.loads((ROOT / "deploy/grafana/sluiceway.json").read_text())
GROUPS = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
ALERTS: dict[str, Any] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
_numbers = itertools.count(1)
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}

#: Labels that Prometheus adds to scraped samples.
ADDED_LABELS = {"job", "instance"}
SELECTOR = re.compile(r'\b([a-z]\w*)\{((?:[^"{}]|"[^"]*")*)\}')
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
VALUES = {
    "phase": {str(phase) for phase in Phase},
    "health": {*map(str, Health)},
    "progress": {str(state) for state in ProgressState},
    "outcome": {field.name for field in fields(ReconcileCounts)},
}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> dict[str, str]:
    """Return the expressions of the dashboard by panel, and of the alerts by name."""
    expressions = {
        f"{panel['title']}, {target['refId']}": target["expr"]
        for panel in panels()
        for target in panel["targets"]
    }
    return expressions | {name: rule["expr"] for name, rule in ALERTS.items()}


def without_variables(expression: str) -> str:
    """Return the expression that Grafana sends for all channels and groups."""
    plain = re.sub(r"\$(channel|group)\b", ".*", expression).replace("$__rate_interval", "1m")
    assert "$" not in plain, f"an unknown variable: {expression}"
    return plain


@contextmanager
def busy_channel(gateway_url: str) -> Iterator[None]:
    """Run a reader, and an open batch that holds it back, while the block runs."""
    with Gateway(gateway_url) as gateway, ExitStack() as stack:
        channel = gateway.channel(f"monitored-{next(_numbers)}", SCHEMA, delivery="exactly_once")
        reader = stack.enter_context(channel.reader(group="delays", until=None))
        with channel.writer(group="load") as writer:
            writer.write([{"a": number} for number in range(5)])
        reader.read(5, timeout=60)
        reader.commit()
        slow = stack.enter_context(channel.writer(group="slow"))
        stack.enter_context(slow.batch("monday", owner="nightly"))
        with channel.writer(group="load") as writer:
            writer.write([{"a": 6}])
        yield


def scraped_labels(gateway_url: str) -> dict[str, set[str]]:
    """Return the labels of the samples in /metrics, by metric name."""
    labels: dict[str, set[str]] = {"up": set()}
    for family in text_string_to_metric_families(
        httpx.get(f"{gateway_url}/metrics", timeout=60).text
    ):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_every_metric_and_label_of_the_queries_is_in_the_metrics_of_a_gateway(
    gateway_url: str,
) -> None:
    used = {name for query in queries().values() for name, _ in SELECTOR.findall(query)}
    assert len(used) > 20

    def labels_of_all() -> dict[str, set[str]] | None:
        labels = scraped_labels(gateway_url)
        return labels if used <= labels.keys() else None

    with busy_channel(gateway_url):
        httpx.get(f"{gateway_url}/readyz", timeout=60)
        labels_by_metric = until(labels_of_all)
    for place, query in queries().items():
        metrics = [(name, MATCHER.findall(inner)) for name, inner in SELECTOR.findall(query)]
        bare = re.findall(r"\b(?:sluiceway|process)_\w+\b(?!\{)", SELECTOR.sub("", query))
        assert (bool(metrics), bare) == (True, []), place
        for name, matchers in metrics:
            assert ("job", "sluiceway") in matchers, f"{place}: {name} of other jobs"
            for label, _ in matchers:
                assert label in labels_by_metric[name] | ADDED_LABELS, (
                    f"{place}: {name} has no label {label}"
                )
        for listed in re.findall(r"\b(?:by|on) \(([\w, ]+)\)", query):
            for label in listed.split(", "):
                for name, _ in metrics:
                    assert label in labels_by_metric[name] | ADDED_LABELS, (
                        f"{place}: {name} has no label {label}"
                    )


def test_the_values_of_labels_in_the_queries_exist(gateway_url: str) -> None:
    paths = httpx.get(f"{gateway_url}/openapi.json", timeout=60).json()["paths"]
    seen = set()
    for place, query in queries().items():
        for label, value in MATCHER.findall(query):
            if label in VALUES:
                assert value in VALUES[label], f"{place}: no {label} is {value}"
                seen.add(label)
            if label == "route":
                for route in value.split("|"):
                    path = re.sub(r"\[([{}])\]", r"\1", route)
                    assert path in paths, f"{place}: no route is {path}"
    assert seen == VALUES.keys()


def test_an_alert_has_severity_advice_and_runbook() -> None:
    for name, rule in ALERTS.items():
        assert re.fullmatch(r"\d+[mh]", rule["for"]), name
        assert rule["labels"].keys() == {"severity"}, name
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        notes = rule["annotations"]
        assert notes.keys() == {"summary", "description", "runbook"}, name
        page, _, anchor = notes["runbook"].partition("#")
        heads = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
        assert anchor in anchors, f"{name}: {page} has no section {anchor}"
        grouped = set(", ".join(re.findall(r"by \(([\w, ]+)\)", rule["expr"])).split(", "))
        for label in re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]):
            # Without `by`, an alert has the labels of its metric.
            assert label in grouped or "by (" not in rule["expr"], f"{name}: {label} is lost"


def test_panels_of_the_dashboard_have_descriptions_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        panel_cells = {
            (at["x"] + across, at["y"] + down)
            for across in range(at["w"])
            for down in range(at["h"])
        }
        assert not panel_cells & cells, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells |= panel_cells
    for panel in panels():
        assert panel["description"], panel["title"]
        for target in panel["targets"]:
            by = re.findall(r"by \(([\w, ]+)\)", target["expr"])
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert not by or legend <= set(", ".join(by).split(", ")), panel["title"]


def program(name: str) -> str:
    path = shutil.which(name)
    assert path, f"{name} is needed: install it (Debian, Ubuntu: apt install prometheus)"
    return path


def promtool(*arguments: object) -> str:
    result = subprocess.run(
        [program("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


HEALTHY = {
    'up{instance="a"}': "1x120",
    'sluiceway_leader{instance="a"}': "1x120",
    'sluiceway_leader{instance="b"}': "0x120",
    'sluiceway_database_up{instance="a"}': "1x120",
    'sluiceway_kafka_up{instance="a"}': "1x120",
    'sluiceway_loop_consecutive_failures{loop="sample"}': "0x120",
    'sluiceway_waiting_reads{instance="a"}': "5x120",
    'sluiceway_http_requests_total{route="/livez", method="GET", status="200"}': "0+600x120",
    'sluiceway_http_requests_total{route="/readyz", method="GET", status="503"}': "0+60x120",
    'sluiceway_http_requests_total{route="/v1/status", method="GET", status="500"}': "0+1x120",
    'sluiceway_http_request_seconds_bucket{route="/v1/heartbeats", le="0.1"}': "0+60x120",
    'sluiceway_http_request_seconds_bucket{route="/v1/heartbeats", le="10"}': "0+60x120",
    'sluiceway_http_request_seconds_bucket{route="/v1/heartbeats", le="+Inf"}': "0+60x120",
    'sluiceway_reconciled_channels_total{outcome="checked"}': "0+4x120",
    'sluiceway_build_info{version="1", instance="a"}': "1x120",
    'sluiceway_build_info{version="1", instance="b"}': "1x120",
    'sluiceway_channels{phase="ready"}': "3x120",
    'sluiceway_channels{phase="failed"}': "0x120",
    'sluiceway_channels{phase="provisioning"}': "0x120",
    'sluiceway_group_progress{channel="c", group="g", progress="ok"}': "1x120",
    'sluiceway_group_members{channel="c", group="g", role="reader", health="healthy"}': "2x120",
    'sluiceway_group_members{channel="c", group="g", role="reader", health="lost"}': "0x120",
    'sluiceway_group_failures{channel="c", group="g", role="writer"}': "0x120",
    # Notebooks' writers have no group, and a job that was started again has live members.
    'sluiceway_group_failures{channel="c", group="", role="writer"}': "6x120",
    'sluiceway_group_failures{channel="c", group="g", role="reader"}': "1x120",
    'sluiceway_group_partitions_out_of_range{channel="c", group="g"}': "0x120",
    'sluiceway_group_lag_messages{channel="c", group="g"}': "1000x120",
    'sluiceway_group_lag_seconds{channel="c", group="g"}': "400x120",
    'sluiceway_channel_sampled_timestamp_seconds{channel="c"}': "0+60x120",
    'sluiceway_channel_held_back_since_timestamp_seconds{channel="c", owner="o"}': "3660x120",
    'sluiceway_channel_halted{channel="c"}': "0x120",
    "sluiceway_metrics_omitted_channels": "0x120",
}
"""Series of a gateway without problems, one value a minute; `0+60` rises by 60."""

PROGRESS = 'sluiceway_group_progress{channel="c", group="g", progress="%s"}'
PROBLEMS: dict[str, dict[str, str]] = {
    "SluicewayGatewayDown SluicewayReplicaDown": {'up{instance="a"}': "0x120"},
    "SluicewayReplicaDown": {'up{instance="b"}': "0x120"},
    "SluicewayNoLeader": {'sluiceway_leader{instance="a"}': "0x120"},
    "SluicewaySeveralLeaders": {'sluiceway_leader{instance="b"}': "1x120"},
    "SluicewayDatabaseDown": {'sluiceway_database_up{instance="a"}': "0x120"},
    "SluicewayKafkaDown": {'sluiceway_kafka_up{instance="a"}': "0x120"},
    "SluicewayServerErrors": {
        'sluiceway_http_requests_total{route="/v1/status", method="GET", status="500"}': "0+9x120"
    },
    "SluicewayHeartbeatsSlow": {
        'sluiceway_http_request_seconds_bucket{route="/v1/heartbeats", le="0.1"}': "0+57x120"
    },
    "SluicewayLoopFailing": {'sluiceway_loop_consecutive_failures{loop="sample"}': "3x120"},
    "SluicewayChannelsNotCompared": {
        'sluiceway_reconciled_channels_total{outcome="checked"}': "9x120"
    },
    "SluicewayManyWaitingReads": {'sluiceway_waiting_reads{instance="a"}': "9500x120"},
    "SluicewayVersionsDiffer": {'sluiceway_build_info{version="2", instance="b"}': "1x120"},
    "SluicewayChannelFailed": {'sluiceway_channels{phase="failed"}': "1x120"},
    "SluicewayChannelsProvisioning": {'sluiceway_channels{phase="provisioning"}': "1x120"},
    "SluicewayGroupStalled": {PROGRESS % "stalled": "1x120"},
    "SluicewayGroupStopped": {PROGRESS % "stopped": "1x120"},
    "SluicewayGroupNotConverging": {PROGRESS % "falling_behind": "1x120"},
    "SluicewayGroupOutOfRange": {
        'sluiceway_group_partitions_out_of_range{channel="c", group="g"}': "2x120"
    },
    "SluicewayGroupLagGrows": {
        'sluiceway_group_lag_messages{channel="c", group="g"}': "1000+9x120"
    },
    "SluicewayMembersLost": {
        'sluiceway_group_members{channel="c", group="g", role="reader", health="lost"}': "1x120"
    },
    "SluicewayMembersFailed": {
        'sluiceway_group_failures{channel="c", group="g", role="writer"}': "1x120"
    },
    "SluicewayReadersHeldBack": {PROGRESS % "held_back": "1x120"},
    "SluicewayChannelHalted": {'sluiceway_channel_halted{channel="c"}': "1x120"},
    "SluicewayFiguresOld": {'sluiceway_channel_sampled_timestamp_seconds{channel="c"}': "6000x120"},
    "SluicewaySeriesOmitted": {"sluiceway_metrics_omitted_channels": "2x120"},
    "": {},
}
"""Series of each problem, by the alerts that must fire for it."""


@pytest.mark.long
def test_each_alert_fires_for_its_problem_only(tmp_path: Path) -> None:
    def scenario(alerts: str, changed: Mapping[str, str]) -> dict[str, Any]:
        series = HEALTHY | changed
        named = {
            (key.replace("{", '{job="sluiceway", ') if "{" in key else key + '{job="sluiceway"}'): v
            for key, v in series.items()
        }
        fires = [
            {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts.split())
        ]
        return {
            "interval": "1m",
            "input_series": [{"series": key, "values": values} for key, values in named.items()],
            "promql_expr_test": [
                {
                    "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "120m",
                    "exp_samples": fires,
                }
            ],
        }

    assert {alert for alerts in PROBLEMS for alert in alerts.split()} == ALERTS.keys()
    tests = [scenario(alerts, changed) for alerts, changed in PROBLEMS.items()]
    rules = str(PROMETHEUS / "alerts.yml")
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [rules], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "test.yml")


@contextmanager
def prometheus(gateway_url: str, directory: Path) -> Iterator[Callable[..., Any]]:
    """Run Prometheus with the files of deploy/ on a gateway; yield a function for GET requests."""
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(PROMETHEUS / name, directory)
    (directory / "token").touch()
    promtool("check", "config", directory / "prometheus.yml")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    # A gateway without tokens refuses requests that have one.
    del config["scrape_configs"][0]["authorization"]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [gateway_url.split("//")[1]]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stderr=log,
        )

    def get(path: str, **parameters: str) -> Any:
        response = httpx.get(f"http://{address}/api/v1/{path}", params=parameters, timeout=60)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def address_in_log() -> str | None:
        log = (directory / "log").read_text()
        assert process.poll() is None, log
        match = re.search(r'"Listening on" address=(\S+)\n', log)
        return match and match[1]

    try:
        address = until(address_in_log)
        until(lambda: httpx.get(f"http://{address}/-/ready", timeout=60).status_code == 200)
        yield get
    finally:
        process.terminate()
        process.wait(60)


#: Queries that are empty while there is no problem.
_EMPTY = {
    "Readers that do not keep up, A",
    "Lost members, A",
    "Time to drain, A",
    "Halted, A",
    "Failures of loops, A",
    "Errors per second, A",
    "Lag in seconds, B",
}


@pytest.mark.long
def test_prometheus_evaluates_every_panel_and_alert_on_a_gateway(
    gateway_url: str, tmp_path: Path
) -> None:
    with busy_channel(gateway_url), prometheus(gateway_url, tmp_path) as get:

        def has_result(query: str) -> bool:
            return bool(get("query", query=query)["result"])

        def healths() -> dict[str, str]:
            rules = [rule for group in get("rules")["groups"] for rule in group["rules"]]
            return {rule["name"]: rule["health"] for rule in rules}

        httpx.get(f"{gateway_url}/readyz", timeout=60)
        waiting = {
            f"{panel['title']}, {target['refId']}": without_variables(target["expr"])
            for panel in panels()
            for target in panel["targets"]
        }
        assert waiting.keys() >= _EMPTY
        deadline_s = time.monotonic() + 300
        while waiting.keys() - _EMPTY and time.monotonic() < deadline_s:
            waiting = {place: query for place, query in waiting.items() if not has_result(query)}
        assert not waiting.keys() - _EMPTY
        until(lambda: "unknown" not in healths().values())
        assert healths() == dict.fromkeys(ALERTS, "ok")
