#!/usr/bin/env bash
# Runs the long tests of the repository, those that ask testing.Short, two packages
# at a time. "make test" leaves them out or runs a shorter form of them. The
# libraries run under the race detector, the modules in PLAIN without it.
# usage: PLAIN="MODULE..." tools/long.sh [flag of go test]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One line a test: folder and name. Only a test itself counts, no helper.
tests=$(grep -rl --include='*_test.go' --exclude-dir=testdata --exclude-dir=node_modules 'testing\.Short()' . | LC_ALL=C sort |
	xargs awk '/^}/ { name = "" }
		match($0, /^func Test[A-Za-z0-9_]*/) { name = substr($0, 6, RLENGTH - 5) }
		name && /testing\.Short\(\)/ { dir = FILENAME; sub(/\/[^\/]*$/, "", dir); print dir, name; name = "" }')
# What takes longest is begun first, and two packages run at once, because most tests wait
# more than they compute.
first='fleet/operator fleet/cmd/lifecyclectl fleet/workflow fleet/host procpool procpool/conformance'
{ printf './%s\n' $first; cut -d' ' -f1 <<<"$tests" | uniq; } | awk '!seen[$0]++' | while read -r dir; do
	names=$(awk -v dir="$dir" '$1 == dir { print $2 }' <<<"$tests" | paste -sd'|')
	[ -n "$names" ] || continue
	race=-race
	for m in ${PLAIN:-}; do [[ $dir/ != ./$m/* ]] || race=; done
	echo $race -timeout 30m "$@" -run "'^($names)\$'" "$dir"
done | xargs -L 1 -P 2 -t go test
