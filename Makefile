# Two commands: `make demo` and `make test`. Everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench clean

demo: .venv/installed
	$(BIN)/polytempo compare standalone fedavg fedasync fedbuff --seeds 1 --time 1200 --target 0.9

test: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

bench: .venv/installed
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done
	$(BIN)/polytempo bench baselines --quick

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
