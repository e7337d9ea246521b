# make demo   set up, train on the built-in birds, explain some answers (writes runs/demo)
# make test   set up, run everything that must hold
# make check  the everyday part: lint, types, fast tests
# make docs   build the documentation to site/; open site/index.html

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Inputs this small gain little from a second thread; two processes do. With worksteal, tests that share a network stay
# together.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: demo test check docs browser clean

demo: $(READY)
	$(BIN)/sic demo --out runs/demo

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow"

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Chromium, for the tests of the web pages: installed where it is missing and that is possible.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
		test "$$(id -u)" = 0 && command -v apt-get && apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium; } || \
		echo "There is no Chromium and it cannot be installed here: the web pages are not tested."

test: check browser
	$(PYTEST) -m slow

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit('sic needs Python 3.11 or newer' if sys.version_info < (3, 11) else 0)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs build dist site
