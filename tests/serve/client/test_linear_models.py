"""Sites that fit linear models with scikit-learn and push the coefficients, to a service with default settings that
starts from zeros."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.preprocessing import StandardScaler

from polytempo.serve.journal.settings import ServiceSettings
from polytempo_client.client import Client
from polytempo_client.protocol.tasks import Tensors
from support.serving import running

SITES = 4
FITTED = {
    "logistic, scaled": (LogisticRegression(C=100), True),
    "logistic, raw": (LogisticRegression(C=100, max_iter=200), False),
    "sgd, scaled": (SGDClassifier(random_state=0), True),
    "sgd, raw": (SGDClassifier(random_state=0), False),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("case", FITTED)
def test_honest_sites_are_neither_refused_nor_put_in_quarantine(case: str, tmp_path: Path) -> None:
    model, scaled = FITTED[case]
    wine = load_wine()
    x = StandardScaler().fit_transform(wine.data) if scaled else wine.data
    zeros = tmp_path / "zeros.safetensors"
    save_file({"coef": np.zeros((3, 13), np.float32), "intercept": np.zeros(3, np.float32)}, zeros)
    defaults = {name: ServiceSettings.model_fields[name].default for name in ("clip", "samples_cap", "steps")}

    def fit(site: int) -> tuple[Tensors, int]:
        rows = np.arange(site, len(x), SITES)
        fitted = clone(model).fit(x[rows], wine.target[rows])
        return {"coef": np.float32(fitted.coef_), "intercept": np.float32(fitted.intercept_)}, len(rows)

    def take_part(client: Client, site: int) -> None:
        with client:
            client.run(lambda task: fit(site), updates=3)
            client.leave(30)

    with running(tmp_path, "fedavg", clients=SITES, init=zeros, **defaults) as server:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda site: take_part(server.client(site), site), range(SITES)))
        with server.client(0) as client:
            served = client.pull(30).tensors
        assert server.shared.meters.refusals == {}
        assert server.shared.access.roster.quarantined == {}
        assert server.host.service.updates == 3 * SITES
    right = (x @ served["coef"].T + served["intercept"]).argmax(axis=1) == wine.target
    assert not scaled or right.mean() > 0.9
