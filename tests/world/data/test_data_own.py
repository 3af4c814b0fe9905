"""The user's own data: what is accepted, and what is refused by name."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo.world.data import load_dataset
from polytempo.world.dataset import Dataset
from support import ROOT
from support.extras import extra


def test_an_npz_may_bring_its_test_part_and_users(tmp_path: Path) -> None:
    users = np.array(["b", "a", "b"])
    np.savez(tmp_path / "my.npz", x=np.eye(2), y=[7, 3], x_test=np.ones((1, 2)), y_test=[5], users=users)
    data = load_dataset(str(tmp_path / "my.npz"))
    assert (data.name, data.y.tolist(), data.classes, data.train_size) == ("my", [2, 0, 1], 3, 2)
    assert data.users is not None
    assert (data.users.tolist(), data.x.dtype, data.x.shape) == ([1, 0, 1], np.float32, (3, 2))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.eye(2), "z": [0, 1]}, "it has x, z"),
        ({"x": np.eye(2), "y": [1]}, "x has 2 samples and y has shape"),
        ({"x": np.eye(2), "y": [0, 1], "x_test": np.eye(2)}, "one of x_test and y_test"),
        ({"x": np.eye(2), "y": [0, 1], "x_test": np.eye(3), "y_test": [0, 1, 1]}, "those of x_test"),
        ({"x": np.eye(2), "y": [0, 1, 1], "x_test": np.eye(2), "y_test": [0]}, "x has 2 samples and y has shape"),
        ({"x": np.eye(2), "y": [0, 1], "users": [0]}, "users has shape"),
        ({"x": np.eye(2), "y": [0.5, 1]}, "not whole numbers"),
        ({"x": [[np.nan, 1]], "y": [0]}, "not finite"),
        ({"x": np.empty((0, 2)), "y": []}, "no samples"),
        ({"x": [1, 2], "y": [0, 1]}, "samples x features"),
        ({"x": np.array([{}], object), "y": [0]}, "allow_pickle"),
    ],
)
def test_an_npz_that_does_not_fit_together_is_refused(tmp_path: Path, arrays: dict, reason: str) -> None:
    np.savez(tmp_path / "my.npz", **arrays)
    with pytest.raises(UserError, match=rf"my\.npz cannot be read: .*{reason}.*Expected an \.npz"):
        load_dataset(str(tmp_path / "my.npz"))


def test_files_that_are_not_what_they_are_called_are_refused(tmp_path: Path) -> None:
    (tmp_path / "my.npz").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"my\.npz cannot be read"):
        load_dataset(str(tmp_path / "my.npz"))
    (tmp_path / "my.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"my\.csv cannot be read"):
        load_dataset(str(tmp_path / "my.csv"))
    with pytest.raises(UserError, match=r"no data file .*other\.csv"):
        load_dataset(str(tmp_path / "other.csv"))


@pytest.mark.parametrize(
    ("text", "x", "y"),
    [
        ("1,2,0\n3,4,1\n", [[1, 2], [3, 4]], [0, 1]),
        ("a,b,c\n1,2,10\n3,4,9\n", [[1, 2], [3, 4]], [1, 0]),
        ("a,Label,c\n1,no,2\n3,yes,4\n", [[1, 2], [3, 4]], [0, 1]),
        ("y,1,2\n5,1,2\n6,3,4\n", [[1, 2], [3, 4]], [0, 1]),
        ("1,2,cat\n\n3,4,ant\n", [[1, 2], [3, 4]], [1, 0]),
        ("1;2;0\n3;4;1\n", [[1, 2], [3, 4]], [0, 1]),
        ("a\ty\tb\n1\tno\t2\n3\tyes\t4\n", [[1, 2], [3, 4]], [0, 1]),
        ("1|2|a;b\n3|4|a\n", [[1, 2], [3, 4]], [1, 0]),
        ('1,2,"a;b"\n3,4,"c;d"\n', [[1, 2], [3, 4]], [0, 1]),
    ],
)
def test_a_csv_label_is_the_column_of_that_name_or_the_last(tmp_path: Path, text: str, x: list, y: list) -> None:
    (tmp_path / "my.csv").write_text(text)
    data = load_dataset(str(tmp_path / "my.csv"))
    assert (data.x.tolist(), data.y.tolist(), data.classes, data.train_size) == (x, y, 2, 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1,2,0\n1,oops,1\n", "data row 2: .*oops"),
        ("1,2,0\n1,1\n", "data row 2 has 2 columns separated by commas, the first 3"),
        ("1;2;0\n1;1\n", "data row 2 has 2 columns separated by semicolons"),
        (
            "1,5;2,5;0\n3,5;4,5;1\n",
            r"data row 1: .*3,5.*, write numbers with a point \(columns separated by semicolons",
        ),
        ("1 2 0\n3 4 1\n", "at least two columns.*separated by commas, semicolons, tabs or bars"),
        ("1,2,0\n1,2,\n", "data row 2 has no label"),
        ("1,2,0\n1,nan,1\n", "not finite"),
        ("a,b,y\n", "no samples"),
        ("", "no rows"),
    ],
)
def test_a_wrong_csv_row_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "my.csv").write_text(text)
    with pytest.raises(UserError, match=rf"my\.csv cannot be read: .*{reason}"):
        load_dataset(str(tmp_path / "my.csv"))


def write_image(path: Path, colour: int | tuple[int, int, int], size: tuple[int, int] = (3, 2)) -> None:
    image = extra("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def test_a_folder_of_images_has_a_class_per_folder(tmp_path: Path) -> None:
    write_image(tmp_path / "pets/dog/1.png", 255)
    write_image(tmp_path / "pets/cat/1.PNG", 0)
    data = load_dataset(str(tmp_path / "pets"))
    assert (data.x.shape, data.y.tolist(), data.classes, data.train_size) == ((2, 1, 2, 3), [0, 1], 2, 2)
    np.testing.assert_allclose([data.x[0], data.x[1]], [np.full((1, 2, 3), -1), np.full((1, 2, 3), 1)], atol=1e-6)


def test_a_folder_may_have_train_and_test_and_colour_is_kept(tmp_path: Path) -> None:
    write_image(tmp_path / "train/dog/1.png", 255)
    write_image(tmp_path / "train/cat/1.png", (255, 0, 255))
    write_image(tmp_path / "test/dog/1.png", (0, 0, 0))
    data = load_dataset(str(tmp_path))
    assert (data.x.shape, data.y.tolist(), data.train_size) == ((3, 3, 2, 3), [0, 1, 1], 2)
    np.testing.assert_allclose(data.x[0, :, 0, 0], [1, -1, 1], atol=1e-6)


def test_images_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="holds no images"):
        load_dataset(str(tmp_path))
    write_image(tmp_path / "cat/1.png", 0)
    write_image(tmp_path / "cat/2.png", 0, size=(5, 5))
    with pytest.raises(UserError, match=r"2\.png is 5x5, .*1\.png 3x2"):
        load_dataset(str(tmp_path))
    (tmp_path / "cat/2.png").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"2\.png cannot be read"):
        load_dataset(str(tmp_path))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"pip install 'polytempo\[images\]'"):
        load_dataset(str(tmp_path))


FUNCTIONS = """
import numpy as np
from polytempo.world.dataset import Dataset
x, y = np.eye(3), np.array([0, 1, 2])
def two(): return x, y
def four(): return x, y, x, y
def whole(): return Dataset("mine", x.astype(np.float32), y, 3, 2)
def wrong(): return [1]
def beyond(): return Dataset("mine", x.astype(np.float32), y, 2, 2)
def failing(): return 1 / 0
constant = 3
"""


def test_a_function_may_return_arrays_or_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    lengths = {name: load_dataset(f"{tmp_path}/mine.py:{name}") for name in ("two", "four", "whole")}
    assert {name: (len(data), data.train_size) for name, data in lengths.items()} == {
        "two": (3, 3),
        "four": (6, 3),
        "whole": (3, 2),
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong", "it returned a list"),
        ("beyond", r"labels must be 0 \.\. 1"),
        ("failing", "ZeroDivisionError"),
        ("constant", "'int' object is not callable"),
        ("tow", "Did you mean 'two'"),
    ],
)
def test_a_function_that_does_something_else_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    with pytest.raises(UserError, match=reason):
        load_dataset(f"{tmp_path}/mine.py:{name}")


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def broken(:")
    with pytest.raises(UserError, match="SyntaxError"):
        load_dataset(f"{tmp_path}/mine.py:broken")


def test_a_data_set_checks_itself() -> None:
    x, y = np.zeros((2, 3), np.float32), np.array([0, 1])
    with pytest.raises(UserError, match="x must be float32"):
        Dataset("d", x.astype(np.float64), y, 2, 2)
    with pytest.raises(UserError, match="y must be 2 int64 labels"):
        Dataset("d", x, y[:1], 2, 2)
    with pytest.raises(UserError, match=r"train_size must be 0 \.\. 2"):
        Dataset("d", x, y, 2, 3)
    with pytest.raises(UserError, match="users must be 2"):
        Dataset("d", x, y, 2, 2, users=y[:1])


def test_the_example_in_the_documentation_works(tmp_path: Path) -> None:
    text = (ROOT / "docs/guides/data.md").read_text()
    example = re.search(r"```python\n# rings\.py\n(.*?)```", text, re.DOTALL)
    assert example is not None
    (tmp_path / "rings.py").write_text(example[1])
    data = load_dataset(f"{tmp_path}/rings.py:rings")
    assert (data.x.shape, data.classes) == ((2000, 2), 2)


def test_an_npz_that_says_how_many_classes_there_are_keeps_its_labels_when_one_is_gone(tmp_path: Path) -> None:
    np.savez(tmp_path / "my.npz", x=np.eye(2), y=[0, 2], classes=4)
    data = load_dataset(str(tmp_path / "my.npz"))
    assert (data.y.tolist(), data.classes) == ([0, 2], 4)
    np.savez(tmp_path / "my.npz", x=np.eye(2), y=[0, 4], classes=4)
    with pytest.raises(UserError, match=r"labels are not 0 \.\. 3"):
        load_dataset(str(tmp_path / "my.npz"))
