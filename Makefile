# The commands of the project. `make install PYTHON=python3.12` chooses the Python of the environment.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
LOCK := deploy/requirements-dev.txt
RECORDS := data/.records-complete
# Where the driver of NVIDIA is, TensorFlow gets its libraries for GPUs. `make install EXTRAS=dev` leaves them out.
NVIDIA_DRIVER := /proc/driver/nvidia/version /dev/nvidiactl /usr/lib/wsl/lib/libcuda.so.1
comma := ,
EXTRAS ?= dev$(if $(wildcard $(NVIDIA_DRIVER)),$(comma)cuda)

.PHONY: help install lock bench reference figures test test-fast test-surroundings test-matrix check docs clean
.DEFAULT_GOAL := help

help:
	@echo 'make install   make $(VENV) with everything in it (PYTHON=$(PYTHON), 3.11 to 3.13; EXTRAS=$(EXTRAS);'
	@echo '               TENSORFLOW_PACKAGE=tensorflow-cpu is smaller, for machines without a GPU)'
	@echo 'make lock      write deploy/requirements-*.txt: the newest versions of all packages, with hashes'
	@echo 'make bench     make photographs and records of them in data/, compare three modes, train resnet50 on them, and'
	@echo '               write a page, data/bench.html: three to five minutes on two cores, 0.2 GB'
	@echo 'make reference measure the cases of benchmarks/reference/README.md into data/reference: ten minutes on two cores'
	@echo 'make figures   make the pictures of README.md and docs/lab.md anew; measures what data/ lacks: ten minutes'
	@echo 'make test      run the tests (seven to fifteen minutes on two cores)'
	@echo 'make test-fast run those that need no other processes (two minutes)'
	@echo 'make test-surroundings  run those that depend on signals, paths and the processor where these differ (a minute)'
	@echo 'make test-matrix  run the unit tests with each Python that is here, and with the lowest versions'
	@echo 'make check     check format, lint, types, spelling and words'
	@echo 'make docs      write docs/flags.md and docs/result_file.md: every flag, and every value of a result'
	@echo 'make clean     remove what the others made, $(VENV) and the records included'

# A line with the seconds of a part: @$(START); part; $(call END,what it did)
START := start=$$(date +%s)
END = echo "make: $(1) in $$(($$(date +%s) - start)) s"

PIP = $(RUN) -m pip install --progress-bar=off --disable-pip-version-check --editable '.[$(EXTRAS)]'
# Of the hundreds of lines that pip prints: the packages of 10 MB and more as they come, and the last step.
PROGRESS = sed -un 's/^ *\(Downloading\|Using cached\) \([^-]*\)-.* (\([0-9]\{2,\}\.[0-9] MB\))$$/make:   \2, \3/p; \
  s/^Installing collected packages.*/make:   unpacking all packages, which takes as long/p'

install: $(INSTALLED)

# For pipefail.
$(INSTALLED): SHELL := /bin/bash
# The constraints have no hashes: with them, pip would want a hash of the checkout too.
$(INSTALLED): $(VENV)/bin/pip setup.py pyproject.toml $(LOCK)
	@echo 'make: installing into $(VENV): 2.7 GB, about two minutes'
	@set -eo pipefail; $(START); \
	sed '/^ *--hash=/d; s/ *\\$$//' $(LOCK) > $(VENV)/constraints.txt; \
	$(PIP) --constraint=$(VENV)/constraints.txt | $(PROGRESS) || \
	  { echo 'make: $(LOCK) does not fit $(PYTHON): trying without' >&2; $(PIP) | $(PROGRESS); }; \
	touch $@; $(call END,installed)

# TensorFlow has no packages for later versions. Where python3 is one, an older Python does it, which uv can fetch. Debian has
# ensurepip, without which `venv` leaves half an environment, in a package of its own.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
OTHERS := $(if $(filter file,$(origin PYTHON)),python3.13 python3.12 python3.11)

$(VENV)/bin/pip:
	@for python in $(PYTHON) $(OTHERS); do \
	  $$python -c '$(SUPPORTED)' 2> /dev/null || continue; \
	  if $$python -c 'import ensurepip' 2> /dev/null; then $$python -m venv $(VENV); exit; fi; \
	  without_venv=$${without_venv:-$${python##*/}}; \
	done; \
	if [ -n '$(OTHERS)' ] && command -v uv > /dev/null; then uv venv --quiet --seed --python=3.13 $(VENV); exit; fi; \
	if [ -n "$$without_venv" ]; then \
	  echo "make: $$without_venv cannot make $(VENV): its module ensurepip is missing; apt install $$without_venv-venv" >&2; exit 1; \
	fi; \
	echo 'make: PYTHON=$(PYTHON): it must be a Python from 3.11 to 3.13; use make install PYTHON=python3.12, or install uv' \
	  '(https://docs.astral.sh/uv), which fetches a Python' >&2; exit 1

COMPILE := $(RUN) -m uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-annotate --python-version=3.11
IMAGE := --python-platform=x86_64-manylinux_2_28 --extra=records --extra=report setup.py -o deploy/requirements

lock: $(INSTALLED)
	$(COMPILE) --universal --all-extras setup.py -o $(LOCK)
	$(COMPILE) --extra=cpu $(IMAGE)-cpu.txt
	$(COMPILE) --extra=cuda $(IMAGE)-cuda.txt

$(RECORDS): | $(INSTALLED)
	rm -rf data/photographs
	@$(START); $(RUN) benchmarks/sample_photographs.py --output=data/photographs --num_images=1024 && \
	$(RUN) tf_cnn_benchmarks.py records --input=data/photographs --output=data/records --shards=8 && \
	touch $@ && $(call END,photographs and records of them made)

RESNET50 := --model=resnet50 --data_dir=data/records --data_name=imagenet --batch_size=32
# The runs of the modes say that TensorFlow leaves oneDNN off. Then resnet50 is trained with both settings: three short runs of
# each give a verdict in less time than 20 steps without oneDNN take.
ONEDNN_OFF = [ -z '$(wildcard $(NVIDIA_DRIVER))' ] && grep -qs '"onednn_off"' data/modes/results/*.json

bench: $(INSTALLED) $(RECORDS)
	rm -rf data/modes data/resnet50 data/bench.html
	@echo 'make: comparing three modes'
	@$(START); $(RUN) tf_cnn_benchmarks.py sweep benchmarks/modes.toml --output=data/modes && $(call END,modes compared)
	@$(START); if $(ONEDNN_OFF); then \
	  echo 'make: TensorFlow leaves oneDNN off on this processor: training resnet50 without and with it'; \
	  $(RUN) tf_cnn_benchmarks.py sweep --grid=onednn=false,true --repeats=3 --output=data/resnet50 -- $(RESNET50) \
	    --num_warmup_batches=1 --target_seconds=5; \
	else \
	  echo 'make: training resnet50 on the records'; \
	  $(RUN) tf_cnn_benchmarks.py $(RESNET50) --num_batches=20 --num_warmup_batches=2 --result_file=data/resnet50/run.json; \
	fi && $(call END,resnet50 trained)
	@echo
	@$(RUN) tf_cnn_benchmarks.py report data/resnet50 data/modes --output=data/bench.html
	@echo 'make: the page is ready: data/bench.html; in each new shell, first: source $(VENV)/bin/activate'

# A sweep that was interrupted goes on.
REFERENCE := reference$(if $(wildcard $(NVIDIA_DRIVER)),_gpu)

reference: $(INSTALLED) $(RECORDS)
	@[ ! -e data/reference ] || echo 'make: data/reference goes on; to measure anew, remove it first'
	$(RUN) tf_cnn_benchmarks.py sweep benchmarks/$(REFERENCE).toml --output=data/reference
	@echo 'make: now compare benchmarks/reference/NAME data/reference; benchmarks/reference/README.md has the names'

figures: $(INSTALLED)
	$(RUN) -m benchmarks.figures

# One more process than cores, since tests of clusters often wait; at most 4, for memory. The test that ended a process is
# tried once more.
CORES := $(shell nproc 2> /dev/null || echo 1)
# Dozens of processes load the same modules, so compiled ones are stored.
PYTEST := PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest --numprocesses=$(shell echo $$(($(CORES) < 4 ? $(CORES) + 1 : 4))) --dist=loadfile --no-loadscope-reorder --max-worker-restart=1

test: $(INSTALLED)
	$(PYTEST)

test-fast: $(INSTALLED)
	$(PYTEST) -m '(unit or graph) and not long'

test-surroundings: $(INSTALLED)
	$(RUN) -m tests.support.surroundings

UNIT := -m uv run --quiet --isolated --no-project --no-python-downloads --with-editable '.[dev]'

test-matrix: $(INSTALLED)
	@export PATH="$$PATH$$(printf ':%s' ~/.pyenv/versions/*/bin)"; \
	for with in 3.11 3.12 3.13 '3.11 --resolution=lowest-direct'; do \
	  $(RUN) -m uv python find --quiet --no-python-downloads $${with%% *} > /dev/null || { echo "make: there is no Python $$with"; continue; }; \
	  echo "Python $$with"; $(RUN) $(UNIT) --python $$with python -m pytest -q -m unit || exit 1; \
	done

check: $(INSTALLED)
	$(RUN) -m ruff format --check
	$(RUN) -m ruff check
	$(RUN) -m mypy
	$(VENV)/bin/codespell
	$(RUN) .ci/check_words.py

docs: $(INSTALLED)
	$(RUN) tf_cnn_benchmarks.py help --markdown > docs/flags.md
	$(RUN) -m tf_cnn.results.schema --markdown > docs/result_file.md

clean:
	rm -rf $(VENV) data/photographs data/records $(RECORDS) data/modes data/bench.html data/resnet50 data/reference build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
