#!/usr/bin/env bash
# Runs all benchmarks COUNT times, so that compared programs are measured in
# turn, and prints the results in Go's benchmark
# format, with the machine and the versions of the peers before them.
# usage: tools/bench.sh PACKAGE...   (environment: COUNT, BENCH, BENCHTIME)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peers=(
	github.com/alexliesenfeld/health github.com/hellofresh/health-go/v5 github.com/AppsFlyer/go-sundheit
	sigs.k8s.io/controller-runtime golang.org/x/sync github.com/oklog/run github.com/thejerf/suture/v4 github.com/aretw0/lifecycle go.uber.org/fx
	github.com/cloudflare/tableflip github.com/hashicorp/go-plugin google.golang.org/grpc github.com/roadrunner-server/pool
	github.com/nats-io/nats-server/v2 github.com/nats-io/nats.go github.com/c360studio/semstreams
)
echo "cores: $(nproc 2>/dev/null || sysctl -n hw.ncpu)"
echo "kernel: $(uname -sr)"
echo "toolchain: $(go env GOVERSION)"
echo "peers: $(go list -m -f '{{.Path}} {{.Version}}' "${peers[@]}" | paste -sd, - | sed 's/,/, /g')"
echo
for ((pass = 1; pass <= ${COUNT:-6}; pass++)); do
	echo "pass $pass" >&2
	go test -run '^$' -bench "${BENCH:-.}" -benchmem -benchtime "${BENCHTIME:-1s}" -count 1 -timeout 60m "$@" |
		grep -v -e '^ok ' -e '^PASS$' -e 'no test files'
done
