"""Frames and data sets of other packages as data."""

import re

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

from polytempo.core.errors import UserError
from polytempo.world.data.columns import Columns
from polytempo.world.data.objects import dataset_of
from support.extras import extra

HEIGHT, AGE, KIND = np.array([1.5, 2.5, 3.5]), np.array([10, 20, 30]), ["b", "a", "b"]
TABLE = {"height": HEIGHT, "age": AGE, "kind": KIND}
X = [[1.5, 10], [2.5, 20], [3.5, 30]]


def pandas_frame(**table):
    return extra("pandas").DataFrame(table)


def polars_frame(**table):
    return extra("polars").DataFrame(table)


def hugging_face(**table):
    return extra("datasets").Dataset.from_dict(table)


each_kind = pytest.mark.parametrize("frame", [pandas_frame, polars_frame, hugging_face])


def read(data, **columns):
    return dataset_of(data, Columns(**columns))[0]


@each_kind
def test_the_columns_of_a_frame_are_features_and_a_label(frame):
    dataset = read(frame(**TABLE), label="kind")
    assert dataset.x.tolist() == X
    assert (dataset.y.tolist(), dataset.classes) == ([1, 0, 1], 2)
    assert read(frame(height=HEIGHT, y=AGE)).y.tolist() == [0, 1, 2]
    assert read(frame(**TABLE), label="kind", features="age").x.tolist() == [[10], [20], [30]]


@each_kind
@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        (TABLE, {}, r"no column is called label or y. Expected label=... with one of height, age, kind"),
        (TABLE, {"label": "sort"}, "there is no column 'sort'. Expected one of height, age, kind"),
        (TABLE, {"label": "age"}, r"column 'kind' holds .*. Expected numbers: encode it"),
        ({"y": KIND}, {}, "there is no column of features. Expected at least one beside the label"),
        ({"y": KIND, "a": [1.0, float("nan"), 2.0]}, {}, "column 'a' has values that are missing or not finite"),
        ({"y": ["a", None, "b"], "a": AGE}, {}, "column 'y' lacks 1 of 3 labels. Expected one per sample"),
        ({"y": [0.0, None, 1.0], "a": AGE}, {}, "column 'y' lacks 1 of 3 labels. Expected one per sample"),
        ({"y": KIND, "a": [[1], [2, 3], [4]]}, {}, "column 'a' holds lists of several lengths. Expected one length"),
    ],
)
def test_a_frame_that_does_not_fit_is_named_with_its_columns(frame, table, columns, message):
    with pytest.raises(UserError, match=message) as raised:
        read(frame(**table), **columns)
    assert re.match(r"data is (pandas|polars|datasets) \w+ with shape \(3, \d\): ", str(raised.value))


@each_kind
def test_a_column_of_lists_is_a_sample_per_row(frame):
    dataset = read(frame(ids=[[1, 2], [3, 0], [4, 4]], label=KIND), vocabulary=5)
    assert (dataset.x.tolist(), dataset.x.dtype) == ([[1, 2], [3, 0], [4, 4]], np.int64)


def test_frames_that_are_not_there_yet_are_refused():
    with pytest.raises(UserError, match=r"data is polars LazyFrame: it is not collected. Expected a DataFrame"):
        read(polars_frame(**TABLE).lazy())
    with pytest.raises(UserError, match=r"it streams its samples. Expected a Dataset"):
        read(hugging_face(**TABLE).to_iterable_dataset(), label="kind")
    with pytest.raises(UserError, match="several columns are called 'a'"):
        read(pandas_frame(a=[1, 2], b=[3, 4], y=[0, 1]).rename(columns={"b": "a"}))


def test_a_frame_is_divided_by_its_column_of_owners():
    frame = pandas_frame(**TABLE)
    owners = dict(list(frame.drop(columns="kind").assign(y=[0, 1, 1]).groupby("age")))
    dataset = read(owners)
    assert (dataset.users.tolist(), dataset.x[:, 0].tolist()) == ([0, 1, 2], HEIGHT.tolist())


def test_missing_values_of_pandas_own_types_are_named():
    pandas = extra("pandas")
    frame = pandas.DataFrame({"a": pandas.array([1, None, 3], "Int64"), "y": [0, 1, 0]})
    with pytest.raises(UserError, match="column 'a' has values that are missing"):
        read(frame)


def test_a_pair_of_frames_is_a_pair_of_arrays():
    frame = pandas_frame(**TABLE)
    dataset = read((frame[["height", "age"]], frame["kind"]))
    assert (dataset.x.tolist(), dataset.y.tolist()) == (X, [1, 0, 1])


def test_a_hugging_face_data_set_has_lists_images_and_parts():
    datasets = extra("datasets")
    image = extra("PIL.Image")
    tokens = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3, 0]], "label": [1, 0]})
    assert read(tokens, features="input_ids", vocabulary=4).x.tolist() == [[1, 2], [3, 0]]
    pictures = [image.fromarray(np.full((2, 3, 3), value, np.uint8)) for value in (0, 255)]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})
    dataset = read(datasets.Dataset.from_dict({"image": pictures, "label": [0, 1]}, features=kinds))
    assert dataset.x.shape == (2, 3, 2, 3)
    assert [one.mean() for one in dataset.x] == [-1, 1]
    parts = datasets.DatasetDict({"train": tokens, "test": tokens})
    assert read(parts, features="input_ids").train_size == 2
    with pytest.raises(UserError, match=r"it has no train part. Expected one beside validation"):
        read(datasets.DatasetDict({"validation": tokens}))


class Squares(TorchDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((1, 2), float(i)), i % 2


def test_a_torch_data_set_is_read_sample_by_sample():
    dataset = read(Squares())
    assert (dataset.x.shape, dataset.y.tolist()) == ((4, 1, 2), [0, 1, 0, 1])
    assert read(Subset(Squares(), [3, 0])).x[:, 0, 0].tolist() == [3, 0]
    with pytest.raises(UserError, match=r"its samples are tuple of 1 \(torch Tensor of float32 with shape \(2,\)\)"):
        read(TensorDataset(torch.zeros(3, 2)))


def test_samples_of_several_shapes_are_refused():
    class Ragged(Squares):
        def __getitem__(self, i):
            return torch.zeros(i + 1), 0

    with pytest.raises(UserError, match=r"x has several shapes \(\(1,\), \(2,\), \(3,\), \(4,\)\)"):
        read(Ragged())
