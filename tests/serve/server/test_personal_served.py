"""A service whose clients keep models of their own: what they are told, and what it makes of what their juries say."""

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.serve.journal.replay import replay, what_if
from polytempo.serve.journal.settings import make_settings
from polytempo.serve.operators.metrics import exposition
from polytempo.serve.server.status import read_status
from polytempo.testing.hosting import Hosted, hosted
from polytempo_client.personal.told import JuryScores, Personal
from polytempo_client.protocol.personal import personal_of
from polytempo_client.protocol.tasks import task_of
from support.serving import join_all, nudge, restarted, running

CLIENTS = 6
FAIR = JuryScores(3, (1.0, 0.0, 1.0, 2.0), (0.1, 0.7, 1.25, 1 / 3))


def personal_tasks(served: Hosted, client: int) -> list[Personal | None]:
    heads = [head for head, _ in served.sessions[client].sent]
    return [personal_of(head.task) for head in heads if head.WhichOneof("kind") == "task"]


def report_all(served: Hosted, report: JuryScores = FAIR, clients: int = CLIENTS) -> None:
    for client in range(clients):
        served.push(client, jury=report)


# What clients are told.


def test_a_task_tells_the_rule_and_as_soon_as_five_have_reported_the_pool(tmp_path: Path) -> None:
    with hosted(tmp_path, personal=True) as served:
        join_all(served, CLIENTS)
        report_all(served)
        assert personal_tasks(served, 0) == [Personal(), Personal()]
        pool = served.host.service.strategy.personal().pool
        assert personal_tasks(served, 5) == [Personal(), Personal(pool=pool)]
    assert pool == JuryScores(1, tuple(e / 3 for e in FAIR.errors), pytest.approx(tuple(b / 3 for b in FAIR.briers)))


def test_parameters_of_a_rule_arrive_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Personal("other", {"alpha": 0.1, "cap": 1 / 3}, FAIR)
    with hosted(tmp_path, personal=True) as served:
        monkeypatch.setattr(served.host.service.strategy, "personal", lambda: told)
        join_all(served, 1)
        head, body = served.sessions[0].sent[-1]
        assert task_of(head.task, body, served.host.service.schema).personal == told


def test_a_pulled_model_comes_with_the_pool_and_the_last_task_that_was_answered(tmp_path: Path) -> None:
    for strategy in ("fedasync", "support.serving:Refresher"):  # the second one orders what is sent
        directory = tmp_path / strategy.partition(":")[0]
        directory.mkdir()
        with hosted(directory, strategy, personal=True) as served:
            join_all(served, CLIENTS)
            first = served.task(2)
            report_all(served)
            reply = served.pull(2).model
            assert personal_of(reply) == served.host.service.strategy.personal()
            assert reply.answered == first


def test_a_service_without_the_rule_says_nothing_of_it(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served, 1)
        served.push(0, jury=FAIR)
        assert personal_tasks(served, 0) == [None, None]
        assert not served.pull(0).model.HasField("personal")
        assert [event.push.jury for event in served.events() if event.push] == [None]
        assert served.host.service.strategy.bad_reports is None


def test_a_task_says_which_result_was_taken_last_also_when_it_is_sent_again(tmp_path: Path) -> None:
    with hosted(tmp_path, personal=True) as served:
        join_all(served, 1)
        first = served.task(0)
        task = served.push(0).task
        assert (task.answered, served.ready(0).task.answered) == (first, first)
        served.leave(0)
        served.hello(0)
        assert served.ready(0).task.answered == first


# What clients report.

BAD = {
    "no rows": JuryScores(0, (0.0,) * 4, (0.0,) * 4),
    "too few scores": JuryScores(3, (0.0,) * 3, (0.0,) * 3),
    "too many scores": JuryScores(3, (0.0,) * 1000, (0.0,) * 1000),
    "none": JuryScores(3, (), ()),
    "NaN": JuryScores(3, (math.nan, 0.0, 0.0, 0.0), (0.0,) * 4),
    "infinite": JuryScores(3, (0.0,) * 4, (0.0, math.inf, 0.0, 0.0)),
    "negative": JuryScores(3, (-1.0, 0.0, 0.0, 0.0), (0.0,) * 4),
    "more errors than rows": JuryScores(3, (4.0, 0.0, 0.0, 0.0), (0.0,) * 4),
    "enormous": JuryScores(2**64 - 1, (1e300,) * 4, (0.0,) * 4),
}


@pytest.mark.parametrize("report", BAD.values(), ids=BAD)
def test_a_report_that_cannot_be_true_is_dropped_and_counted_and_its_update_counts(
    tmp_path: Path, report: JuryScores
) -> None:
    with hosted(tmp_path, personal=True) as served:
        join_all(served, CLIENTS)
        assert served.push(0, jury=report).WhichOneof("kind") == "task"
        strategy: Any = served.host.service.strategy
        assert (strategy.bad_reports, strategy.reports, served.host.service.updates) == (1, {}, 1)
        assert restarted(served.copied(tmp_path / "crashed"), served.settings) == served.digest()


def test_a_boastful_report_counts_as_one_of_thirty_rows(tmp_path: Path) -> None:
    rows = 2**60
    with hosted(tmp_path, personal=True) as served:
        join_all(served, CLIENTS)
        served.push(0, jury=JuryScores(rows, (float(rows),) * 4, (0.0,) * 4))
        strategy: Any = served.host.service.strategy
        assert strategy.reports == {0: JuryScores(30, (30.0,) * 4, (0.0,) * 4)}
        assert strategy.bad_reports == 0


def test_clients_that_report_nothing_take_part_and_have_no_say(tmp_path: Path) -> None:
    with hosted(tmp_path, personal=True) as served:
        join_all(served, CLIENTS + 1)
        report_all(served)
        before = served.host.service.strategy.personal()
        served.push(CLIENTS)
        assert served.host.service.strategy.personal() == before
        assert served.host.service.members[CLIENTS].updates == 1


def test_a_client_that_knows_nothing_of_the_rule_goes_on_working(tmp_path: Path) -> None:
    with running(tmp_path, personal=True) as server, server.client(0) as client:
        client.run(lambda task: (nudge(task), 5), updates=3)
        pulled = client.pull(30)
        assert server.host.service.updates == 3
        served = server.host.service.strategy.model_for(0)
        assert np.array_equal(client.schema.flatten(pulled.tensors), served.numpy())
    assert not list(tmp_path.glob("*.memory"))


def test_the_status_and_the_metrics_count_bad_reports(tmp_path: Path) -> None:
    with hosted(tmp_path, personal=True) as served:
        join_all(served, 1)
        served.push(0, jury=BAD["NaN"], used=0.75, alone=0.5)
        served.host.write_status(stopping=True)
        status = read_status(served.directory)
    assert (status["bad_reports"], status["tryout_winner"]) == (1, None)
    assert (status["clients"][0]["used"], status["clients"][0]["alone"]) == (0.75, 0.5)
    assert "polytempo_bad_reports_total 1.0" in exposition(status, {}).decode()


def test_the_status_says_who_won_a_tryout_once_it_is_decided(tmp_path: Path) -> None:
    with hosted(tmp_path, personal=True) as served:
        join_all(served, 1)
        shown = []
        for decided in ("", "solo"):
            served.host.service.strategy.tryout.decided = decided  # type: ignore[attr-defined]
            served.host.write_status(stopping=True)
            shown.append(CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout)
    assert ["tryout won by: solo" in text for text in shown] == [False, True]


def test_an_accuracy_beyond_one_is_refused(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served, 1)
        assert "accuracy is 2.0; expected 0 to 1" in served.push(0, used=0.5, alone=2.0).refusal.reason


# What the journal keeps.


def test_the_journal_keeps_reports_to_the_bit(tmp_path: Path) -> None:
    odd = JuryScores(7, (0.1 + 0.2, 1 / 3, 2.0, 7.0), (math.pi, 1e-300, 0.0, 5.0), True)
    with hosted(tmp_path, personal=True) as served:
        join_all(served, CLIENTS)
        served.push(0, jury=odd, used=0.3, alone=0.1)
        push = next(event.push for event in served.events() if event.push is not None)
        assert (push.jury, push.used, push.alone) == (odd, 0.3, 0.1)


def test_rows_without_a_report_are_those_of_earlier_versions(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served, 1)
        served.push(0)
        with sqlite3.connect(f"file:{served.directory / 'journal.sqlite'}?mode=ro", uri=True) as database:
            details = [json.loads(row[0]) for row in database.execute("SELECT detail FROM events WHERE kind='updated'")]
    assert len(details) == 1
    assert {"jury", "used", "alone"}.isdisjoint(details[0])


def test_a_replay_ends_in_the_servers_digest_and_what_if_tries_the_rule_and_its_absence(tmp_path: Path) -> None:
    with hosted(tmp_path, personal=True) as served:
        join_all(served, CLIENTS)
        report_all(served)
        digest, settings = served.digest(), served.settings
    assert replay(tmp_path / "journal").service.digest() == digest
    same = what_if(tmp_path / "journal", settings).other.service.strategy
    assert same.personal().pool is not None
    without = what_if(tmp_path / "journal", settings.model_copy(update={"personal": False})).other
    assert (without.updates, without.service.strategy.personal()) == (CLIENTS, None)
    other = make_settings(**{**settings.model_dump(), "strategy": "concerto"})
    assert what_if(tmp_path / "journal", other).other.service.strategy.personal().pool is not None


def test_a_service_forgets_the_report_of_a_client_that_is_erased(tmp_path: Path) -> None:
    with hosted(tmp_path, personal=True) as served:
        join_all(served, CLIENTS)
        report_all(served)
        strategy: Any = served.host.service.strategy
        served.host.service.forget(3)
        assert set(strategy.reports) == {0, 1, 2, 4, 5}
        assert strategy.rows == 5 * FAIR.rows
