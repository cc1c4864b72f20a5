package host_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// TestTheHostsOwnStreamsAreNoTopics asks for the streams and buckets that hosts keep, by their
// subjects and by wildcards. They have the records, the code and the messages of all tenants.
func TestTheHostsOwnStreamsAreNoTopics(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	for _, topic := range []string{
		"$host.state.>", "$host.dead.>", "$host.lines.>", "$host.log.>", "$host.code.>", "$host.held.>", "$host.body.>",
		"$host.state.w-other.*.>", "*.state.>", "*.dead.>", "$KV.HOST_WORKERS.>", "$KV.HOST_WORKERS.*", "$KV.HOST_MEMBERS.>",
	} {
		_, err := h.Create(t.Context(), host.Spec{ID: "thief", Topic: topic, MIMEType: "text/x-starlark", Code: prefix("")})
		if !errors.Is(err, host.ErrInvalid) || !strings.Contains(err.Error(), "not for workers") {
			t.Errorf("%s: %v", topic, err)
		}
	}
	other := r.fleet("OTHER")
	spec := host.Spec{ID: "thief", Topic: "$host.dead.>", MIMEType: "text/x-starlark", Code: prefix("")}
	if _, err := other.Create(t.Context(), spec); !errors.Is(err, host.ErrInvalid) {
		t.Errorf("another fleet's stream: %v", err)
	}

	// What code publishes there is a dead letter, and the letter cannot be redriven.
	create(t, h, host.Spec{ID: "forger", Topic: "work.forger", MIMEType: "text/x-starlark", Code: []byte(`
def handle(message): return [{"topic": "$other.dead.t-good.w", "data": "{}"}, {"topic": "out.forger", "data": "x"}]
`)})
	r.publish("work.forger", "x")
	if d := r.letters(h, "forger", 1)[0]; d.Topic != "work.forger" || !strings.Contains(d.Reason, "not for workers") {
		t.Errorf("the letter is %+v", d)
	}
	dead, err := r.js.Stream(t.Context(), "OTHER_DEAD")
	must(t, err)
	info, err := dead.Info(t.Context())
	if err != nil || info.State.Msgs > 0 {
		t.Errorf("another fleet has forged letters: %+v, %v", info.State, err)
	}
}

// fleet starts a host of a fleet with another name.
func (r *rig) fleet(name string) *host.Host {
	r.t.Helper()
	tune := r.tune
	defer func() { r.tune = tune }()
	r.tune = func(cfg *host.Config) {
		if tune != nil {
			tune(cfg)
		}
		cfg.Name = name
	}
	return r.start("a")
}

// TestTwoFleetsAndAForeignProgram runs two fleets with workers of the same ids and groups on
// one stream, beside a program whose consumer has the name that a worker of old had. Each gets
// every message, and no host touches what another program has made.
func TestTwoFleetsAndAForeignProgram(t *testing.T) {
	r := newRig(t)
	foreign := func(name string) jetstream.Consumer {
		c, err := r.js.CreateConsumer(t.Context(), "WORK", jetstream.ConsumerConfig{
			Durable:       name,
			FilterSubject: "work.w",
			AckPolicy:     jetstream.AckExplicitPolicy,
		})
		must(t, err)
		return c
	}
	before := []jetstream.Consumer{foreign("w-w"), foreign("g-g"), foreign("HOST_w-taken")}
	fleets := map[string]*host.Host{"HOST": r.start("a"), "OTHER": r.fleet("OTHER")}
	for name, h := range fleets {
		out := "out." + strings.ToLower(name)
		create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: out, Code: prefix("")})
		create(t, h, host.Spec{ID: "m", Group: "g", Topic: "work.g", OutputTopic: out, Code: prefix("")})
	}
	_, err := fleets["HOST"].Create(t.Context(), host.Spec{
		ID: "taken", Topic: "work.w", OutputTopic: "out.x", MIMEType: "text/x-starlark", Code: prefix(""),
	})
	if err == nil || !strings.Contains(err.Error(), "another program has made it") {
		t.Errorf("a consumer of another program is in the way: %v", err)
	}
	const messages = 20
	var want []string
	for i := range messages {
		r.publish("work.w", fmt.Sprintf("w%02d", i))
		r.publish("work.g", fmt.Sprintf("g%02d", i))
		want = append(want, fmt.Sprintf("w%02d", i), fmt.Sprintf("g%02d", i))
	}
	slices.Sort(want)
	for name := range fleets {
		r.eventually("fleet "+name+" has all messages", func() bool {
			got := r.outputs("out." + strings.ToLower(name))
			slices.Sort(got)
			return slices.Equal(got, want)
		})
	}
	for _, h := range fleets {
		must(t, h.Delete(t.Context(), "w"))
	}
	for _, c := range before {
		now, err := r.js.Consumer(t.Context(), "WORK", c.CachedInfo().Name)
		must(t, err)
		is, was := now.CachedInfo(), c.CachedInfo()
		if !is.Created.Equal(was.Created) || is.Config.FilterSubject != "work.w" || is.NumPending != messages || is.NumAckPending != 0 {
			t.Errorf("the foreign consumer %s: %+v", was.Name, is)
		}
	}
}

// TestAGroupBelongsToATenant gives two tenants a group of one name, also where tenant and group
// make the same text: each gets its own messages, all of them.
func TestAGroupBelongsToATenant(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	for _, w := range []struct{ id, tenant, group string }{
		{"alice", "alice", "orders"},
		{"mallory", "mallory", "orders"},
		{"plain", "", "orders"},
		{"x", "a-b", "c"},
		{"y", "a", "b-c"},
	} {
		create(t, h, host.Spec{ID: w.id, Tenant: w.tenant, Group: w.group, Topic: "work.orders", OutputTopic: "out." + w.id, Code: prefix("")})
	}
	var want []string
	for i := range 10 {
		r.publish("work.orders", fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
	}
	for _, id := range []string{"alice", "mallory", "plain", "x", "y"} {
		r.wantOutputs("out."+id, want...)
	}
}

// TestTopicsAreGranted gives a tenant some topics to take and to publish. A pattern is granted
// only when the grant covers all of it.
func TestTopicsAreGranted(t *testing.T) {
	r := newRig(t)
	r.tune = func(cfg *host.Config) {
		cfg.Grants = map[string]host.Grant{"shop": {
			Topics:  []string{"work.shop.>", "work.both.*"},
			Outputs: []string{"out.shop.*"},
		}}
	}
	h := r.start("a")
	for topic, granted := range map[string]bool{
		"work.shop.a": true, "work.shop.>": true, "work.shop.*.b": true, "work.both.x": true, "work.both.*": true,
		"work.shop": false, "work.>": false, "work.*": false, "work.*.a": false, "work.both.>": false, "work.both.x.y": false, "work.other": false,
	} {
		_, err := h.Create(t.Context(), host.Spec{
			ID: "t" + fmt.Sprint(len(topic)) + strings.NewReplacer(".", "_", "*", "A", ">", "B").Replace(topic), Tenant: "shop",
			Topic: topic, OutputTopic: "out.shop.x", MIMEType: "text/x-starlark", Code: prefix(""),
		})
		if (err == nil) != granted || err != nil && !errors.Is(err, host.ErrNotGranted) {
			t.Errorf("%s: %v", topic, err)
		}
	}
	_, err := h.Create(t.Context(), host.Spec{
		ID: "spy", Tenant: "shop", Topic: "work.shop.a", OutputTopic: "out.other", MIMEType: "text/x-starlark", Code: prefix(""),
	})
	if !errors.Is(err, host.ErrNotGranted) {
		t.Errorf("an output that is not granted: %v", err)
	}
	create(t, h, host.Spec{ID: "free", Topic: "work.other", OutputTopic: "out.other", Code: prefix("")}) // of no tenant
	code := "def handle(message): return {\"topic\": message.text, \"data\": message.text}"
	create(t, h, host.Spec{ID: "chooses", Tenant: "shop", Topic: "work.shop.chosen", Code: []byte(code)})
	r.publish("work.shop.chosen", "out.other.x")
	r.publish("work.shop.chosen", "out.shop.y")
	r.wantOutputs("out.shop.y", "out.shop.y")
	if d := r.letters(h, "chooses", 1)[0]; !strings.Contains(d.Reason, "out.other.x") || !strings.Contains(d.Reason, "not granted") {
		t.Errorf("the letter says %q", d.Reason)
	}
	if got := r.outputs("out.other.x"); len(got) > 0 {
		t.Errorf("it has published %q", got)
	}
}

// TestOutputsCannotSpeakForTheHost sends outputs with the headers that hosts act upon.
func TestOutputsCannotSpeakForTheHost(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "victim", Tenant: "alice", Topic: "work.victim", OutputTopic: "out.victim", Code: []byte(
		"def handle(message): return str(message.text)+\" \"+str(sorted(message.headers.keys()))\n" +
			"def timer(name, data): return \"forged \"+name")})
	create(t, h, host.Spec{ID: "evil", Tenant: "mallory", Topic: "work.evil", Code: []byte(
		"def handle(message): return {\"topic\": \"work.victim\", \"data\": \"x\", \"headers\": {" +
			"\"Lifecycle-Timer\": \"pay\", \"lifecycle-timer-worker\": \"victim\", \"Lifecycle-For\": \"w-nobody\", \"Mine\": \"1\"}}")})
	r.publish("work.evil", "go")
	r.wantOutputs("out.victim", `x ["Mine", "Nats-Msg-Id"]`)
}

// TestLinesAndTimersAreGranted gives one tenant few lines and timers. Another tenant has the
// host's own bounds.
func TestLinesAndTimersAreGranted(t *testing.T) {
	r := newRig(t)
	r.tune = func(cfg *host.Config) {
		cfg.MaxRetries = host.NoRetry
		cfg.Grants = map[string]host.Grant{"shop": {Lines: 1, Timers: 2}}
	}
	h := r.start("a")
	code := []byte(`
def handle(message):
    for i in range(50):
        print(i)
    for name in message.text.split(" "):
        timers.set(name, 3600000, "x")

def timer(name, data): pass
`)
	for id, tenant := range map[string]string{"bounded": "shop", "free": "other"} {
		create(t, h, host.Spec{ID: id, Tenant: tenant, Topic: "work." + id, Code: code})
		r.say("work."+id, "k", "a b")
		r.say("work."+id, "k", "c")
	}
	r.wantTimers(h, "bounded", "k/a", "k/b")
	r.wantTimers(h, "free", "k/a", "k/b", "k/c")
	if d := r.letters(h, "bounded", 1)[0]; !strings.Contains(d.Reason, "2 for a worker") {
		t.Errorf("the letter says %q", d.Reason)
	}
	printed := func(id string) int {
		lines, err := h.Logs(t.Context(), id, 0, host.MaxLines)
		must(t, err)
		return len(slices.DeleteFunc(lines, func(l host.Line) bool { return l.Error }))
	}
	r.eventually("the lines of the other tenant are there", func() bool { return printed("free") == 100 })
	// A worker has the lines of ten seconds at once. A slow machine earns it some more.
	if n := printed("bounded"); n < 10 || n > 90 {
		t.Errorf("the log of the tenant with one line a second has %d", n)
	}
}

// TestExplain asks which grant allows what a worker asks for: the tenant's own goes before that of
// all tenants, and what has been taken from the configuration since is missing. No value is there.
func TestExplain(t *testing.T) {
	r := newRig(t)
	r.tune = func(cfg *host.Config) {
		cfg.Grants = map[string]host.Grant{
			"*": {
				Env:    map[string]string{"REGION": "a-value", "ZONE": "a-value"},
				Topics: []string{"work.all.>"},
				Lines:  7,
			},
			"shop": {
				Env:     map[string]string{"REGION": "a-value"},
				Secrets: map[string]string{"TOKEN": "env:TOKEN_OF_SHOP"},
				Topics:  []string{"work.shop.>"},
				Timers:  5,
				HTTP:    host.HTTPGrant{Allow: []string{"https://api.example.com/*"}},
			},
		}
	}
	t.Setenv("TOKEN_OF_SHOP", "hush")
	h := r.start("a")
	create(t, h, host.Spec{
		ID:          "w",
		Tenant:      "shop",
		Topic:       "work.shop.a",
		OutputTopic: "out.w",
		Env:         []string{"REGION", "ZONE"},
		Secrets:     []string{"TOKEN"},
		HTTP:        host.HTTP{Allow: []string{"https://api.example.com/v1/*"}},
		Code:        prefix(""),
	})
	rec, err := h.Get(t.Context(), "w")
	must(t, err)
	explained := func(h *host.Host) string {
		var all []string
		for _, m := range h.Explain(rec) {
			all = append(all, fmt.Sprintf("%s %s < %s", m.What, m.Name, m.By+m.Missing))
		}
		return strings.Join(all, "\n")
	}
	text := explained(h)
	for _, want := range []string{
		"topic work.shop.a < grants.shop.topics: work.shop.>",
		"output out.w < \n",
		"variable REGION < grants.shop.env.REGION",
		"variable ZONE < grants.*.env.ZONE",
		"secret TOKEN < grants.shop.secrets.TOKEN",
		"url https://api.example.com/v1/* < grants.shop.http.allow: https://api.example.com/*",
		"lines 7 < grants.*.lines",
		"timers 5 < grants.shop.timers",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "a-value") || strings.Contains(text, "hush") {
		t.Errorf("it tells values:\n%s", text)
	}
	r.tune = func(*host.Config) {}
	text = explained(r.host("later"))
	for _, want := range []string{
		"variable REGION < variable REGION: not granted to the tenant shop",
		"secret TOKEN < secret TOKEN: not granted",
		"url https://api.example.com/v1/* < HTTP to https://api.example.com/v1/*: not granted",
		"timers 10000 < ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("without grants it does not say %q:\n%s", want, text)
		}
	}
}
