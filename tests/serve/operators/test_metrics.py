"""Metrics as Prometheus reads them, and the alerts that use them."""

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from polytempo.serve.operators.metrics import exposition
from support import ROOT
from support.operating import a_client, a_status


def metrics_of(said, answers=None):
    families = text_string_to_metric_families(exposition(said, answers or {}).decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_the_metrics_are_what_prometheus_reads():
    rows = [a_client(0, accuracy=0.5, staleness=4), a_client(1, accuracy=0.9, staleness=0), a_client(2, doing="away")]
    rows[2] |= {"connected": False, "quarantined": "rubbish", "accuracy": None, "staleness": 1}
    found = metrics_of(a_status(rows, branches={"model": 43}), {"401": 6})
    assert found[("polytempo_updates_total",)] == 1234
    assert found[("polytempo_refusals_total", "push")] == 5
    assert found[("polytempo_clients", "training")] == 2
    assert found[("polytempo_clients", "ready")] == 0
    assert found[("polytempo_connected",)] == 2
    assert found[("polytempo_quarantined",)] == 1
    assert found[("polytempo_branch_version", "model")] == 43
    assert found[("polytempo_staleness", "0.5")] == 1
    assert found[("polytempo_staleness", "1.0")] == 4
    assert found[("polytempo_reported_accuracy", "mean")] == pytest.approx(0.7)
    assert found[("polytempo_journal_bytes",)] == 12_345_678
    assert found[("polytempo_request_seconds_bucket", "0.1")] == 99
    assert found[("polytempo_request_seconds_count",)] == 100
    assert found[("polytempo_admin_answers_total", "401")] == 6


def test_clients_that_also_train_alone_are_counted_by_who_is_better_off():
    rows = [a_client(i, used=used, alone=0.5) for i, used in enumerate((0.75, 0.9, 0.5, 0.25, None))]
    found = metrics_of(a_status(rows))
    assert [found[("polytempo_better_off", word)] for word in ("better", "equal", "worse")] == [2, 1, 1]


def test_metrics_of_a_service_that_has_said_little_are_few_and_valid():
    assert metrics_of({})[("polytempo_connected",)] == 0
    assert ("polytempo_updates_total",) not in metrics_of({})


def test_the_number_of_series_does_not_grow_with_the_clients():
    def some(clients):
        rows = [a_client(i, cluster=i, staleness=i) for i in range(clients)]
        return len(metrics_of(a_status(rows, branches={f"own.{i}": i for i in range(clients)})))

    assert some(100) == some(2000)


def test_a_label_cannot_break_out():
    hostile = 'a"} 1\npolytempo_updates_total 666 #'
    found = metrics_of(a_status(refusals={hostile: 1}))
    assert found[("polytempo_refusals_total", hostile)] == 1
    assert found[("polytempo_updates_total",)] == 1234


def test_a_service_with_several_servers_says_who_leads_and_who_could():
    found = metrics_of(a_status())
    names = ("leads", "epoch", "standbys", "standby_behind_events", "standbys_differ", "database_unreachable")
    assert [found[(f"polytempo_{name}",)] for name in names] == [1, 7, 1, 8, 1, 0]
    assert metrics_of(a_status(role="standby"))[("polytempo_leads",)] == 0


def test_a_single_server_has_no_word_of_others():
    status = a_status()
    del status["role"]
    assert ("polytempo_leads",) not in metrics_of(status)


def test_the_docs_list_every_metric_and_the_alerts_use_no_other():
    offered = {family.name for family in text_string_to_metric_families(exposition(a_status(), {"200": 1}).decode())}
    named = {
        name.removesuffix("_total") for name in re.findall(r"`(polytempo_\w+)", text_of("docs/service/dashboard.md"))
    }
    used = re.findall(
        r"polytempo_\w+", "".join(re.findall(r"expr: (.*?)\n +(?:for|labels):", text_of("deploy/alerts.yml"), re.S))
    )
    assert named == offered
    assert len(used) > 5
    assert {re.sub("_(total|bucket)$", "", name) for name in used} <= offered


def test_the_dashboard_for_grafana_uses_metrics_that_exist():
    offered = {family.name for family in text_string_to_metric_families(exposition(a_status(), {"200": 1}).decode())}
    board = json.loads(text_of("deploy/grafana.json"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    used = {name for words in asked for name in re.findall(r"polytempo_\w+", words)}
    assert len(used) > 15
    assert {re.sub("_(total|bucket|sum|count)$", "", name) for name in used} - offered == set()


def test_the_docs_explain_every_alert():
    alerts = re.findall(r"alert: (\w+)", text_of("deploy/alerts.yml"))
    assert [name for name in alerts if f"`{name}`" not in text_of("docs/service/dashboard.md")] == []


def text_of(path):
    return (ROOT / path).read_text()
