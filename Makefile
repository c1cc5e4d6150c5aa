# `make quickstart` and `make test` need Python 3.11 or later and nothing else.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= quickstart
# Processes that test: much of a test is waiting, but each starts Ray and ranks of its own.
TESTERS ?= 2
# In `make test-all`, no slow or chaos test starts after this many minutes; empty: all run.
MINUTES ?=
# What `make test-all` does if tests failed, and nothing else did: `make test-again` in CI.
IF_FAILED ?= false
# Longest files first, as tests/conftest.py orders them: xdist would begin with those of most tests.
PYTEST = $(BIN)/python -m pytest --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder
# Each commit starts with another file of slow tests, so that in time all of them run.
WITHIN = $(if $(MINUTES),--slow-minutes $(MINUTES) --slow-from $(shell git rev-list --count HEAD))

# What may differ from one release of Ray to another.
ON_OTHER_RAY = tests/smoke/test_ray_release.py tests/chaos/test_kills.py tests/chaos/test_sweep.py \
	tests/chaos/test_crashing_records.py tests/smoke/test_jobs.py

.PHONY: quickstart test test-all test-again check lint types floors chaos other-ray bench soak gpu gpu-ray golden docs site sbom release clean

quickstart: .venv/installed ## The whole path, raw pages to a tuned model, on this machine
	$(BIN)/trainrig quickstart --out $(OUT)

test: check ## Linters, types, floors, and the tests that take up to two seconds each
	$(PYTEST) --quick

test-all: check ## Linters, types, floors, and all tests, also those that kill processes and nodes
	$(PYTEST) -m "chaos or not chaos" $(WITHIN) || { [ $$? = 1 ] && $(IF_FAILED); }

# A test of processes, signals and heartbeats can fail by chance on a busy machine. Whatever fails
# twice is broken; what passes alone is printed, and its cause has to be found too.
test-again: .venv/tools ## The tests that failed last, one after the other; none if more than five failed
	$(BIN)/python -c 'import json, sys; failed = json.load(open(".pytest_cache/v/cache/lastfailed")); print("Failed at first:", *failed, sep="\n  "); sys.exit(len(failed) > 5)'
	$(BIN)/python -m pytest -m "chaos or not chaos" --last-failed --last-failed-no-failures none --verbose

check: lint types floors ## All but the tests

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/tools ## The package in strict mode; the tests by names, imports and arguments
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

floors: .venv/tools
	$(BIN)/lint-imports

chaos: .venv/tools ## Tests that kill processes and nodes: a quarter of an hour
	$(PYTEST) -m "chaos and not soak"

other-ray: RAY = 2.57.1
other-ray: .venv/tools ## Another release of Ray: the same bytes, killed ranks, a killed sweep, submitted runs
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/pip install --no-deps --target "$$folder" ray==$(RAY) && \
	TRAINRIG_OTHER_RAY="$$folder" PYTHONPATH="$$folder" $(PYTEST) -m "not soak and not bench" $(ON_OTHER_RAY)

bench: .venv/tools ## Measurements: minutes, on an idle machine
	$(BIN)/python -m pytest -m bench -s tests/benchmarks

soak: .venv/tools ## The long forms of the fault tests: hours
	$(BIN)/python -m pytest -m soak -s

gpu: OUT = gpu-results
gpu: ## Tests that need a GPU, then a table of how fast a step is, by PYTHON's own torch: no Ray
	OUT=$(OUT) $(PYTHON) tests/gpu/run.py

gpu-ray: OUT = gpu-results
gpu-ray: .venv/tools ## Runs on Ray over two GPUs of this machine, killed and resized; not run anywhere yet
	$(BIN)/python tests/gpu/ray_runs.py --out $(OUT)

golden: COMMIT = HEAD~1
golden: .venv/tools ## Hashes of what every stage makes, here and at COMMIT: they must be equal
	$(BIN)/python tests/golden.py --against $(COMMIT)

docs: .venv/tools ## docs/run-files.md, docs/metrics.md, docs/reference/api.md, the schemas, the tables of evidence, and the pictures
	$(BIN)/python -m trainrig.run_file_pages
	$(BIN)/python docs/evidence/tables.py
	$(BIN)/python docs/pictures/draw.py

site: OUT = site
site: .venv/site ## The documentation as pages with a search: open site/index.html; a broken link fails
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --conf-dir docs/site --doctree-dir $(OUT)/.doctrees . $(OUT)

sbom: OUT = sbom.json
sbom: .venv/installed ## The installed packages as a software bill of materials (CycloneDX)
	$(BIN)/python .ci/sbom.py > $(OUT)

release: OUT = dist
release: .venv/tools ## The source archive and the wheel, which then runs in an empty environment
	$(BIN)/python .ci/release.py $(OUT)

# Once for each change of what is to be installed: what running needs, then what tests need. pip
# shows its progress in the minutes that this takes.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "trainrig needs Python 3.11 or later; set PYTHON=…")'
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e .
	touch $@

.venv/tools: .venv/installed
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	touch $@

.venv/site: .venv/installed
	$(BIN)/pip install -c constraints.txt -e '.[docs]'
	touch $@

clean: ## Remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
