package operator

import (
	"encoding/base64"
	"strconv"
	"strings"
)

// paging is where a page begins, and how long it is.
type paging struct {
	size  int
	after string // the key of the last element of the page before, "" for the first page
}

// paging reads the fields of a request for one page of a list.
func (v *violations) paging(req interface {
	GetPageSize() int32
	GetPageToken() string
},
) paging {
	text, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	after, ok := strings.CutPrefix(string(text), pageMark)
	if err != nil || !ok && req.GetPageToken() != "" {
		v.add("page_token", "is not a next_page_token of this server")
	}
	return paging{size: v.size("page_size", req.GetPageSize()), after: after}
}

// pageMark begins every page token, so that other texts are not read as one.
const pageMark = "after "

// next returns the token of the page after the element with a key, "" when there is none.
func (p paging) next(key string) string {
	if key == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(pageMark + key))
}

// nextNumber is next for a list whose keys are numbers; 0 is no next page.
func (p paging) nextNumber(key uint64) string {
	if key == 0 {
		return ""
	}
	return p.next(strconv.FormatUint(key, 10))
}

// number returns after as a number, for a list whose keys are numbers.
func (p paging) number(v *violations) uint64 {
	if p.after == "" {
		return 0
	}
	n, err := strconv.ParseUint(p.after, 10, 64)
	if err != nil {
		v.add("page_token", "is not a next_page_token of this server")
	}
	return n
}

// pageOf cuts a sorted list to one page, and returns the token of the next one.
func pageOf[T any](all []T, key func(T) string, p paging) (page []T, next string) {
	for _, e := range all {
		if key(e) <= p.after && p.after != "" {
			continue
		}
		if len(page) == p.size {
			return page, p.next(key(page[p.size-1]))
		}
		page = append(page, e)
	}
	return page, ""
}

// cut cuts a list of at most size+1 elements to a page, and returns the token of the next one.
func cut[T any](found []T, key func(T) string, p paging) (page []T, next string) {
	if len(found) <= p.size {
		return found, ""
	}
	return found[:p.size], p.next(key(found[p.size-1]))
}

// maxReads is how often one page of a list is read further when the caller does not see
// what was read.
const maxReads = 30

// seenPage reads a page of the elements that a caller sees, from a list that knows no
// callers. It reads on until the page is full, the list ends, or it has read often enough:
// then the page is shorter, and has a next one.
func seenPage[T any](
	limit int, from uint64, read func(from uint64, limit int) ([]T, uint64, error), sees func(T) bool,
) (page []T, next uint64, err error) {
	next = from
	for range maxReads {
		var list []T
		if list, next, err = read(next, limit-len(page)); err != nil {
			return nil, next, err
		}
		for _, x := range list {
			if sees(x) {
				page = append(page, x)
			}
		}
		if next == 0 || len(page) == limit {
			break
		}
	}
	return page, next, nil
}
