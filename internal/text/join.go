package text

import (
	"fmt"
	"strings"
)

// Join returns the texts of the items, with commas between them.
func Join[T fmt.Stringer](items []T) string {
	all := make([]string, len(items))
	for i, item := range items {
		all[i] = item.String()
	}
	return strings.Join(all, ", ")
}
