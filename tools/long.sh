#!/usr/bin/env bash
# Runs the long tests of the repository, those that ask testing.Short, one package
# after the other. "make test" leaves them out or runs a shorter form of them. The
# libraries run under the race detector, the modules in PLAIN without it.
# usage: PLAIN="MODULE..." tools/long.sh [flag of go test]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One line a test: folder and name. Only a test itself counts, no helper.
tests=$(grep -rl --include='*_test.go' --exclude-dir=testdata --exclude-dir=node_modules 'testing\.Short()' . | LC_ALL=C sort |
	xargs awk '/^}/ { name = "" }
		match($0, /^func Test[A-Za-z0-9_]*/) { name = substr($0, 6, RLENGTH - 5) }
		name && /testing\.Short\(\)/ { dir = FILENAME; sub(/\/[^\/]*$/, "", dir); print dir, name; name = "" }')
for dir in $(cut -d' ' -f1 <<<"$tests" | uniq); do
	names=$(awk -v dir="$dir" '$1 == dir { print $2 }' <<<"$tests" | paste -sd'|')
	echo "long $dir ${names//|/ }"
	race=-race
	for m in ${PLAIN:-}; do [[ $dir/ != ./$m/* ]] || race=; done
	go test $race -timeout 30m "$@" -run "^($names)\$" "$dir"
done
