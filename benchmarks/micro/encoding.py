"""How long encoding (with error feedback) and decoding an update takes, and how many bytes it has.

python benchmarks/micro/encoding.py [PARAMETERS]
"""

import sys
import time
from collections.abc import Callable

from polytempo_client.model.encodings import ErrorFeedback, nbytes_of, parse_encoding
from polytempo_client.streams import stream

REPEATS = 50


def milliseconds(act: Callable[[], object]) -> float:
    """The fastest of the repeats: what it takes on a machine that does nothing else."""
    act()
    spent = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        act()
        spent.append(time.perf_counter() - began)
    return 1e3 * min(spent)


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 600_000
    difference = stream(0, "difference").normal(0, 1e-3, size).astype("float32")
    print(f"{size:,} parameters, {4 * size:,} bytes in float32, one thread")
    for words in ("fp16", "topk:0.1", "topk:0.01"):
        feedback = ErrorFeedback(parse_encoding(words))
        feedback.keep(feedback.encode(difference)[1])
        arrays, _ = feedback.encode(difference)
        encoding = milliseconds(lambda: feedback.encode(difference))  # noqa: B023
        decoding = milliseconds(lambda: feedback.encoding.decode(arrays, size))  # noqa: B023
        share = nbytes_of(arrays) / (4 * size)
        print(f"{words:10} encode {encoding:6.2f} ms, decode {decoding:6.2f} ms, {share:.1%} of the bytes")


if __name__ == "__main__":
    main()
