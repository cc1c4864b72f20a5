// Package suggest finds the word that a misspelt word probably means.
package suggest

import "slices"

// Nearest returns the candidate that word probably means, or "". It allows two
// wrong, missing, extra or swapped letters, and one in a short word.
func Nearest(word string, candidates []string) string {
	best, least := "", 1+min(2, max(1, len(word)/4))
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := distance(word, c, least); d < least {
			best, least = c, d
		}
	}
	return best
}

// distance returns how many letters have to be changed, added, removed or swapped
// with their neighbour to turn a into b (optimal string alignment). It returns
// limit for every distance of limit or more.
func distance(a, b string, limit int) int {
	if n := len(a) - len(b); n >= limit || -n >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit)
}
