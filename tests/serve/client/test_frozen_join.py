"""Clients of a service whose model has frozen parts: only what trains travels, and both sides have the same encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from polytempo.core.errors import UserError
from polytempo.core.model.vectors import schema_of
from polytempo.serve.client.join import join
from polytempo.serve.client.own_data import make_join_settings
from polytempo.serve.journal.settings import make_settings
from polytempo.testing.hosting import restarted
from polytempo_client.protocol.welcome import make_welcome, schema_in
from support.serving import Running, running

INSIDE = {"model": "support.frozen:inside", "data": "support.joining:data"}
OUTSIDE = INSIDE | {"model": "support.frozen:outside"}
SERVED = {"init": None, "clip": None, "steps": 3, "batch_size": 4}


def trained(server: Running, **settings: Any) -> dict[str, torch.Tensor]:
    """The served model after three updates of client 0."""
    join(lambda: server.client(0), make_join_settings(**settings, engine="eager"), 3, lambda _: None)
    with server.client(0) as client:
        return {name: torch.from_numpy(array) for name, array in client.pull(30).tensors.items()}


def test_a_service_of_a_frozen_model_is_that_of_its_trained_part(tmp_path: Path) -> None:
    served = {}
    for name, settings in (("inside", INSIDE), ("outside", OUTSIDE)):
        (tmp_path / name).mkdir()
        with running(tmp_path / name, "casa", **SERVED, **settings) as server:
            served[name] = trained(server, **settings)
        assert restarted(server.directory, server.settings) == server.host.service.digest()
    assert not any(name.startswith("encoder") for name in served["inside"])
    assert all(torch.equal(served["inside"][name], tensor) for name, tensor in served["outside"].items())


def test_a_client_with_other_frozen_weights_is_refused(serve: Any) -> None:
    server = serve("fedasync", **SERVED, **INSIDE)
    with pytest.raises(UserError, match=r"frozen parts.*here, fingerprint .* there"):
        trained(server, **INSIDE, seed=1)
    with pytest.raises(UserError, match=r"frozen parts.*none here, fingerprint"):
        trained(server, **OUTSIDE)
    assert server.host.service.updates == 0


def test_a_service_begun_from_a_file_knows_the_frozen_parts_of_its_own_model(tmp_path: Path) -> None:
    settings = make_settings(strategy="fedasync", **INSIDE)
    schema, weights = settings.first_model()
    save_file({name: tensor.clone() for name, tensor in schema.views(weights + 1).items()}, tmp_path / "a.safetensors")
    found, begun = settings.model_copy(update={"init": tmp_path / "a.safetensors"}).first_model()
    assert found == schema
    assert torch.equal(begun, weights + 1)


def test_a_model_without_frozen_parts_is_welcomed_as_ever() -> None:
    schema = schema_of(torch.nn.Linear(2, 2))
    welcome = make_welcome(1, schema, 0, 0)
    assert "frozen" not in [field.name for field, _ in welcome.ListFields()]
    assert schema_in(welcome) == schema
