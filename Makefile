# Every target sets up what it needs. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help flywheel osworld explorer test test-all test-fast test-worlds test-deepspeed test-newest lint format setup setup-test clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

flywheel: setup ## set up, then run the main job: two iterations of the flywheel, about ten minutes
	.venv/bin/flywheel run

# Where a container forbids it, each of the tests' many processes would compile flywheel anew.
export PYTHONDONTWRITEBYTECODE =

# Six on two cores: much of the tests is waiting for browsers and other processes.
pytest := .venv/bin/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder

test: setup-test ## set up, then run the tests of every day: unit, integration and a smoke of the rest
	$(pytest) -m "unit or integration or smoke"

test-all: setup-test ## all tests, every template and level among them: by night and before a release
	FLYWHEEL_NIGHT=1 $(pytest)

test-fast: setup-test ## the unit tests: no process, no browser, no service
	$(pytest) tests/unit -m "not slow"

test-worlds: setup-test ## every template of every site at each level, and every level of every game, by its expert
	FLYWHEEL_NIGHT=1 $(pytest) tests/exhaustive/test_sites.py tests/exhaustive/test_games.py -k "expert"

test-deepspeed: setup-test ## the engine tests with DeepSpeed, in an environment of its own (.venv-deepspeed)
	@scripts/deepspeed
	DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 .venv-deepspeed/bin/python -m pytest tests/integration/test_engines.py tests/integration/test_workers.py tests/integration/test_supervised.py \
		tests/e2e/test_trainers.py::test_deepspeed_comes_to_the_same_on_two_nodes

test-newest: setup-test ## the tests that hold us to DuckDB, Prefect, pandas and others, with their newest releases (.venv-newest)
	@scripts/newest
	.venv-newest/bin/python -m pytest -n 2 --dist loadfile -m "not exhaustive" tests/unit/test_library_surprises.py tests/unit/test_partitions.py tests/unit/test_dataset.py \
		tests/integration/test_catalog.py tests/integration/test_catalog_file.py tests/integration/test_catalog_views.py tests/integration/test_catalog_twice.py tests/integration/test_contracts.py tests/integration/test_reroute.py \
		tests/integration/test_explorer_sql.py tests/integration/test_exchange.py tests/integration/test_tools.py tests/integration/test_versioning.py tests/e2e/test_flows.py tests/e2e/test_notebook.py

osworld: setup ## what OSWorld's tasks need: LibreOffice, GIMP, Thunderbird, VLC, and its metrics (.venv-osworld)
	@scripts/osworld

explorer: ## build the pages that need Node (20): the explorer's and the viewers of desktops and terminals; kept in git
	cd flywheel/ui/explorer/web && npm ci --no-audit --no-fund && npm run build
	cd flywheel/envs/remote/web && npm ci --no-audit --no-fund && npm run build

lint: setup-test ## check style and imports
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

format: setup-test ## put the code into the house's format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

setup: ## virtual environment, pinned packages, Chromium
	@scripts/setup run

setup-test: ## the same, and what the tests need
	@scripts/setup test

clean: ## remove what runs have made here (data, models of iterations, state); asks first
	@.venv/bin/flywheel workspace reset
