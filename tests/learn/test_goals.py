"""Goals: labels, loss and metric together, with the metric's direction."""

import pytest
import torch

from polytempo.core.errors import UserError
from polytempo.learn.goals import Goal, absolute, goals, loss_by_name
from polytempo.learn.metrics import F1, MAE, MSE, Metric, Scale, as_metric, metrics, scale_of


def test_errors_are_means_over_a_samples_numbers():
    outputs, y = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 4.0], [3.0, -1.0]])
    assert MAE.per_sample(outputs, y).tolist() == [1, 2]
    assert MSE.per_sample(outputs, y).tolist() == [2, 5]
    assert MAE.per_sample(outputs[:, :1], y[:, 0]).tolist() == [0, 3]  # a row of one number each
    assert loss_by_name("mse")(outputs[:, :1], y[:, 0]) == 4.5


def test_outputs_that_are_not_as_many_as_labels_are_no_broadcast():
    with pytest.raises(ValueError, match=r"outputs have shape \(2, 2\), and labels \(2,\)"):
        loss_by_name("mse")(torch.zeros(2, 2), torch.zeros(2))


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    outputs = torch.tensor([[1.0, 1.0, -1.0], [-1.0, -1.0, -1.0], [1.0, -1.0, -1.0]])
    y = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert F1.per_sample(outputs, y).tolist() == [0.5, 1, 0]
    assert metrics["labels-right"].per_sample(outputs, y).tolist() == pytest.approx([1 / 3, 1, 1 / 3])


def test_every_goal_has_a_loss_that_fits_its_labels():
    labels = {"classes": torch.tensor([0, 1]), "numbers": torch.rand(2, 3), "several": torch.ones(2, 3)}
    for goal in goals.items():
        outputs = torch.zeros(2, 3, requires_grad=True)
        goal[1].loss(outputs, labels[goal[1].labels]).backward()
        assert goal[1].metric.per_sample(outputs.detach(), labels[goal[1].labels]).shape == (2,)


def test_a_direction_says_what_is_better():
    assert MAE.better(1, 2)
    assert F1.better(2, 1)
    assert not MAE.better(2, 2)


def test_a_function_is_a_metric_of_which_more_is_better():
    def closeness(outputs, y):
        return outputs[:, 0]

    assert as_metric(closeness) == Metric(name="closeness", per_sample=closeness)
    with pytest.raises(UserError, match="metric is int"):
        as_metric(3)


def test_a_run_of_an_older_version_has_accuracies():
    assert scale_of({}) == Scale("accuracy", True, True)
    assert scale_of({"resolved": {"metric": MAE.scale()}}) == Scale("mae", False, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": ""}, "name of a metric is ''. Expected what tables and plots call it"),
        ({"per_sample": 3}, "per_sample of the metric far is int. Expected a function"),
        ({"higher_is_better": "lower"}, "higher_is_better of the metric far is 'lower'. Expected True or False"),
    ],
)
def test_a_metric_says_what_does_not_fit(given, message):
    with pytest.raises(UserError) as raised:
        Metric(**{"name": "far", "per_sample": MAE.per_sample, **given})
    assert message in str(raised.value)


def test_a_metric_has_a_name_of_its_own():
    with pytest.raises(TypeError, match="name"):
        Metric(per_sample=MAE.per_sample)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": "class"}, "Unknown kind of labels of the goal near 'class'. Did you mean 'classes'?"),
        ({"loss": "mse"}, "loss of the goal near is str. Expected a function"),
        ({"metric": absolute}, "metric of the goal near is function absolute. Expected a Metric"),
    ],
)
def test_a_goal_says_what_does_not_fit(given, message):
    with pytest.raises(UserError) as raised:
        Goal(**{"name": "near", "labels": "numbers", "loss": absolute, "metric": MSE, **given})
    assert message in str(raised.value)
