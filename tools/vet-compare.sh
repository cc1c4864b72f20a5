#!/usr/bin/env bash
# Counts what vet, kube-linter, kube-score and polaris say about manifests, each with its
# defaults. docs/reference/vet.md has the numbers. A tool that is not in PATH is left out.
#
#   tools/vet-compare.sh vet/testdata/others/*.yaml
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
json() { python3 -c "import json,sys; r=json.load(sys.stdin); $1"; }
for file in "$@"; do
	"$here/vet/run" "$file" --output json | json "
n=lambda s: sum(f['severity']==s for f in r['findings'])
print('$file vet:', n('error'), 'errors,', n('warning'), 'warnings,', n('info'), 'notes')" || true
	if command -v kube-linter >/dev/null; then
		{ kube-linter lint "$file" --format json 2>/dev/null || true; } | json "print('$file kube-linter:', len(r['Reports'] or []), 'errors')"
	fi
	if command -v kube-score >/dev/null; then
		{ kube-score score --output-format json "$file" 2>/dev/null || true; } | json "
g=[c['grade'] for o in r for c in o['checks'] if not c['skipped']]
print('$file kube-score:', g.count(1), 'critical,', g.count(5), 'warnings')"
	fi
	if command -v polaris >/dev/null; then
		{ polaris audit --audit-path "$file" --format json 2>/dev/null || true; } | json "
found=[]
def walk(v):
    if isinstance(v, dict):
        if 'Severity' in v and 'Success' in v:
            if not v['Success']: found.append(v['Severity'])
        for x in v.values(): walk(x)
    if isinstance(v, list):
        for x in v: walk(x)
walk(r['Results'])
print('$file polaris:', found.count('danger'), 'danger,', found.count('warning'), 'warnings')"
	fi
done
