# The CUDA backend: `make cuda` with nvcc, and the same kernels compiled for the CPU, which `make check` runs.

CUDA_HOME ?= $(firstword $(wildcard /usr/local/cuda /opt/cuda) /usr/local/cuda)
NVCC      ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) nvcc)
# A100, RTX 30, Jetson Orin, RTX 40, Hopper, Blackwell, RTX 50; PTX of the last for what comes, of the first for what lies
# between (Jetson Thor, 11.0).
CUDA_ALL_ARCHS := 80 86 87 89 90 100 120
CUDA_ARCHS ?= $(CUDA_ALL_ARCHS)
CUDA_KERNELS := $(sort $(wildcard engine/backend/cuda/*.cu))
# Plain C of the program that lives in the object as well.
CUDA_HOST    := $(sort $(wildcard engine/backend/cuda/*.c)) engine/backend/image.c engine/cache/kv.c base/text.c

# ---- for devices -----------------------------------------------------------------------------------------------------------
CUDA_B := build/cuda$(if $(subst $(CUDA_ALL_ARCHS),,$(CUDA_ARCHS)),-$(subst $() ,-,$(CUDA_ARCHS)))
CUDA_GENCODE = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
  $(foreach a,$(sort $(firstword $(CUDA_ARCHS)) $(lastword $(CUDA_ARCHS))),-gencode arch=compute_$(a),code=compute_$(a))
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -I. --compiler-options -fPIC,-fvisibility=hidden,-Wall -Xptxas -v
CUDA_OBJ := $(patsubst %.cu,$(CUDA_B)/%.o,$(CUDA_KERNELS)) $(patsubst %.c,$(CUDA_B)/%.o,$(CUDA_HOST))

cuda: libtidewake-cuda.so  ## libtidewake-cuda.so, for --backend cuda (needs the CUDA toolkit)

libtidewake-cuda.so: $(CUDA_B)/libtidewake-cuda.so
	@cp -f $< $@.new && mv -f $@.new $@

# The listing of registers, spills and shared memory stays beside each object.
$(CUDA_B)/%.o: %.cu engine/backend/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(CUDA_GENCODE) -MMD -MP -c -o $@ $< 2> $(@:.o=.ptxas) || { cat $(@:.o=.ptxas); exit 1; }
$(CUDA_B)/%.o: %.c engine/backend/cuda/cuda.mk $(B)/include/engine/.made
	@mkdir -p $(@D)
	$(call say,CC  ,$<)
	$(Q)$(CC) $(BASE_CFLAGS) -O2 -I$(B)/include/engine -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<
$(CUDA_B)/libtidewake-cuda.so: $(CUDA_OBJ) engine/backend/cuda/exports.map
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared $(CUDA_GENCODE) -o $@ $(CUDA_OBJ) -Xlinker --no-undefined -Xlinker --version-script=engine/backend/cuda/exports.map -lcublas -ldl

# Registers, spills, shared memory and occupancy of every kernel and architecture, as docs/cuda.md has them.
build/cuda-shared: tests/bench/cuda/shared.cpp $(CUDA_KERNELS) $(wildcard engine/backend/cuda/*.h) | $(patsubst %,$(B)/cudasim/%.o,cudasim runtime cublas noshadow)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(SIM_FLAGS) -o $@ $< $|
cuda-listing: build/cuda-shared $(patsubst %.cu,$(CUDA_B)/%.o,$(CUDA_KERNELS))  ## registers, spills, shared memory and occupancy of the CUDA kernels (needs nvcc)
	@scripts/cuda-listing.py $< $(patsubst %.cu,$(CUDA_B)/%.ptxas,$(CUDA_KERNELS))

# What `make check` has of it: one architecture, which suite `cuda` then loads, so that what only nvcc refuses is refused.
# Where there is no nvcc that suite says that it skips. Never instrumented: the object is the one that people would load.
CHECK_NVCC_ARCH := 80
check-nvcc:
	@if command -v $(NVCC) >/dev/null 2>&1; then $(SUBMAKE) SANITIZE= DEBUG=0 CUDA_ARCHS=$(CHECK_NVCC_ARCH) build/cuda-$(CHECK_NVCC_ARCH)/libtidewake-cuda.so; \
	 else rm -f build/cuda-$(CHECK_NVCC_ARCH)/libtidewake-cuda.so; fi

# ---- for the CPU -----------------------------------------------------------------------------------------------------------
SIM_B := $(B)/cudasim
SIM_SANITIZE := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
SIM_FLAGS := -std=c++17 $(if $(SANITIZE),-O1,-O2) -g -Wall -Wextra -fPIC -fvisibility=hidden -fopenmp-simd -ffp-contract=off -I. -Itests/cudasim/include
SIM_CORE   := $(patsubst %,$(SIM_B)/%.o,cudasim runtime cublas)
SIM_HOST   := $(patsubst %.c,$(SIM_B)/host/%.o,$(CUDA_HOST))
SIM_PLAIN  := $(patsubst engine/backend/cuda/%.cu,$(SIM_B)/plain/%.o,$(CUDA_KERNELS))
SIM_SHADOW := $(patsubst engine/backend/cuda/%.cu,$(SIM_B)/shadow/%.o,$(CUDA_KERNELS))
# Tests of the tests: a fault put into a kernel, which the shadow build or a comparison must find. NAME of the fault, in
# tests/cudasim/mutants/NAME.sed, and the file that it goes into.
SIM_MUTANTS := barrier bound merge atomic overrun
mutant_barrier := attention
mutant_bound   := keys
mutant_merge   := select
mutant_atomic  := select
mutant_overrun := row
# The shadow has its own answers to what -fsanitize=thread calls, so it cannot live in an instrumented process.
CUDASIM := $(SIM_B)/selftest $(SIM_B)/libtidewake-cudasim.so $(if $(SANITIZE),,$(SIM_B)/selftest-shadow $(SIM_B)/libtidewake-cudasim-shadow.so $(patsubst %,$(SIM_B)/mutants/%.so,$(SIM_MUTANTS)))

ifeq ($(ENGINE),1)
$(B)/check: | $(CUDASIM)
endif

$(SIM_B)/%.o: tests/cudasim/%.cpp engine/backend/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,CXX ,$<)
	$(Q)$(CXX) $(SIM_FLAGS) $(SIM_SANITIZE) -MMD -MP -c -o $@ $<
$(SIM_B)/plain/%.o: engine/backend/cuda/%.cu engine/backend/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,SIM ,$<)
	$(Q)$(CXX) $(SIM_FLAGS) $(SIM_SANITIZE) -MMD -MP -x c++ -c -o $@ $<
$(SIM_B)/shadow/%.o: engine/backend/cuda/%.cu engine/backend/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,SIM ,$< (shadow))
	$(Q)$(CXX) $(SIM_FLAGS) -fsanitize=thread -MMD -MP -x c++ -c -o $@ $<
$(SIM_B)/plain/selftest.o: tests/cudasim/selftest.cu engine/backend/cuda/cuda.mk
	@mkdir -p $(@D)
	$(Q)$(CXX) $(SIM_FLAGS) $(SIM_SANITIZE) -MMD -MP -x c++ -c -o $@ $<
$(SIM_B)/shadow/selftest.o: tests/cudasim/selftest.cu engine/backend/cuda/cuda.mk
	@mkdir -p $(@D)
	$(Q)$(CXX) $(SIM_FLAGS) -fsanitize=thread -MMD -MP -x c++ -c -o $@ $<
$(SIM_B)/host/%.o: %.c engine/backend/cuda/cuda.mk $(B)/include/engine/.made
	@mkdir -p $(@D)
	$(call say,CC  ,$< (emulated))
	$(Q)$(CC) $(BASE_CFLAGS) -DTW_CUDA_STAGING_BYTES=20000 -I$(B)/include/engine -Itests/cudasim/include -MMD -MP -c -o $@ $<
# The whole backend on the emulation, loaded as the real one is.
$(SIM_B)/libtidewake-cudasim.so: $(SIM_HOST) $(SIM_PLAIN) $(SIM_CORE) $(SIM_B)/noshadow.o
	$(call say,LINK,$@)
	$(Q)$(CXX) $(SIM_SANITIZE) -shared -o $@ $^ -Wl,--version-script=tests/cudasim/exports.map -ldl
$(SIM_B)/libtidewake-cudasim-shadow.so: $(SIM_HOST) $(SIM_SHADOW) $(SIM_CORE) $(SIM_B)/shadow.o
	$(call say,LINK,$@)
	$(Q)$(CXX) -shared -Wl,--no-undefined -o $@ $^ -Wl,--version-script=tests/cudasim/exports.map -ldl
$(SIM_B)/mutants/%.so: tests/cudasim/mutants/%.sed $(SIM_HOST) $(SIM_SHADOW) $(SIM_CORE) $(SIM_B)/shadow.o
	@mkdir -p $(@D)
	$(call say,MUT ,$(mutant_$*).cu: $*)
	@sed -f $< engine/backend/cuda/$(mutant_$*).cu > $(@:.so=.cu)
	@if cmp -s $(@:.so=.cu) engine/backend/cuda/$(mutant_$*).cu; then echo "$< changes nothing"; exit 1; fi
	$(Q)$(CXX) $(SIM_FLAGS) -fsanitize=thread -x c++ -c -o $(@:.so=.o) $(@:.so=.cu)
	$(Q)$(CXX) -shared -o $@ $(@:.so=.o) $(filter-out $(SIM_B)/shadow/$(mutant_$*).o,$(filter %.o,$^)) -Wl,--version-script=tests/cudasim/exports.map -ldl
$(SIM_B)/selftest: $(SIM_B)/plain/selftest.o $(SIM_CORE) $(SIM_B)/noshadow.o
	$(Q)$(CXX) $(SIM_SANITIZE) -o $@ $^
$(SIM_B)/selftest-shadow: $(SIM_B)/shadow/selftest.o $(SIM_CORE) $(SIM_B)/shadow.o
	$(Q)$(CXX) -o $@ $^

-include $(shell find $(SIM_B) $(CUDA_B) -name '*.d' 2>/dev/null)

# ---- on a machine with a GPU -----------------------------------------------------------------------------------------------
check-cuda:  ## the CUDA tests on a device, compute-sanitizer where there is one, and the benchmark
	@scripts/check-cuda.sh

.PHONY: cuda cuda-listing check-cuda check-nvcc
