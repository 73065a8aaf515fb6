# make         set-up: all that virtoll needs to be used
# make run     as much of it as the quick proxy study needs, then that study; prints the path of its report
# make test    set-up, then the tests
# make test-long  those that take longest (tests/long.py), as long again; the continuous integration runs both
# make test-nested  what this machine cannot offer, in emulated computers: KVM, Xen, control groups of version 2, an
#              installed Debian with systemd; an hour and more (TESTS=tests/nested/test_kvm.py: minutes)
# make check   formatting, types, lints, import rules
# make bench   the project's own numbers, written to docs/BENCHMARKS.md
# make calibrate  how far virtoll can be trusted on this machine: equal arms, known costs (QUICK=1: under ten minutes)
# make faults 1,000 injected faults from a seed (SEED=1 COUNT=1000), each repeatable alone by its own
# make docs    check that links between the pages lead somewhere
# make wheel   dist/virtoll-*.whl, with everything that is virtoll's own: for pipx on other machines
# make lock    renew setup/*.lock after a change of the dependencies in pyproject.toml
# make clean   remove what was built (not caches, not runs: `virtoll clean` is for the machine)

.PHONY: run test test-long test-nested check bench calibrate faults docs wheel lock clean setup setup-dev
.DEFAULT_GOAL := setup

# How many processes share the tests (cargo's are one of them), which wait for boots and windows more than they
# compute. A file's tests stay together, for they share deployments. What Python compiles is kept, whatever the
# environment says, and compiled once before: each of the many processes that share the tests, and that these start,
# would compile it anew.
WORKERS := 6
SHARED = PYTHONDONTWRITEBYTECODE= .venv/bin/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

setup:
	@setup/install

setup-dev:
	@setup/install --dev

run:
	@setup/install --no-conference
	@.venv/bin/virtoll run proxy --quick

test: setup-dev
	@[ -d tests/__pycache__ ] || PYTHONDONTWRITEBYTECODE= .venv/bin/pytest --collect-only --quiet >/dev/null || true
	@$(SHARED)

test-long: setup-dev
	@$(SHARED) -m long

# One at a time: each emulates two CPUs. What Python compiles is kept: in there it takes minutes.
TESTS ?= tests/nested
test-nested: setup-dev
	.venv/bin/python -m compileall -q src tests
	.venv/bin/pytest -m slow --durations=0 $(TESTS)

check: setup-dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/pytest tests/test_imports.py
	setup/rust cargo fmt --check
	setup/rust cargo clippy --quiet --locked --all-targets -- -D warnings

docs: setup-dev
	.venv/bin/pytest tests/test_docs.py

bench: setup-dev
	.venv/bin/python -m bench

QUICK ?=
calibrate: setup
	@.venv/bin/virtoll calibrate $(if $(QUICK),--quick)

SEED ?= 1
COUNT ?= 1000
faults: setup-dev
	.venv/bin/python -m faults --seed $(SEED) --count $(COUNT)

wheel: setup-dev
	@rm -rf build/lib build/bdist.*  # else what was deleted since would be in it
	.venv/bin/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: setup-dev
	for extra in "" fleet dev; do .venv/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	    --no-emit-find-links --no-emit-index-url --build-deps-for wheel $${extra:+--extra $$extra} \
	    --output-file setup/requirements$${extra:+-$$extra}.lock pyproject.toml || exit; done

clean:
	rm -rf build dist rust/target src/virtoll/native .mypy_cache .ruff_cache .pytest_cache .hypothesis
