"""AG News: headlines and leads of news in four topics, as fixed-length rows of word numbers."""

import csv
import re
from collections import Counter
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from polytempo.world.data.sources import Download, Source, check_labels, reading
from polytempo.world.dataset import Dataset
from polytempo_client.disk.reading import open_plain

CLASSES = 4
VOCABULARY = 10_000
LENGTH = 64
PADDING, UNKNOWN = 0, 1

Texts = list[tuple[int, list[str]]]


def load(data_dir: Path) -> Dataset:
    """Where only one of the two files is there, it is the train part."""
    paths = [data_dir / "ag_news" / file for file in ("train.csv", "test.csv")]
    present = [path for path in paths if path.exists()]
    if not present:
        raise FileNotFoundError(2, "no such file", str(paths[0]))
    parts = [_read(path) for path in present]
    number = _vocabulary(parts[0])
    texts = [text for part in parts for text in part]
    x = np.full((len(texts), LENGTH), PADDING, np.int64)
    for row, (_, words) in zip(x, texts, strict=True):
        ids = [number.get(word, UNKNOWN) for word in words[:LENGTH]]
        row[: len(ids)] = ids
    y = np.array([label for label, _ in texts], np.int64)
    return Dataset("ag-news", x, y, CLASSES, train_size=len(parts[0]), vocabulary=len(number) + 2)


def _read(path: Path) -> Texts:
    """Label (counted from 0) and words of each row."""
    with reading(path, "rows of label (1 .. 4), title, text"):
        texts: Texts = []
        with open_plain(path) as file:
            for row in csv.reader(TextIOWrapper(file, encoding="utf-8", newline="")):
                if len(row) != 3:
                    raise ValueError(f"row {len(texts) + 1} has {len(row)} columns")
                texts.append((int(row[0]) - 1, words_of(f"{row[1]} {row[2]}")))
        check_labels(np.array([label for label, _ in texts]), CLASSES, first=1)
        return texts


def words_of(text: str) -> list[str]:
    """Lower-cased runs of letters, digits and apostrophes."""
    return re.findall(r"[a-z0-9']+", text.lower())


def _vocabulary(texts: Texts) -> dict[str, int]:
    """The most frequent words, numbered from 2 by falling frequency, equals by spelling."""
    counts = Counter(word for _, words in texts for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: i for i, word in enumerate(ranked[: VOCABULARY - 2], start=2)}


SOURCES = {
    "ag-news": Source(
        "127,600 short news texts, 4 topics, 64 word numbers each",
        load,
        ("ag_news/train.csv", "ag_news/test.csv"),
        (
            Download("ag_news/train.csv", "b1a00f826fdfbd249f79597b59e1dc12"),
            Download("ag_news/test.csv", "d52ea96a97a2d943681189a97654912d"),
        ),
    ),
}
