# The two commands: `make tune` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
M ?= 1024
N ?= 1024
K ?= 1024
DTYPE ?= float32
TUNE_ARGS ?=
# Three on two cores: some tests wait for what they start.
TEST_PROCESSES ?= 3
CPU ?= avx512+avx512_vnni+amx_bf16+amx_int8+amx_tile

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help venv tune serve test exhaustive chaos emulated guarded check secrets format clean

help: ## show the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | \
	  while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

venv: $(STAMP) ## create the virtual environment with pinned dependencies

# torch goes first and by itself: what provides it differs between machines (CPU or CUDA build),
# and an installed one is kept.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "expected Python 3.11 or newer, found `$(BIN)/python --version`; set PYTHON=" >&2; exit 2; }
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -q -c constraints.txt $(TORCH)
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,postgres,parquet,cuda,cuda-runtime]'
	@touch $@

tune: $(STAMP) ## profile this machine, then tune a GEMM (M=, N=, K=, DTYPE=, TUNE_ARGS=--force)
	@$(BIN)/tilecore profile --if-missing
	@$(BIN)/tilecore tune gemm --m $(M) --n $(N) --k $(K) --dtype $(DTYPE) $(TUNE_ARGS)

serve: $(STAMP) ## start the REST service and a coordinator
	@$(BIN)/tilecore serve

# Tests start hundreds of processes: without bytecode each would compile all that it imports.
test exhaustive: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP) ## run the tests but for repetitions and long cases, files side by side
	@$(PYTEST) -m "not exhaustive" --durations=12

exhaustive: $(STAMP) ## run what `make test` leaves out: the rest of the grids, long cases, more generated ones
	@$(PYTEST) -m exhaustive --durations=12

chaos: $(STAMP) ## kill everything 50 times during one run of 300 trials (15 minutes)
	@$(BIN)/python -m tests.chaos

emulated: $(STAMP) ## run the compiler's tests on emulated AVX-512 and AMX (CPU=avx2+avx_vnni)
	@$(BIN)/python -m pytest tests/tilecore --ignore tests/tilecore/cuda --ignore tests/tilecore/rocm \
	  --cpu $(CPU) -n $(TEST_PROCESSES) --dist loadfile

guarded: $(STAMP) ## run the compiler's tests with memory that ends where tensors do
	@$(BIN)/python -m pytest -p tests.guarded_memory tests/tilecore --ignore tests/tilecore/cuda \
	  --ignore tests/tilecore/rocm -n $(TEST_PROCESSES) --dist loadfile

check: $(STAMP) ## ruff, formatting, mypy --strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# The folder is for its owner only; the files are not, so that containers may read what is mounted.
secrets: ## make the files that docker-compose.yml reads, with random passwords, where they lack
	@umask 022; mkdir -p -m 700 secrets; cd secrets; for name in db_password grafana_password ray_token; do \
	  test -s $$name || head -c 36 /dev/urandom | base64 | tr -d '\n' > $$name; done; \
	  test -e metrics_key || : > metrics_key

format: $(STAMP) ## format the code
	@$(BIN)/ruff check --fix -q . && $(BIN)/ruff format .

clean: ## remove caches (not the virtual environment, not the database)
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
