# What each target is for is in CONTRIBUTING.md.
SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := build

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X headgate/telemetry.Version=$(VERSION)
FUZZTIME ?= 6s
# The packages that make fuzz is for; all where there are none.
FUZZ ?=
# Where CI is set nothing may be skipped, and properties use the same cases every time.
TESTLOG := ./bin/testlog -skips bin/skipped $(if $(CI),-no-skips)
SEED := $(if $(CI),-rapid.seed=1)
# Many packages wait for most of their time: for databases, for processes, for the clock.
TOGETHER := -p 4

# Expanded only where they are used: listing packages takes a second.
PACKAGES = $(shell go list ./... | grep -vE '^headgate/e2e(/|$$)')
WITH_RAPID = $(shell go list -f '{{range .TestImports}}{{if eq . "pgregory.net/rapid"}}{{$$.ImportPath}}{{end}}{{end}} {{range .XTestImports}}{{if eq . "pgregory.net/rapid"}}{{$$.ImportPath}}{{end}}{{end}}' ./...)
WITHOUT_RAPID = $(filter-out $(WITH_RAPID),$(PACKAGES))
# The shells: where goroutines are. The pure core is tested with more cases instead.
SHELL_PACKAGES = $(shell go list $(SHELLS))
SHELLS = ./audit ./batch ./batch/files ./certs ./relay/... ./gateway ./engine/... ./journal/... ./simengine/vllmapi/... ./control/agent/... ./control/store/...

.PHONY: docs docs-serve docs-check experiments experiments-live console run fleet-demo build setup test unit race e2e e2e-engine fuzz lint bench bars bench-live bench-overhead bench-scale bench-peers fleet-sim fleet-sim-mutants soak soak-tests release deb image check-packages clean

run: build
	./bin/headgate serve --demo --sample-load

fleet-demo: build
	go build -o bin/etcdmember ./e2e/etcdmember
	go build -o bin/fleetdemo ./e2e/fleetdemo
	./bin/fleetdemo

# The web console, which is embedded. Without npm the binary says so in its place.
console:
	@tools/console.sh

build: console
	go build -ldflags '$(LDFLAGS)' -o bin/headgate ./cmd/headgate

setup:
	@tools/setup.sh

test: setup build
	@rm -f bin/skipped
	$(MAKE) --no-print-directory unit
	$(MAKE) --no-print-directory -j2 --output-sync=line race e2e # which waits most of the time
	@if [ -s bin/skipped ]; then echo "skipped in all:"; sort -u bin/skipped; else echo "nothing was skipped"; fi

unit: setup
	go test $(TOGETHER) -json $(WITHOUT_RAPID) | $(TESTLOG)
	go test $(TOGETHER) -json $(WITH_RAPID) $(if $(SEED),-args $(SEED)) | $(TESTLOG)
	go -C tools test ./...

# A fifth of the cases: properties have all of them without the detector.
race: setup
	go test $(TOGETHER) -race -json $(filter-out $(WITH_RAPID),$(SHELL_PACKAGES)) | $(TESTLOG)
	go test $(TOGETHER) -race -json $(filter $(WITH_RAPID),$(SHELL_PACKAGES)) -args -rapid.checks=20 $(SEED) | $(TESTLOG)

e2e: setup build
	go test -count=1 -timeout 20m -json ./e2e/... | $(TESTLOG)

e2e-engine: setup
	go test -count=1 -json -run '^TestEngine' ./e2e | $(TESTLOG)
	go test -count=1 -json ./e2e/engine/... ./e2e/realengine/... | $(TESTLOG)

fuzz:
	@tools/fuzz.sh $(FUZZTIME) $(FUZZ)

lint: setup
	go vet ./...
	go vet -tags live ./cmd/headgate
	go vet -tags docs .
	./bin/staticcheck ./...
	go -C tools vet ./testlog ./bars ./recompute ./sbom
	@unformatted=$$(find . -name node_modules -prune -o -name '*.go' -print | xargs gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi

bench:
	go test -run '^$$' -bench . -benchmem ./...

bars: setup
	go test -run '^$$' -bench '^(BenchmarkAdmitRelease|BenchmarkAppend)$$' -benchmem ./admission ./journal | ./bin/bars tools/bars.txt

# In real time: nothing else should want the processor meanwhile.
bench-live: build
	./bin/headgate bench availability --seeds 1-30
	./bin/headgate bench burst --seeds 1-20
	./bin/headgate bench noharm --seeds 1-24
	./bin/headgate bench storm --seeds 1-3

# The plans of docs/experiments: in virtual time, and in real time on a machine that has
# nothing else to do.
experiments: build
	tools/experiments.sh run sim bin/experiments

experiments-live: build
	tools/experiments.sh run live bin/experiments-live

# They exit with 3 if a bar is not met. The limit of open files bounds the second.
bench-overhead: build
	go build -o bin/overhead ./gateway/overhead
	./bin/overhead cost -output bin/overhead.json

bench-scale: build
	go build -o bin/overhead ./gateway/overhead
	./bin/overhead scale -output bin/scale.json

# Beside nginx, HAProxy, vmauth and Portkey's gateway, which it installs: six minutes.
bench-peers: build
	@tools/peers.sh
	go build -o bin/overhead ./gateway/overhead
	./bin/overhead peers -output bin/peers.json

# Fleets in virtual time. HISTORY=n runs one of them, with everything that happens.
SEEDS ?= 2000
fleet-sim:
	go build -o bin/fleetsim ./control/fleetsim/run
	./bin/fleetsim $(if $(HISTORY),-seed $(HISTORY) -v,-seeds $(SEEDS))

# Faults planted in the source, one at a time; each has to be found.
fleet-sim-mutants:
	go run ./control/fleetsim/mutants

# STREAMS answers of an event a second for DURATION; clients leave LEAVE of them.
STREAMS ?= 10000
DURATION ?= 30m
LEAVE ?= 0.01
soak: build
	go build -o bin/overhead ./gateway/overhead
	./bin/overhead soak -streams $(STREAMS) -duration $(DURATION) -leave $(LEAVE) -output bin/soak.json

# Properties, races and fuzzers for hours.
soak-tests: setup
	go test -count=1 -timeout 1h -json $(WITH_RAPID) -args -rapid.checks=5000 | $(TESTLOG)
	go test -count=20 -race -timeout 1h -json $(SHELLS) ./cmd/... | $(TESTLOG)
	@tools/fuzz.sh 10m

# The pages of docs as a site, with Hugo. REPOSITORY is where links to files that are no pages
# lead, such as https://git.example/headgate/blob/main; without it they are shown as names.
DOCS ?= bin/docs
REPOSITORY ?=
HUGO = HUGO_PARAMS_REPOSITORY='$(REPOSITORY)' hugo --source site

docs:
	@tools/docs.sh
	$(HUGO) --destination $(abspath $(DOCS)) --cleanDestinationDir --quiet

docs-serve:
	@tools/docs.sh
	$(HUGO) server --bind 127.0.0.1

# Every link, anchor and entry of the search in what docs builds.
docs-check: docs
	HEADGATE_DOCS=$(abspath $(DOCS)) go test -count=1 -tags docs -run '^TestSite' .

# Static binaries, packages of them, what is in them and what is known against it: bin/release.
release: console
	@tools/release.sh $(VERSION) $(ARCH)

# For this machine's architecture.
deb: console
	tools/build.sh $(VERSION) $$(go env GOARCH) bin/headgate-release
	tools/deb.sh $(VERSION) $$(go env GOARCH) bin/headgate-release bin

image:
	@for tool in podman docker; do \
		if command -v $$tool >/dev/null; then \
			exec $$tool build -f Containerfile --build-arg GO=$$(go env GOVERSION | tr -d go) --build-arg VERSION=$(VERSION) --build-arg TARGETARCH=$$(go env GOARCH) -t headgate:$(VERSION) .; \
		fi; \
	done; echo "image: neither podman nor docker is here"; exit 1

# The chart, the unit, the packages, rules and dashboard, with Helm, dpkg, systemd and
# promtool. REWRITE=1 writes what Helm makes of the chart.
check-packages: console
	@tools/packages.sh
	go -C tools/packages vet ./...
	go -C tools/packages test -count=1 ./... $(if $(REWRITE),-args -rewrite)

clean:
	rm -rf bin .cache console/dist/app console/node_modules e2e/client/node_modules e2e/console/node_modules e2e/engine/node_modules
