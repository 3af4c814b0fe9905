"""What deploy/ offers is accepted by the programs it is meant for."""

import json
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel
from typer.main import get_command
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.serve.access.certs import make_certs
from polytempo.serve.server.operations import Operations, read_operations
from polytempo_client.client import Client
from polytempo_client.protocol.framing import SERVICE
from support import ROOT
from support.serving import free_port, hosted, nudge, running

DEPLOY = ROOT / "deploy"
needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx here")
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")


def settings_of(table, prefix=""):
    """The names of all settings, those of tables inside it with a dot."""
    for name, value in table:
        yield from settings_of(value, f"{name}.") if isinstance(value, BaseModel) else [(prefix + name, value)]


def test_the_example_of_service_toml_is_accepted_as_it_is():
    assert read_operations(DEPLOY / "service.toml") == Operations()


def test_the_example_of_service_toml_names_every_setting_with_its_default(tmp_path):
    shown = re.sub(r"^#(\w+ = )", r"\1", (DEPLOY / "service.toml").read_text(), flags=re.MULTILINE)
    (tmp_path / "service.toml").write_text(shown)
    operations = read_operations(tmp_path / "service.toml")
    for name, default in settings_of(Operations()):
        table, _, last = name.rpartition(".")
        given = getattr(operations, table) if table else operations
        assert last in given.model_fields_set, f"{name} is not in the example"
        if default is not None:
            assert getattr(given, last) == default, name


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "polytempo.service"
    unit.write_text((DEPLOY / "polytempo.service").read_text().replace("/opt/polytempo/bin/polytempo", sys.executable))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")


@needs_nginx
def test_nginx_accepts_the_front(tmp_path):
    make_certs(tmp_path, [])
    tested = subprocess.run([*front(tmp_path), "-t"], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr
    assert "test is successful" in tested.stderr


@needs_nginx
@pytest.mark.usefixtures("short_pauses")
def test_a_client_works_through_nginx(tmp_path):
    make_certs(tmp_path, [])
    port = free_port()
    with running(tmp_path) as server:
        command = front(tmp_path, {"listen 7733": f"listen 127.0.0.1:{port}", "127.0.0.1:7735": server.address})
        with subprocess.Popen([*command, "-g", "daemon off;"]) as nginx:
            try:
                with Client(f"127.0.0.1:{port}", server.token(1), tmp_path / "ca.pem") as client:
                    assert client.wait_for_welcome(60)[0] == 1
                    task = client.task(60)
                    client.push(task, nudge(task), samples=5, timeout=60)
            finally:
                nginx.terminate()
        assert server.host.service.updates == 1


def front(directory, changes=()):
    """How to run nginx with the front's settings, here."""
    text = re.sub(r"listen \[::\].*\n", "", (DEPLOY / "nginx.conf").read_text())
    here = {"/var/lib/polytempo": directory, "/run": directory, "/var/log/nginx": directory, "user www-data;": ""}
    for old, new in {**here, **dict(changes)}.items():
        assert old in text
        text = text.replace(old, str(new))
    (directory / "nginx.conf").write_text(text)
    return ["nginx", "-p", directory, "-c", directory / "nginx.conf"]


def test_nginx_hands_on_what_clients_call_to_where_the_guide_lets_the_server_listen():
    text, guide = (DEPLOY / "nginx.conf").read_text(), (DEPLOY / "README.md").read_text()
    assert f"location /{SERVICE}/" in text
    (behind,) = re.findall(r"grpc_pass grpc://([\d.:]+);", text)
    assert f"LISTEN={behind}" in guide


def commands_in(text):
    """Every `polytempo COMMAND --option ...` of a file."""
    text = text.replace("\\\n", " ")
    return re.findall(r"(?:\bpolytempo|bin/polytempo) (\w+)((?: [^\n|`&]*)?)", text)


@pytest.mark.parametrize("name", ["README.md", "Containerfile", "polytempo.service"])
def test_every_command_in_deploy_has_the_options_that_are_given(name):
    text = (DEPLOY / name).read_text().replace('", "', " ").replace('["', "").replace('"]', "")
    text = text.replace("CMD serve", "polytempo serve").replace("polytempo polytempo", "polytempo")
    commands = get_command(app).commands
    found = [(command, said) for command, said in commands_in(text) if command in commands]
    assert found
    for command, said in found:
        known = {option for parameter in commands[command].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", said)) <= known, f"{command}{said}"


def options_in(words):
    return {word for word in words if word.startswith("--")}


def known_options(command):
    return {option for parameter in get_command(app).commands[command].params for option in parameter.opts}


def test_kubernetes_accepts_the_manifests():
    manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text()))
    assert [one["kind"] for one in manifests] == ["Service", "PodDisruptionBudget", "StatefulSet"]
    for manifest in manifests:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    (container,) = manifests[-1]["spec"]["template"]["spec"]["containers"]
    assert options_in(container["args"]) <= known_options(container["args"][0])


def test_a_wrong_manifest_is_refused():
    manifest = list(yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text()))[-1]
    manifest["spec"]["replica"] = manifest["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_servers_of_the_compose_file_have_the_options_that_are_given():
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    commands = [services[name]["command"] for name in ("a", "b")]
    assert [words[0] for words in commands] == ["serve", "serve"]
    assert all(options_in(words) <= known_options("serve") for words in commands)


def test_the_health_check_fails_when_the_service_does_not_run(tmp_path):
    with hosted(tmp_path) as service:
        service.hello(0)
        assert CliRunner().invoke(app, ["status", "--dir", str(tmp_path), "--check"]).exit_code == 0
    status = tmp_path / "journal" / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"stopped": True}))
    checked = CliRunner().invoke(app, ["status", "--dir", str(tmp_path), "--check"])
    assert (checked.exit_code, checked.output) == (1, "")
