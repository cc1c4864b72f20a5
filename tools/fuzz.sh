#!/usr/bin/env bash
# Runs every fuzz target of the repository, one after the other: its seeds and
# past findings, and then, with -fuzztime D, new inputs for D each.
# usage: tools/fuzz.sh [-fuzztime D]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fuzztime=
if [ "${1:-}" = -fuzztime ]; then
	fuzztime=${2:?tools/fuzz.sh: -fuzztime needs a duration, such as 20s}
elif [ $# -gt 0 ]; then
	echo "tools/fuzz.sh: unknown argument $1 (known is -fuzztime D)" >&2
	exit 2
fi

# go test -fuzz takes one target of one package at a time.
targets=$(grep -rEo --include='*_test.go' --exclude-dir=testdata --exclude-dir=node_modules '^func Fuzz[A-Za-z0-9_]*' . |
	sed -E 's|^(.*)/[^/]*:func (Fuzz.*)$|\1 \2|' | LC_ALL=C sort -u) || true # grep finds none
if [ -z "$targets" ]; then
	echo "no fuzz targets"
	exit 0
fi
if [ -z "$fuzztime" ]; then
	# shellcheck disable=SC2046 # one argument a folder
	exec go test -run '^Fuzz' $(cut -d' ' -f1 <<<"$targets" | uniq)
fi
while read -r dir target; do
	echo "fuzz $dir $target for $fuzztime"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$dir"
done <<<"$targets"
