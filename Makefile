# Every target works on all modules of go.work. `make` alone shows the targets.

GO      ?= go
# The tests of gocron and cron wait for real ticks for minutes. They stand apart, so that each has others beside it.
MODULES := adapters/gocron . adapters/cron cmd examples bench adapters/asynq adapters/river adapters/watermill
LIBRARY := github.com/holdlock/holdlock

# The race detector needs a C compiler on Linux. Without one the tests run all the same, and say so.
RACE := $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race)

LINT_VERSION := v2.15.0
GOLANGCI     ?= $(CURDIR)/.bin/golangci-lint-$(LINT_VERSION)/golangci-lint

# $(call each,COMMAND) runs a command in the directory of every module. $$m is the module.
each = set -e; for m in $(MODULES); do echo "-- module $$m"; (cd $$m && $(1)); done

.DEFAULT_GOAL := help
.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z\/]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: setup ## all tests of all modules, with the race detector; installs what is missing
	$(if $(RACE),,@echo "no C compiler: testing without the race detector")
	$(GO) test $(RACE) -timeout 15m $(MODULES:%=./%/...)

.PHONY: setup
setup: ## install the servers that the tests start, on Debian as root; elsewhere say what is missing
	@$(call need,redis-server,redis-server)
	@$(call need,pgbouncer,pgbouncer)
	@$(call need,rabbitmq-server,rabbitmq-server)
	@PATH="$$PATH:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"; $(call need,initdb,postgresql)

# $(call need,PROGRAM,PACKAGE) makes sure that there is a program.
need = command -v $(1) >/dev/null || if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2) >/dev/null; \
	else echo "$(1) is not installed: what needs it will be skipped"; fi

.PHONY: test/unit
test/unit: ## the quick tests: the root package, the contract, the memory store, the test kit
	$(GO) test $(RACE) . ./driver ./driver/faultdriver ./memhold ./holdtest ./internal/...

.PHONY: test/faults
test/faults: ## the long soaks that kill, stop and overload (build tag soak)
	@$(call each,$(GO) test $(RACE) -timeout 2h -tags soak -run Soak -v ./...)

.PHONY: bench
bench: ## all benchmarks
	@$(call each,$(GO) test -run '^$$' -bench . -benchmem ./...)

.PHONY: bench/peers
bench/peers: ## measure beside other Redis locks for Go and write bench/RESULTS.md
	cd bench && $(GO) run .

.PHONY: bench/choosing
bench/choosing: ## measure what each store costs and write the table of docs/choosing.md
	cd examples && $(GO) test -count=1 -run TestCosts -v ./choosing -costs

.PHONY: lint
lint: $(GOLANGCI) ## golangci-lint on all modules: .golangci.yml
	@$(call each,$(GOLANGCI) run --config $(CURDIR)/.golangci.yml ./...)

$(GOLANGCI):
	GOBIN=$(dir $@) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

.PHONY: build/all
build/all: ## build and vet all modules, tests included, for Linux, macOS and Windows
	@set -e; for os in linux darwin windows; do echo "== $$os"; export GOOS=$$os CGO_ENABLED=0; \
		$(call each,$(GO) build -o /dev/null ./... && $(GO) vet ./...); done

.PHONY: generate
generate: ## write the generated files anew
	$(GO) generate ./...

.PHONY: docs/lab
docs/lab: setup ## run the lab and write its results into docs/where-redlock-falls-short.md; takes minutes
	@t=$$(mktemp -d); trap 'rm -r "$$t"' EXIT; cd cmd && $(GO) build -o "$$t/holdlock" ./holdlock && \
		$(GO) run ./lab/internal/page "$$t/holdlock" ../docs/where-redlock-falls-short.md

.PHONY: current
current: ## generated files and go.mod files are current
	$(GO) test -count=1 ./internal/gen/...
	@$(call each,$(call tidy,-diff))
	@echo "all current"

.PHONY: verify
verify: ## let spin check the models of the protocols; installs spin
	@$(call need,spin,spin)
	$(GO) test -count=1 -tags verify -v -timeout 1h ./verify

.PHONY: tidy
tidy: ## go mod tidy in all modules
	@$(call each,$(call tidy,) && if [ $$m != . ]; then cp "$$t/go.sum" go.sum; \
		$(GO) mod edit -dropreplace $(LIBRARY) "$$t/go.mod"; cp "$$t/go.mod" go.mod; fi)

# The other modules name a release of the library. They are tidied against the library beside them, as go.work builds
# them, in a copy of go.mod, because go mod tidy does not look at go.work.
tidy = if [ $$m = . ]; then GOWORK=off $(GO) mod tidy $(1); else \
	t=$$(mktemp -d); trap 'rm -r "$$t"' EXIT; cp go.mod go.sum "$$t"; \
	$(GO) mod edit -replace $(LIBRARY)=$(CURDIR) "$$t/go.mod"; \
	GOWORK=off $(GO) mod tidy -modfile="$$t/go.mod" $(1); fi

.PHONY: changelog
changelog: ## print the entries of changelog/unreleased as one list
	@for f in changelog/unreleased/*.md; do [ ! -e "$$f" ] || cat "$$f"; done
