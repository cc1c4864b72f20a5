package operator

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"

	"google.golang.org/protobuf/proto"
)

// pageToken says in which list, and where, a page begins. A token that is used
// with other filters is an error.
type pageToken struct {
	After string `json:"a"`
	Of    string `json:"o"`
}

// listID identifies a list by its request without the paging fields.
func listID(request proto.Message) string {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

func (t pageToken) String() string {
	text, err := json.Marshal(t)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// page reads a page token; an empty token is the first page.
func (v *violations) page(token, list string) (after string) {
	if token == "" {
		return ""
	}
	var t pageToken
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	switch {
	case err != nil || len(token) > 4*maxName:
		v.add("page_token", "is not a next_page_token of this server")
	case t.Of != list:
		v.add("page_token", "belongs to a list with other filters: start again without it")
	}
	return t.After
}

// pageOf cuts a sorted list to one page: at most size elements after the one with the
// key after. It also returns the token of the next page.
func pageOf[T any](all []T, key func(T) string, after string, size int, list string) (page []T, next string) {
	for _, e := range all {
		if key(e) <= after && after != "" {
			continue
		}
		if len(page) == size {
			return page, pageToken{key(page[size-1]), list}.String()
		}
		page = append(page, e)
	}
	return page, ""
}

// maxReads is how often one page of a list is read further when the caller does not see
// what was read.
const maxReads = 30

// seenPage reads a page of the elements that a caller sees, from a list that knows no
// callers. It reads on until the page is full, the list ends, or it has read often enough:
// then the page is shorter, and has a next one.
func seenPage[T any, N comparable](limit int, from N, read func(from N, limit int) ([]T, N, error), sees func(T) bool) (page []T, next N, err error) {
	next = from
	var end N
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
		if next == end || len(page) == limit {
			break
		}
	}
	return page, next, nil
}
