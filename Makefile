# Two commands: `make demo` and `make test`. Everything is installed into .venv.
# Where node and npm are installed, it installs the packages of the client for Node too, and tests it.
# `make lint`, `make format` and `make test-fast` are parts of it for every day (CONTRIBUTING.md).
# `make dist` builds both distributions, and `make test-dist` builds them twice and installs them.
# `make test-extras` installs everything optional into .venv-extras and runs the tests that need it.
# `make test-wheels` builds two versions of the package and upgrades a service of two servers from one to the other.
# `make test-ray` runs every strategy on a Ray cluster of three nodes, one of which is killed (a quarter of an hour).
# `make crash-states` tries thousands of states that a power cut may leave of a journal (minutes; needs Linux and cc).
# `make bench DATA_DIR=...` measures what docs/results says, on the MNIST, CIFAR-10 and AG News in that directory.
PYTHON ?= python3
BIN := .venv/bin
define LINT
$(BIN)/ruff check .
$(BIN)/ruff format --check .
$(BIN)/mypy
$(BIN)/mypy --python-version 3.10 client/src/polytempo_client
endef
DATA := $(if $(DATA_DIR),--data-dir $(DATA_DIR))

.PHONY: demo test test-fast test-ray test-dist test-wheels test-extras lint format dist crash-states bench results clean

demo: .venv/installed
	$(BIN)/polytempo compare standalone fedavg fedasync casa concerto --partition dirichlet:0.3 --test-share 0.5 \
		--seeds 1 --time 1200 --target 0.9

test: .venv/installed-test $(if $(shell command -v npm),client/node/node_modules/installed)
	$(LINT)
	$(BIN)/pytest -n 3 -rs

test-fast: .venv/installed-test
	$(BIN)/pytest -n 3 -m 'not (browser or dist or node or postgres or ray)'

lint: .venv/installed-test
	$(LINT)

format: .venv/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Without a network its tests are skipped.
client/node/node_modules/installed: client/node/package-lock.json
	-npm ci --prefix client/node --silent --no-fund --no-audit && touch $@

dist: .venv/installed-test
	rm -rf dist
	for project in client .; do $(BIN)/python -m build --outdir dist $$project || exit 1; done

test-dist: .venv/installed-test
	$(BIN)/pytest -m dist tests/packaging

test-ray: .venv/installed-test
	$(BIN)/pytest -m ray -n 1 tests/sim/executors

test-extras: .venv-extras/installed
	POLYTEMPO_TEST_EXTRAS=required .venv-extras/bin/pytest -n 3 -rs tests/contract/test_adapters.py tests/examples \
		tests/report/test_comparison.py tests/sweeps tests/track tests/world/data

test-wheels: .venv/installed-test
	$(BIN)/pytest -m wheels tests/serve/process/test_rolling_upgrade.py

crash-states: .venv/installed-test
	POLYTEMPO_CRASH_STATES=all $(BIN)/pytest -s tests/serve/journal/test_crash_states.py

bench: .venv/installed-test
	$(BIN)/python benchmarks/micro/training.py $(DATA)
	$(BIN)/python benchmarks/micro/overhead.py $(DATA)
	$(BIN)/python benchmarks/micro/scaling.py
	$(BIN)/python benchmarks/micro/million.py
	$(BIN)/python benchmarks/micro/executors.py
	$(BIN)/python benchmarks/micro/clustering.py $(DATA)
	$(BIN)/python benchmarks/micro/arrival_groups.py
	$(BIN)/python benchmarks/micro/collaboration.py
	$(BIN)/python benchmarks/micro/broadcasting.py $(DATA)
	$(BIN)/python benchmarks/micro/exchanges.py
	$(BIN)/python benchmarks/service/serving_load.py
	$(BIN)/python benchmarks/service/serving_load.py --soak 600
	$(BIN)/python benchmarks/service/store_load.py
	$(BIN)/python benchmarks/service/failover.py --out results/failovers.jsonl
	$(BIN)/python benchmarks/service/serving_faults.py
	$(BIN)/python benchmarks/micro/encoding.py
	$(BIN)/python benchmarks/micro/screening.py
	$(BIN)/python benchmarks/micro/bootstrap_coverage.py
	$(BIN)/python benchmarks/service/soak.py
	$(BIN)/python benchmarks/client/footprint.py
	$(BIN)/python benchmarks/client/exchange.py
	for bench in robust compression echopfl-promise natural concerto; do \
		$(BIN)/polytempo bench $$bench $(if $(DATA),$(DATA),--quick) || exit 1; \
	done

# The pages of docs/results, from claims and records. Nothing is run.
results: .venv/installed-test
	$(BIN)/python -m polytempo.papers.pages docs/results

.venv/installed: pyproject.toml client/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ./client --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ./client --editable '.[test]'
	touch $@

.venv-extras/installed: pyproject.toml client/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-extras
	.venv-extras/bin/pip install --quiet --constraint constraints.txt --editable ./client --editable '.[test-extras]'
	touch $@

clean:
	rm -rf .venv .venv-extras client/node/node_modules build dist src/*.egg-info client/build client/dist client/src/*.egg-info
