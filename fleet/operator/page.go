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
