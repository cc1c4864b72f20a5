# Every target works on a fresh clone. It needs only Go and make, and a C
# compiler where the race detector runs (installed as root when apt exists).

.DEFAULT_GOAL := help
SHELL := /bin/bash

# Every folder with a go.mod is a module. go.work joins them.
MODULES  := $(shell find . -name go.mod -not -path '*/testdata/*' -not -path '*/node_modules/*' -exec dirname {} \; | LC_ALL=C sort)
PACKAGES := $(addsuffix /...,$(MODULES))
# What others may import; tools/release/modules.go has the same list.
PUBLISHED := . config/cobraconfig config/viperconfig fleet grpcdrain kube otel vet worker/docker
# The race detector makes tests two to six times slower: "make test" runs all without it.
# "make test-next" runs the published modules with it, "make test-long" the long tests of the
# libraries, and "make race" all. The long tests of these modules run without it:
PLAIN    := bench deploy deploy/e2e examples examples/http3 fleet vet
# What takes longest is begun first.
FIRST    := ./fleet/host ./fleet/cmd/lifecyclectl ./fleet/operator ./procpool ./worker/docker ./deploy ./fleet/workflow ./fleet/presence . \
	./fleet/host/engine/isolate ./fleet/host/engine/python ./examples/service ./worker ./internal/httpdrain ./procpool/conformance ./examples/shop ./examples/fleet ./examples/adopt

FUZZTIME  ?= 20s# for each fuzz target; 50x counts executions
BENCH     ?= .
BENCHTIME ?= 1s
BENCHPKGS ?= $(PACKAGES)
COUNT     ?= 6
TESTFLAGS ?=
TESTP     ?= $(shell echo $$((5 * $$(getconf _NPROCESSORS_ONLN))))# packages at once: most wait more than they compute
GO_NEXT   ?= go1.27.0# the newest supported release; go.mod names the oldest

.PHONY: help
help: ## list the targets (default)
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9 -]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  modules: $(MODULES)"

.PHONY: run
run: ## run the example service; Ctrl-C shows how it stops
	go run ./examples/service $(ARGS)

# Programs without debug information link in a quarter of the time; stacks stay whole.
test-attacks test-others test-longest test-chaos test-next-fleet test-next-others race chaos: export GOFLAGS += -ldflags=-w

.PHONY: test test-attacks test-others
test: ## test every module: a leaked goroutine is a failure; "make test-long" has the rest, and "make test-next" looks for data races
	@$(MAKE) --no-print-directory -j 2 test-attacks test-others

# The attacks on the host measure the memory of their process, so they have one of their own.
ATTACKS  := ^TestAttacksOnTheHost$$
test-attacks:
	go test -short -timeout 30m -run '$(ATTACKS)' $(TESTFLAGS) ./fleet/host

test-others:
	go test -short -p $(TESTP) -timeout 30m -skip '$(ATTACKS)' $(TESTFLAGS) $(FIRST) $(patsubst %,%/...,$(MODULES))

.PHONY: test-long test-longest test-chaos
test-long: cc ## the long tests: three servers, the browser on every page, load, languages, and a minute of chaos each
	@$(MAKE) --no-print-directory -j 2 test-longest test-chaos

test-longest:
	PLAIN='$(PLAIN)' tools/long.sh $(TESTFLAGS)

# Of a chaos test one minute; "make chaos" is its full length.
test-chaos:
	CHAOS_STEPS=50000 go test -race -run '^TestRandomOperations$$' -count 1 -timeout 30m ./worker
	CHAOS_SECONDS=60 POISON_SECONDS=60 go test -race -run '^(TestChaos|TestPoisonousCallerBesideAHealthyOne)$$' -count 1 -timeout 30m ./procpool
	CHAOS_KILLS=50 go test -run '^TestKillLosesNothingThatWasAcknowledged$$' -count 1 -timeout 30m ./fleet/workflow
	CHAOS_HOOKS=40 go test -run '^TestHooksAndTimersUnderKills$$' -count 1 -timeout 30m ./fleet/workflow

.PHONY: test-next test-next-fleet test-next-others
test-next: cc ## test each published module alone on the other supported Go release (GO_NEXT), with the race detector
	@$(MAKE) --no-print-directory -j 2 test-next-fleet test-next-others

test-next-fleet test-next-others: export GOWORK = off
test-next-fleet test-next-others: export GOTOOLCHAIN = $(GO_NEXT)
test-next-fleet:
	cd fleet && go test -race -skip /in_a_child -short -p 4 -timeout 30m $(TESTFLAGS) ./...

test-next-others:
	@set -e; for m in $(filter-out fleet,$(PUBLISHED)); do \
		echo "test $$m with $(GO_NEXT)"; (cd $$m && go test -race -short -p 4 -timeout 30m $(TESTFLAGS) ./...); done

.PHONY: faults
faults: ## inject each fault of the list into real processes, and score what doctor and the front page print of it (4 minutes on a quiet machine; root for those of disks, memory and clocks)
	cd fleet && FAULTS_ALONE=yes go test -count 1 -timeout 20m -v -run '^(TestFaultsAreNamed|TestFullDiskIsNamed|TestEveryRuleHasAFault)$$' $(TESTFLAGS) ./cmd/lifecyclectl

.PHONY: race
race: cc ## the same, twenty times each test: flaky is broken
	go test -race -timeout 60m -count 20 $(TESTFLAGS) $(PACKAGES)

.PHONY: test-newest
test-newest: ## test the root module and the guests of config with the newest version of each dependency; their go.mod names old ones (network)
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; git ls-files -z | xargs -0 cp --parents -t "$$dir"; \
		export GOWORK=off; for m in . config/cobraconfig config/viperconfig; do (cd "$$dir/$$m" && \
		go get -u -t ./... && go mod tidy && go list -m -f '{{if not .Indirect}}{{.}}{{end}}' all && go test -timeout 10m $(TESTFLAGS) ./...); done

.PHONY: lint
lint: bin/golangci-lint ## format check, vet and golangci-lint in every module
	@set -e; for m in $(MODULES); do echo "lint $$m"; (cd $$m && $(CURDIR)/bin/golangci-lint run --config $(CURDIR)/.golangci.yml ./...); done

.PHONY: fmt
fmt: bin/golangci-lint ## format every module
	@set -e; for m in $(MODULES); do (cd $$m && $(CURDIR)/bin/golangci-lint fmt --config $(CURDIR)/.golangci.yml ./...); done

.PHONY: fuzz
fuzz: ## fuzz each target for FUZZTIME (20s)
	@tools/fuzz.sh -fuzztime $(FUZZTIME)

.PHONY: chaos
chaos: cc ## a thousand upgrades of a process under load, and five hundred with kills, foreign programs replaced and killed on their sockets, a million random operations on trees, a hundred thousand on processes and their cgroups, faults on a pool for minutes, a thousand kills of a workflow's process, full disks, killed restores and disconnects under workflows, workflows and hosted workers on clusters; CHAOS_SEED=N for others
	CHAOS_UPGRADES=1000 go test -run '^TestUpgradesLoseNoRequest$$' -count 1 -timeout 30m -v .
	CHAOS_KILLED_UPGRADES=500 go test -run '^TestUpgradesUnderKills$$' -count 1 -timeout 60m -v .
	CHAOS_RELOADS=50 go test -run '^TestForeignProgramsAreReplaced$$' -count 1 -timeout 60m -v ./internal/run
	CHAOS_STEPS=1000000 go test -run '^TestRandomOperations$$' -count 1 -timeout 30m ./worker
	CHAOS_PROCESSES=100000 go test -run '^TestRandomProcesses$$' -count 1 -timeout 30m ./worker
	CHAOS_SECONDS=600 POISON_SECONDS=600 go test -race -run '^(TestChaos|TestPoisonousCallerBesideAHealthyOne)$$' -count 1 -timeout 45m -v ./procpool
	CHAOS_KILLS=1000 CHAOS_RESTARTS=20 go test -run '^(TestKillLosesNothingThatWasAcknowledged|TestOneEntityIsLinearizable)$$' -count 1 -timeout 60m ./fleet/workflow
	CHAOS_HOOKS=300 go test -run '^TestHooksAndTimersUnderKills$$' -count 1 -timeout 60m ./fleet/workflow
	CHAOS_STORAGE=60 go test -run '^TestStorageFaults$$' -count 1 -timeout 60m -v ./fleet/workflow
	CHAOS_RESTORES=100 CHAOS_RESUMES=300 go test -run '^(TestRestoreUnderKillsReactsOnce|TestResumeUnderLoad)$$' -count 1 -timeout 60m -v ./fleet/workflow
	NATS_TEST_SERVER=cluster go test -race -count 1 -timeout 30m ./fleet/workflow ./fleet/lease
	go test -run '^TestTenThousandEntitiesOnScreen$$' -count 1 -v ./fleet/operator
	CHAOS_SECONDS=600 go test -run '^TestChaos$$' -count 1 -timeout 60m -v ./fleet/host
	HOST_ATTACKS=all go test -run '^TestAttacksOnTheHost$$' -count 1 -timeout 60m -v ./fleet/host
	HOST_HOSTILE=600s go test -run '^TestAHostileTenantCostsItsNeighbourNothing$$' -count 1 -timeout 60m -v ./fleet/host
	HOST_TEST_SERVERS=3 go test -race -count 1 -timeout 60m ./fleet/host

.PHONY: models spin
models: spin ## check the models of the protocols with SPIN, and records of the code against them (two minutes on a quiet machine)
	cd tools && MODELS=1 go test -count=1 -timeout 30m -v -run '^TestModels$$' ./models
	MODELS=1 go test -count=1 -timeout 30m -v -run $(RECORDED) . ./fleet/host ./fleet/lease ./fleet/workflow ./internal/httpdrain ./kube ./worker

# The tests that record what the code does.
RECORDED := 'Conform|^TestHooksAndTimersUnderKills$$|^TestRestoreUnderKillsReactsOnce$$'

spin: cc
	@command -v spin >/dev/null && exit 0; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then echo "make: installing spin"; \
		apt-get -o DPkg::Lock::Timeout=600 update -qq && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends spin >/dev/null; \
	else echo "make: there is no spin: the models are not checked"; fi

.PHONY: bench
bench: bin/benchstat bench/procpool/testdata/node_modules ## run the benchmarks COUNT (6) times over, peers in turn, and print tables
	@mkdir -p bench/results
	@COUNT='$(COUNT)' BENCH='$(BENCH)' BENCHTIME='$(BENCHTIME)' tools/bench.sh $(BENCHPKGS) | tee bench/results/latest.txt
	@bin/benchstat -filter '/peer:/./' -col /peer bench/results/latest.txt
	@bin/benchstat -filter '-/peer:/./' bench/results/latest.txt

.PHONY: bench-docs
bench-docs: ## make docs/reference/benchmarks.md of what "make bench" and "make e2e-long" have measured last
	[ ! -e bench/results/long-proof.txt ] || cp bench/results/long-proof.txt docs/reference/long-proof.txt
	cd bench && go run ./cmd/benchdoc $(if $(wildcard bench/results/latest.txt),-merge results/latest.txt)

# What the clients and proxies of bench/clients need: a program or a file, and the Debian package that has it.
PYTHON_MODULES  := /usr/lib/python3/dist-packages
CLIENT_PROGRAMS := /usr/bin/python3:python3 $(foreach m,aiohttp h2 httpx requests,$(PYTHON_MODULES)/$(m):python3-$(m)) \
	$(PYTHON_MODULES)/grpc:python3-grpcio node:nodejs npm:npm ruby:ruby curl:curl h2load:nghttp2-client chromium:chromium \
	javac:default-jdk-headless /usr/sbin/nginx:nginx /usr/sbin/haproxy:haproxy /usr/sbin/apache2:apache2 caddy:caddy

.PHONY: clients client-programs
clients: client-programs bench/clients/testdata/node/node_modules ## count what clients and proxies lose when a server stops, and write docs/reference/clients.md (half an hour); CLIENTS_LONG=1 with more lags (45 minutes)
	cd bench && go test -run '^TestMatrix$$' -count 1 -timeout 3h -v ./clients -args -results $(CURDIR)/docs/reference/clients.json $(if $(CLIENTS_LONG),-long)
	cd bench && go run ./clients/cmd/clientdoc

# RUNLEVEL keeps packages from starting their services.
client-programs:
	@missing=; for pair in $(CLIENT_PROGRAMS); do \
		[ -e "$${pair%%:*}" ] || command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair##*:}"; done; \
	if [ -z "$$missing" ]; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "installing$$missing"; apt-get -o DPkg::Lock::Timeout=600 update -qq && \
		RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends $$missing >/dev/null; \
	else echo "make: these clients and proxies are not measured, because they are not installed:$$missing"; fi

# What "make bench-rest" and its sisters measure.
PART_rest      := ./bench/rest
PART_workers   := ./bench/units ./bench/workers
PART_workflows := ./bench/workflow
PART_pools     := ./bench/procpool
PART_hosted    := ./bench/host

.PHONY: bench-rest bench-workers bench-workflows bench-pools bench-hosted
bench-rest bench-workers bench-workflows bench-pools bench-hosted: bench-%: ## measure one part alone, and put it into docs/reference/benchmarks.md
	@mkdir -p bench/results
	@COUNT='$(COUNT)' BENCH='$(BENCH)' BENCHTIME='$(BENCHTIME)' tools/bench.sh $(PART_$*) | tee bench/results/$*.txt
	cd bench && go run ./cmd/benchdoc -merge results/$*.txt

bench/procpool/testdata/node_modules bench/clients/testdata/node/node_modules fleet/operator/testdata/clients/node_modules: %/node_modules: %/package-lock.json
	@if command -v npm >/dev/null; then cd $(@D) && npm ci --silent --no-audit --no-fund && touch node_modules; \
	else echo "make: there is no npm: what needs $@ is left out"; fi

bench-pools: bench/procpool/testdata/node_modules

.PHONY: bench-once
bench-once: ## one short pass of each benchmark: they still run
	go test -run '^$$' -bench . -benchtime 1x -short -timeout 10m \
		$$(grep -rl --include='*_test.go' --exclude-dir=testdata '^func Benchmark' . | xargs -n 1 dirname | LC_ALL=C sort -u)

.PHONY: e2e
e2e: ## the tests on a real Kubernetes (root, Linux, about 10 minutes)
	@if [ -x deploy/e2e/run ]; then deploy/e2e/run; else echo "make e2e: there is no deploy/e2e/run yet"; fi

.PHONY: alerts-long
alerts-long: bin/prometheus ## 90 processes are stopped under a Prometheus that scrapes each 15 s: which alerts fire, and when those of running processes resolve (13 minutes)
	cd deploy && ALERTS_TEST=long go test -run '^(TestStopsAreSeen|TestAlertsFireAndResolve)$$' -count 1 -timeout 40m -v .

.PHONY: e2e-long
e2e-long: ## a thousand pods replaced under load of every protocol (root, Linux, half an hour); E2E_LONG_PODS=100 E2E_LONG_REQUESTS=10000 for 4 minutes
	@mkdir -p bench/results
	@E2E=long E2E_LONG_TABLE=$(CURDIR)/bench/results/long-proof.txt deploy/e2e/run -run '^TestLong' -timeout 3h

.PHONY: docs
docs: ## draw the pictures and tables in docs/ from the code, and copy the library chart into the service chart
	cd tools && go run ./docgen && go run ./guarantees -sort && go run ./models
	go test -count=1 -run '^TestPagesShowTheCode$$' . -update
	cd vet && go test -count=1 -run '^TestPageIsCurrent$$' . -update
	cd deploy && go test -count=1 -run '^(TestSchemasHaveTheKeysOfLifecycle|TestChartKnowsTheKeysOfLifecycleRun|TestVendoredLibraryIsCurrent)$$' . -update
	cd fleet && go test -count=1 -run '^TestReference$$' ./cmd/lifecyclectl -update
	cd fleet && go test -count=1 -run '^TestPageListsTheRules$$' ./internal/diagnosis -update
	cd bench && go run ./clients/cmd/clientdoc
	@if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then \
		cd fleet && DASHBOARD_PICTURE=$(CURDIR)/docs/dashboard.png go test -count 1 -run '^TestDashboardPicture$$' ./operator; \
	else echo "make docs: no chromium here: docs/dashboard.png stays as it is"; fi

PLUGINS := bin/protoc-gen-go bin/protoc-gen-connect-go bin/protoc-gen-connect-openapi

.PHONY: generate
generate: $(PLUGINS) ## make Go and OpenAPI of the operators' proto contract
	cd tools && go run ./protogen

.PHONY: alone
alone: export GOWORK = off
alone: ## the requirements of each module without the workspace, and the build of each published one as its importers get it
	@set -e; for m in $(MODULES); do echo "tidy $$m"; (cd $$m && go mod tidy -diff); done
	@set -e; for m in $(PUBLISHED); do echo "build $$m"; (cd $$m && go build -o /dev/null ./...); done

.PHONY: cross
cross: ## build and vet the library for macOS, Windows and 32-bit Linux
	@set -e; for m in . worker/docker; do for os in darwin windows; do for arch in amd64 arm64; do echo "cross $$m $$os/$$arch"; \
		(cd $$m && GOWORK=off CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch go build ./...); done; \
		(cd $$m && GOWORK=off CGO_ENABLED=0 GOOS=$$os go vet ./...); done; \
		for arch in 386 arm; do echo "cross $$m linux/$$arch"; (cd $$m && GOWORK=off CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build ./...); done; done

# The database of vulnerabilities is on the network. NEWEST=1 checks with the newest
# versions of all dependencies.
.PHONY: vulnerabilities
vulnerabilities: ## check every published module with govulncheck; NEWEST=1 with the newest dependencies
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; git ls-files -z | xargs -0 cp --parents -t "$$dir"; \
		for m in $(PUBLISHED); do echo "govulncheck $$m"; (cd "$$dir/$$m" && export GOWORK=off && \
		if [ -n '$(NEWEST)' ]; then go get -u ./... && go mod tidy; fi && go run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...); done

.PHONY: release
release: ## check, commit and tag a release of every published module (VERSION=v0.2.0); push nothing
	cd tools && go run ./release -version '$(VERSION)'

.PHONY: release-check
release-check: ## release a copy, and install from it as a stranger does
	cd tools && go run ./release -check

.PHONY: ci
ci: ## everything that must pass before a merge
	@bash .ci/run

.PHONY: clean
clean: ## remove what was built
	rm -rf bin bench/results

# The race detector links with the C compiler.
.PHONY: cc
cc:
	@cc=$$(go env CC); cc=$${cc%% *}; command -v "$$cc" >/dev/null && exit 0; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "make: installing gcc for the race detector"; \
		apt-get -o DPkg::Lock::Timeout=600 update -qq && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends gcc libc6-dev >/dev/null; \
	else echo "make: the race detector needs a C compiler and there is no $$cc: install gcc or clang" >&2; exit 1; fi

# Built from pinned sources, again when the pin changes.
bin/golangci-lint: tools/tools.mod tools/tools.sum
	@echo "building $@ (about a minute the first time)"
	@cd tools && GOWORK=off go build -modfile=tools.mod -trimpath -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/benchstat: tools/tools.mod tools/tools.sum
	@cd tools && GOWORK=off go build -modfile=tools.mod -trimpath -o ../$@ golang.org/x/perf/cmd/benchstat

bin/protoc-gen-go: PLUGIN = google.golang.org/protobuf/cmd/protoc-gen-go
bin/protoc-gen-connect-go: PLUGIN = connectrpc.com/connect/cmd/protoc-gen-connect-go
bin/protoc-gen-connect-openapi: PLUGIN = github.com/sudorandom/protoc-gen-connect-openapi
$(PLUGINS): tools/proto.mod tools/proto.sum
	@echo "building $@"
	@cd tools && GOWORK=off go build -modfile=proto.mod -trimpath -o ../$@ $(PLUGIN)
# The programs that render the manifests and read the alerts. The tests in
# deploy/ need them, and are skipped without them.
.PHONY: manifest-tools
manifest-tools: bin/helm bin/kustomize bin/promtool ## build or fetch what the tests of deploy/ use (3 minutes, once)

bin/helm: tools/k8s.mod tools/k8s.sum
	@echo "building $@ (about two minutes the first time)"
	@cd tools && GOWORK=off go build -modfile=k8s.mod -trimpath -o ../$@ helm.sh/helm/v4/cmd/helm

bin/kustomize: tools/k8s.mod tools/k8s.sum
	@cd tools && GOWORK=off go build -modfile=k8s.mod -trimpath -o ../$@ sigs.k8s.io/kustomize/kustomize/v5

# Prometheus is Debian's package, unpacked but not installed: compiling it takes
# longer than everything else here together.
bin/promtool:
	@mkdir -p bin; if command -v promtool >/dev/null && command -v prometheus >/dev/null; then \
		ln -sf "$$(command -v promtool)" bin/promtool; ln -sf "$$(command -v prometheus)" bin/prometheus; \
	elif command -v apt-get >/dev/null; then \
		echo "fetching $@ and bin/prometheus"; set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; chmod 755 "$$work"; \
		[ "$$(id -u)" != 0 ] || apt-get -o DPkg::Lock::Timeout=600 update -qq; \
		(cd "$$work" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb .); \
		cp "$$work"/usr/bin/prometheus "$$work"/usr/bin/promtool bin/; touch bin/promtool; \
	else echo "make: there is no prometheus and promtool in PATH: install them" >&2; exit 1; fi

bin/prometheus: bin/promtool
