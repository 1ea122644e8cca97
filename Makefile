# SPDX-License-Identifier: Apache-2.0

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Programs that we need, and the Debian packages that bring them
NEEDED := mnexec:mininet ip:iproute2 tc:iproute2 ethtool:ethtool ping:iputils-ping

# No index may carry a name with "+cpu" for a CUDA build, and PyPI carries none at all: pip finds the CPU build where it was
# told of one (a folder by PIP_FIND_LINKS, PyTorch's own index for CPUs), or nothing
TORCH := torch==2.13.0+cpu

# Six workers for two cores: tests in namespaces mostly wait, and stand beside those that compute.  On two quiet cores,
# with BMv2 at hand, all tests take ten to eleven minutes.
WORKERS := 6
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup packages machines viewers demo test test-quick test-long fuzz bench site library wheels lint prose clean

help:  ## Show this list
	@sed -nE 's/^([a-z-]+):[^#]*## */\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do \
	    printf '  make %-10s %s\n' "$$name" "$$what"; done

setup: $(STAMP)  ## Make .venv with NetFold and softswitch in it; only Mininet and its tools, by apt, need root

# Outside of Debian, or without root and sudo, say what to install and go on: all but Mininet works without root.
# A machine that has just started may be at its own upgrades: apt waits for them, and an update may fail meanwhile.
packages:
	@missing=; for pair in $(NEEDED); do \
	    PATH="$$PATH:/usr/sbin:/sbin" command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; done; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	missing=$$(printf '%s\n' $$missing | sort -u | tr '\n' ' '); [ -n "$${missing% }" ] || exit 0; \
	if [ "$$(id -u)" = 0 ]; then root=; elif command -v sudo >/dev/null; then root=sudo; else root=none; fi; \
	install="apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $$missing"; \
	if command -v apt-get >/dev/null && [ "$$root" != none ]; then \
	    echo "These Debian packages are missing, and need root: $$missing"; \
	    $$root apt-get update -q; $$root env DEBIAN_FRONTEND=noninteractive $$install && exit 0; \
	fi; \
	echo "Not installed: $$missing. As root, on Debian or Ubuntu, type: $$install" >&2; \
	echo "Going on without: what needs Mininet (demo, netfold up --topo, some tests) will say so." >&2

machines:  ## Install QEMU (87 MB) and libibverbs, for virtual machines as hosts (netfold demo --hosts rxe); needs root
	@command -v qemu-system-x86_64 >/dev/null || \
	    $(MAKE) --no-print-directory packages NEEDED=qemu-system-x86_64:qemu-system-x86
	@echo '#include <infiniband/verbs.h>' | cc -E - >/dev/null 2>&1 || \
	    $(MAKE) --no-print-directory packages NEEDED=infiniband/verbs.h:libibverbs-dev

viewers:  ## Install Chromium and tshark, with which tests look at the page and at captures; needs root
	@command -v chromium >/dev/null || $(MAKE) --no-print-directory packages NEEDED=chromium:chromium
	@command -v tshark >/dev/null || $(MAKE) --no-print-directory packages NEEDED=tshark:tshark

$(STAMP): pyproject.toml softswitch/pyproject.toml cbuild/pyproject.toml
	@$(MAKE) --no-print-directory packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "NetFold needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V). Try make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing into $(VENV), with what tests and lint need: 350 MB to download, 1.2 GB on the disk; some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e ./cbuild -e ./softswitch \
	    -e '.[compiler,demo,test,lint]'
	@echo "PyTorch, for the torch backend and to compare with gloo: 190 MB, 750 MB on the disk, where pip finds the CPU build."
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --only-binary torch '$(TORCH)' || printf '%s\n' \
	    "pip finds no $(TORCH), and NetFold goes on without. To have it, type:" \
	    "    $(BIN)/python -m pip install torch --index-url https://download.pytorch.org/whl/cpu"
	@touch $@
	@echo "Installed. Next: make demo; and, once in each terminal, . $(BIN)/activate, for the commands netfold and softswitch."

demo: $(STAMP)  ## Train a model through a fabric of P4 switches; ARGS="--loss 0.01", "--switch bmv2", ...
	$(BIN)/netfold demo $(ARGS)

test: $(STAMP)  ## Run all tests; ARGS="-k quantise", ...
	$(BIN)/python -m pytest $(SHARED) $(ARGS)

test-quick: $(STAMP)  ## Run the tests without namespaces, long compilations and computations
	$(BIN)/python -m pytest $(SHARED) -m "not netns and not slow and not fuzz" --ignore=tests/p4 $(ARGS)

test-long: $(STAMP)  ## Run all tests, also those marked long, with ten times the hostile inputs
	$(BIN)/python -m pytest $(SHARED) --long $(ARGS)

fuzz: $(STAMP)  ## Try hostile inputs, ten minutes each fuzzer; ARGS="--fuzz-seconds 60 -k rc"
	$(BIN)/python -m pytest -m fuzz -s -n 0 --fuzz-seconds 600 $(ARGS)

bench: $(STAMP)  ## Run the benchmarks
	@for file in $$(grep -l argparse bench/scripts/*.py); do echo "== $$file"; $(BIN)/python "$$file" $(ARGS) || exit 1; done

site: $(STAMP)  ## Write docs/ as a site with search to build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "In build/site; to read and search it: $(BIN)/python -m http.server --directory build/site --bind 127.0.0.1 8000"

library: $(STAMP)  ## Write libnetfold.so and netfold.h, for programs in C, and NCCL's plug-in to build/c
	$(BIN)/python -m netfold.host.capi build/c

wheels: $(STAMP)  ## Write the wheels of NetFold, softswitch and cbuild to build/wheels
	@rm -rf build/lib */build/lib  # setuptools packs whatever lies there, also files that the sources no longer have
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheels ./cbuild ./softswitch .

lint: $(STAMP)  ## Check style (ruff; clang-format for C) and types (mypy, strict)
	$(BIN)/ruff check .
	$(BIN)/mypy
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

prose: $(STAMP)  ## Print how long the sentences of each page are, and how docstrings begin
	@PYTHONPATH=tests $(BIN)/python -m support.docs.prose

clean:  ## Remove .venv and everything that was built
	rm -rf build */build $(VENV) src/*.egg-info */src/*.egg-info .mypy_cache .ruff_cache \
	    .pytest_cache .hypothesis softswitch/.pytest_cache softswitch/.hypothesis
