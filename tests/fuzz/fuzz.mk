# Fuzz targets: tests/fuzz/fuzz_<name>.c (tests/fuzz/engine/ where they need the engine), one a parser, libFuzzer's entry point in
# each. Every build makes them with a driver of our own that replays files, so that they cannot rot; `make check` replays
# tests/fuzz/corpus/<name> and the folders named below; `make fuzz` runs libFuzzer. Every crash becomes a file of the corpus.

FUZZ_SRC   := $(sort $(wildcard tests/fuzz/fuzz_*.c) $(if $(filter 1,$(ENGINE)),$(wildcard tests/fuzz/engine/fuzz_*.c)))
FUZZ_NAMES := $(patsubst fuzz_%,%,$(basename $(notdir $(FUZZ_SRC))))
fuzz_source = $(filter %/fuzz_$(1).c,$(FUZZ_SRC))
# More seeds than those of the corpus folder.
gguf_SEEDS        := tests/golden/engine/malformed/gguf tests/golden/engine/malformed/base.gguf
safetensors_SEEDS := $(wildcard tests/golden/engine/malformed/safetensors/*/model.safetensors)
config_SEEDS      := $(wildcard tests/golden/engine/malformed/config/*/config.json tests/golden/engine/models/*/hf/config.json data/configs/*.json)
index_SEEDS       := $(wildcard tests/golden/engine/malformed/safetensors/*/model.safetensors.index.json tests/golden/engine/models/*/hf/model.safetensors.index.json)
# What a target needs besides the library.
replay_MORE := tests/oracle.c tests/sweeps.c
tokenizer_json_SEEDS := $(wildcard tests/golden/engine/malformed/tokenizer/*/tokenizer.json tests/golden/engine/tokenizer/*_style/tokenizer.json)
tokenizer_gguf_SEEDS := $(wildcard tests/golden/engine/tokenizer/*/vocab.gguf) tests/golden/engine/malformed/base.gguf

define fuzz_rules
$(B)/fuzz/$(1): $(patsubst %.c,$(B)/%.o,$(call fuzz_source,$(1)) $($(1)_MORE) $(if $(LIBFUZZER),,tests/fuzz/driver.c)) $(B)/libtidewake.a
	@mkdir -p $$(@D)
	$$(call say,LINK,$$@)
	$$(Q)$$(CC) $$(LINK_FLAGS) $(if $(LIBFUZZER),-fsanitize=fuzzer) $$(LDFLAGS) -rdynamic -o $$@ $$^ $$(LIBS)
endef
$(foreach name,$(FUZZ_NAMES),$(eval $(call fuzz_rules,$(name))))
-include $(patsubst %.c,$(B)/%.d,$(FUZZ_SRC) tests/fuzz/driver.c)

fuzz-targets: $(foreach name,$(FUZZ_NAMES),$(B)/fuzz/$(name))

# Replays the corpora with this build.
fuzz-replay: fuzz-targets
	@set -e; $(foreach name,$(FUZZ_NAMES),$(B)/fuzz/$(name) $(wildcard tests/fuzz/corpus/$(name)) $($(name)_SEEDS);)

# Runs every target for FUZZ_SECONDS under clang's libFuzzer, or those of FUZZ="gguf config". What is found stays in build/fuzz/.
FUZZ_SECONDS ?= 60
FUZZ ?= $(FUZZ_NAMES)
FUZZ_BUILD = CC=clang SANITIZE=fuzzer-no-link,address,undefined LIBFUZZER=1
fuzz:  ## runs the fuzz targets, FUZZ_SECONDS (60) each; FUZZ="gguf config" chooses
	@scripts/deps.sh fuzz
	@$(MAKE) --no-print-directory $(FUZZ_BUILD) fuzz-targets
	@set -e; for name in $(FUZZ); do $(MAKE) --no-print-directory fuzz-one NAME=$$name; done
fuzz-one:
	@mkdir -p build/fuzz/$(NAME)/corpus build/fuzz/$(NAME)/seeds
	@for s in $($(NAME)_SEEDS); do [ -d $$s ] && cp $$s/* build/fuzz/$(NAME)/seeds/ || cp $$s build/fuzz/$(NAME)/seeds/$$(echo $$s | tr / _); done
	@echo "fuzzing $(NAME) for $(FUZZ_SECONDS) s"
	@build/clang-fuzzer-no-link-address-undefined/fuzz/$(NAME) -max_total_time=$(FUZZ_SECONDS) -timeout=5 -malloc_limit_mb=64 -rss_limit_mb=1024 \
	  -max_len=65536 -artifact_prefix=build/fuzz/$(NAME)/ -print_final_stats=1 -verbosity=0 \
	  build/fuzz/$(NAME)/corpus $(wildcard tests/fuzz/corpus/$(NAME)) build/fuzz/$(NAME)/seeds > build/fuzz/$(NAME)/log 2>&1 || \
	  { tail -40 build/fuzz/$(NAME)/log; echo "$(NAME) failed: see build/fuzz/$(NAME)/"; exit 1; }
	@grep -E "stat::(number_of_executed_units|peak_rss_mb|average_exec)" build/fuzz/$(NAME)/log

.PHONY: fuzz fuzz-one fuzz-targets fuzz-replay
