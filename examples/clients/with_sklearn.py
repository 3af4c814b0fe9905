"""scikit-learn's SGDClassifier on its digits. The server begins with a model of zeros: coef (10, 64), intercept (10,).

python with_sklearn.py HOST:PORT client-0.token ca.pem
"""

import sys
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from polytempo_client import Client

x, y = load_digits(return_X_y=True)
x = x / 16
own, test = slice(0, 1400), slice(1400, None)  # this client's rows
model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01)
model.partial_fit(x[:1], y[:1], classes=range(10))  # now it has the arrays that are replaced below


def use(tensors):
    model.coef_ = tensors["coef"].astype("float64")
    model.intercept_ = tensors["intercept"].astype("float64")


def train(task):
    use(task.tensors)
    accuracy = model.score(x[test], y[test])
    model.eta0 = task.work.lr
    for _ in range(task.work.epochs or 1):  # passes over the data
        model.partial_fit(x[own], y[own])
    return {"coef": model.coef_, "intercept": model.intercept_}, 1400, {"accuracy": accuracy}


with Client(sys.argv[1], Path(sys.argv[2]), sys.argv[3]) as client:
    client.run(train, updates=5)
    use(client.pull().tensors)
    print(f"accuracy of the model that this client is served now: {model.score(x[test], y[test]):.3f}")
