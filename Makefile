# The two commands: `make demo` runs the main job, `make test` the tests. Each first makes the project's own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check lint install clean

demo: install
	$(BIN)/parallax run --workers 2 examples/nlp/language_model.py

# Three tests at a time on two cores: a job's processes wait for each other much of the time. `pytest PATH` by hand runs
# one at a time.
test: lint
	$(BIN)/pytest -n 3 --durations=30

# What is known in a minute and a half: nothing of it loads TensorFlow.
check: lint
	$(BIN)/pytest -n 2 -m 'pure and not slow'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install:
	@$(PYTHON) ops/install/install.py $(VENV)

clean:
	rm -rf $(VENV) build *.egg-info
