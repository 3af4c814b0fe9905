"""``python -m polytempo``."""

from polytempo.cli.main import main

main()
