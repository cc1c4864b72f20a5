package workflow

import "testing"

// hot is an entity that many update.
type hot struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
	Tags  []string
}

func (h *hot) EntityID() string       { return h.ID }
func (h *hot) Workflow() string       { return "notes" }
func (h *hot) Phase() string          { return h.State }
func (h *hot) IsTerminal() bool       { return false }
func (h *hot) KVBucket() string       { return "NOTES" }
func (h *hot) KVKey(id string) string { return id }
func (h *hot) ParentEntityID() string { return "" }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
