"""``python -m polytempo.papers.pages docs/results``: bring the pages of results up to date with claims and records."""

import sys
from pathlib import Path

from polytempo.papers.pages.writing import write_pages

if __name__ == "__main__":
    print(*write_pages(Path(sys.argv[1])), sep="\n")
