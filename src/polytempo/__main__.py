"""``python -m polytempo``."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory, where a file may have the name of a module that is imported later

from polytempo.cli.main import main

main()
