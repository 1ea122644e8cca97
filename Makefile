# SPDX-License-Identifier: Apache-2.0
# `make` alone lists what there is.  Everything that is needed gets set up on the way.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Programs that no Python package brings, and the Debian/Ubuntu packages that do.
PROGRAMS := ip:iproute2 ethtool:ethtool ping:iputils-ping mnexec:mininet

.DEFAULT_GOAL := help
.PHONY: help setup system demo test bench lint clean

help:  ## this list
	@echo "NetFold: the network folds the gradients"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  then: $(BIN)/netfold --help, $(BIN)/softswitch --help"

setup: system $(READY)  ## .venv with everything in it; Mininet by apt (that part needs root)

# Asks for root only where something is missing, and says what it would have done.
system:
	@missing=""; \
	for pair in $(PROGRAMS); do \
	    command -v $${pair%%:*} >/dev/null 2>&1 || [ -x /usr/sbin/$${pair%%:*} ] || [ -x /sbin/$${pair%%:*} ] || \
	        missing="$$missing $${pair##*:}"; \
	done; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	[ -z "$$missing" ] && exit 0; \
	if ! command -v apt-get >/dev/null; then \
	    echo "Missing:$$missing (names of Debian packages). Install them with your system's package manager."; exit 1; fi; \
	if [ "$$(id -u)" = 0 ]; then root=""; \
	elif sudo -n true 2>/dev/null; then root="sudo"; \
	else \
	    echo "Missing:$$missing. Installing them needs root; type this, then make again:"; \
	    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends$$missing"; exit 1; fi; \
	echo "Installing by apt:$$missing"; \
	$$root apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive $$root apt-get install -y -qq --no-install-recommends $$missing >/dev/null

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or later is needed, {sys.executable} is {v.major}.{v.minor}: make PYTHON=python3.12 ...")'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "Installing Python packages into $(VENV) (about 500 MB, the C compiler among them)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo,sim,test,lint]'
	@touch $@

demo: setup  ## 8 workers train a model through a 2-leaf 2-spine fabric (make demo ARGS="--loss 0.01")
	@$(BIN)/netfold demo $(ARGS)

test: setup  ## every test; those that need namespaces or BMv2 say so when they are skipped
	@$(BIN)/python -m pytest -q $(ARGS)

bench: setup  ## what it costs: quantisation, packets, the simulator
	@for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The type checker wants folders named as packages are; these links are what the package-dir of pyproject.toml says.
ROOMS := controller host topo wire sim p4src
lint: setup  ## ruff and mypy --strict
	@mkdir -p build/types/netfold
	@for room in $(ROOMS); do ln -sfn ../../../$$room build/types/netfold/$$room; done
	@for file in __init__.py py.typed; do ln -sfn ../../../netfold/$$file build/types/netfold/$$file; done
	@ln -sfn ../../softswitch build/types/softswitch
	@$(BIN)/ruff check .
	@MYPYPATH=build/types $(BIN)/mypy --python-executable $(BIN)/python -p netfold -p softswitch

clean:  ## everything that was made, .venv too
	rm -rf build $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
