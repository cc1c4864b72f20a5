#!/usr/bin/env bash
# Runs every fuzz target of the repository with new inputs, one after the other, for D each.
# Its seeds and past findings are tests, which "make test" runs.
# usage: tools/fuzz.sh -fuzztime D
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" != -fuzztime ] || [ $# != 2 ]; then
	echo "usage: tools/fuzz.sh -fuzztime D" >&2
	exit 2
fi
fuzztime=$2

# go test -fuzz takes one target of one package at a time.
targets=$(grep -rEo --include='*_test.go' --exclude-dir=testdata --exclude-dir=node_modules '^func Fuzz[A-Za-z0-9_]*' . |
	sed -E 's|^(.*)/[^/]*:func (Fuzz.*)$|\1 \2|' | LC_ALL=C sort -u) || true # grep finds none
if [ -z "$targets" ]; then
	echo "no fuzz targets"
	exit 0
fi
while read -r dir target; do
	echo "fuzz $dir $target for $fuzztime"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$dir"
done <<<"$targets"
