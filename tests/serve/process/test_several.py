"""Several servers on one database: one leads, the others read along, and nothing that was acknowledged is lost."""

import shutil
import tempfile
from pathlib import Path

import pytest

from polytempo.core.errors import UserError
from polytempo.serve.access.enrolment import make_code
from polytempo.serve.access.roster import Roster
from polytempo.serve.access.tokens import revoke_client
from polytempo.serve.journal.replay import replay
from polytempo.serve.paths import ACCESS
from polytempo.serve.process.handing_over import hand_over
from polytempo_client.session.enrolment import enrol_client
from support.postgres import Replicated, Server
from support.serving import free_port, nudge, until
from support.several import QUICK, Several, several

pytestmark = pytest.mark.usefixtures("short_pauses")


def pair(servers: Several) -> None:
    """Server a leads, and b stands by."""
    servers.start("a")
    servers.wait_for_leader("a")
    servers.start("b")
    servers.wait_for_standby("b")


def applied(servers: Several) -> list[int]:
    """Tasks whose updates the journal holds, in order."""
    rows = servers.execute("SELECT detail::json ->> 'task' FROM events WHERE kind = 'updated' AND void IS NULL")
    return [int(task) for (task,) in rows]


def enrolled(address: str, code: str, token: Path) -> bool:
    """Does the server know the code by now?"""
    try:
        return enrol_client(address, code, token, insecure=True).client == 7
    except UserError:
        return False


def test_one_server_leads_and_the_other_sends_clients_to_it(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database) as servers:
        pair(servers)
        assert servers.answer("b").startswith("UNAVAILABLE: not here")
        servers.push("a")
        assert [row["role"] for row in servers.status("a")["servers"]].count("leader") == 1


def test_a_standby_comes_to_the_same_state(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database) as servers:
        pair(servers)
        servers.push("a", count=5)
        servers.push("a", 1, count=3)
        servers.wait_for_standby("b")
        until(lambda: servers.status("b").get("updates") == 8)
        assert servers.status("b")["standby"]["differed_at"] is None


def test_after_a_hand_over_the_other_leads_and_nothing_is_lost(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database) as servers:
        pair(servers)
        tasks = servers.push("a", count=3)
        done = hand_over(tmp_path / "b")
        assert (done.before, done.leader) == (servers.servers["a"].address, servers.servers["b"].address)
        tasks += servers.push("b", count=3)
        assert servers.answer("a").startswith("UNAVAILABLE: not here")
        assert applied(servers) == tasks
        servers.wait_for_standby("a")
        assert hand_over(tmp_path / "a", servers.servers["a"].address).epoch > done.epoch
        servers.push("a")


def test_a_hand_over_needs_a_server_that_stands_by(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database) as servers:
        servers.start("a")
        servers.wait_for_leader("a")
        with pytest.raises(UserError, match=r"No server stands by that could lead\. Nothing was changed"):
            hand_over(tmp_path / "a")
        with pytest.raises(UserError, match=r"No server at 127\.0\.0\.1:1 stands by"):
            hand_over(tmp_path / "a", "127.0.0.1:1")


def test_when_the_leader_stops_the_standby_leads(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database) as servers:
        pair(servers)
        tasks = servers.push("a", count=3)
        servers.stop("a")
        servers.wait_for_leader("b")
        tasks += servers.push("b", count=2)
        assert applied(servers) == tasks
        assert servers.lease()["epoch"] > 1


def test_a_leader_whose_lease_another_one_took_acknowledges_nothing_more(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database) as servers:
        pair(servers)
        with servers.client("a") as client:
            task = client.task(60)
            servers.let_lead("somebody else", seconds=1)
            with pytest.raises(TimeoutError):
                client.push(task, nudge(task), samples=10, timeout=0.5)
        assert applied(servers) == []
        with servers.client(servers.wait_for_any_leader()) as client:
            assert client.task(60).number == task.number
            client.push(task, nudge(task), samples=10, timeout=60)
        assert applied(servers) == [task.number]


def test_a_leader_that_loses_its_connection_in_the_middle_goes_on_from_what_is_there(
    tmp_path: Path, database: Server
) -> None:
    with several(tmp_path, database) as servers:
        servers.start("a")
        servers.wait_for_leader("a")
        tasks = servers.push("a", count=2)
        holder = servers.lease()["holder"]
        connections = f"pg_stat_activity WHERE application_name = '{holder}'"
        assert len(servers.execute(f"SELECT pg_terminate_backend(pid) FROM {connections}")) >= 3
        tasks += servers.push("a", count=2)
        assert applied(servers) == tasks
        assert servers.lease()["epoch"] == 2


def test_a_database_that_is_restarted_costs_a_pause(tmp_path: Path) -> None:
    from support.postgres import postgres

    with postgres() as database, several(tmp_path, database) as servers:
        pair(servers)
        tasks = servers.push("a", count=2)
        database.stop()
        until(lambda: servers.logged("database does not answer"))
        database.start()
        tasks += servers.push(servers.wait_for_any_leader(), count=2)
        assert applied(servers) == tasks


def test_who_is_let_in_or_out_at_one_server_is_so_at_all(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database) as servers:
        pair(servers)
        code = make_code(tmp_path / "b", 7)
        until(lambda: enrolled(servers.servers["b"].address, code, tmp_path / "client-7.token"))
        with servers.client("a") as client:
            client.task(60)
            revoke_client(tmp_path / "b", 0)
            with pytest.raises(UserError, match="the token was revoked"):
                client.hold(client.task(60), 60)
        hand_over(tmp_path / "a")
        assert 0 not in Roster.read(tmp_path / "a" / ACCESS).clients
        from polytempo_client.client import Client

        with Client(servers.servers["b"].address, tmp_path / "client-7.token", insecure=True) as newcomer:
            assert newcomer.task(60)


def test_settings_reach_every_server(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database) as servers:
        pair(servers)
        servers.set("patience = 7.5\n[failover]\nlease_seconds = 60\n[log]\nfile = 'service.log'\n")
        until(lambda: len(servers.logged("reloaded")) == 2)
        assert [row["patience"] for row in servers.logged("reloaded")] == [7.5, 7.5]


def test_a_lease_that_nobody_renews_runs_out(tmp_path: Path, database: Server) -> None:
    with several(tmp_path, database, QUICK) as servers:
        servers.start("a")
        servers.wait_for_leader("a")
        tasks = servers.push("a", count=2)
        servers.stop("a")
        servers.let_lead("one that died", seconds=1)
        servers.start("b")
        servers.wait_for_leader("b")
        tasks += servers.push("b", count=2)
        assert applied(servers) == tasks
        assert replay(tmp_path / "b" / "journal").service.updates == 4


def test_a_database_that_fails_over_itself_costs_a_pause(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="polytempo-replicated-"))  # its path must be short
    folder.chmod(0o755)
    database = Replicated(folder, (free_port(), free_port()))
    try:
        with several(tmp_path, database) as servers:
            pair(servers)
            tasks = servers.push("a", count=2)
            database.fail_over()
            until(lambda: servers.logged("database does not answer"))
            tasks += servers.push(servers.wait_for_any_leader(), count=2)
            assert applied(servers) == tasks
    finally:
        database.stop()
        database.replica.stop()
        shutil.rmtree(folder)
