# The only things needed beforehand are Python >= 3.10 and Java >= 17; every target sets up .venv by itself.
PY := .venv/bin/python
ARGS ?=

.PHONY: demo test test-long check bench setup clean
.DEFAULT_GOAL := test

demo: setup ## a word count that is killed twice and loses nothing
	@$(PY) examples/demo.py $(ARGS)

test: setup ## all tests but the long ones; ARGS="-k name" for some of them
	@scripts/browser
	@$(PY) -m pytest -n 2 --dist worksteal --durations=30 --durations-min=10 $(ARGS)

test-long: setup ## the long tests only; ARGS="-m 'long and not seeds'" without those that take hours
	@$(PY) -m pytest -m long $(ARGS)

check: setup ## lint, format and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: setup ## every script in bench/, one after the other; results go to bench/results
	@set -e; for script in bench/*.py; do echo "== $$script"; $(PY) "$$script" $(ARGS); done

setup:
	@scripts/setup

clean: ## .venv and everything that tests and tools left behind
	@rm -rf .venv build dist src/weir/spark/jvm/*.jar .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
