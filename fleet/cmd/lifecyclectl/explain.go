package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// meaning is what a word means that lists and pages show.
type meaning struct{ kind, name, means string }

// meanings has every word but the rules, which explain themselves.
var meanings = []meaning{
	{"phase", "created", "The App exists, and Run was not called."},
	{"phase", "starting", "Listeners are bound and units start. It is not ready."},
	{"phase", "running", "Every unit has started. Readiness follows the probes."},
	{"phase", "draining", "A stop was requested: readiness is down, and everything is still served until the cluster has noticed."},
	{"phase", "stopping", "Units are cancelled, and the shutdown hooks run, last in, first out."},
	{"phase", "stopped", "It ended cleanly."},
	{"phase", "failed", "It ended with an error."},
	{"phase", "killed", "A further signal, or the watchdog, ended the process in the middle of a stop."},

	{"unit", "Created", "It exists, and was not started."},
	{"unit", "Pending", "Something holds it back: a backoff after a failure, a rate limit, a breaker. REASON says what."},
	{"unit", "Starting", "Its initialisation runs."},
	{"unit", "Running", "It does its work."},
	{"unit", "Suspended", "It pauses and keeps its resources."},
	{"unit", "Stopping", "It was asked to stop and winds down."},
	{"unit", "Stopped", "It ended because it was asked to."},
	{"unit", "Finished", "It ended by itself without an error: it had nothing more to do. UNITS does not expect it to run."},
	{"unit", "Failed", "It ended with an error and is not started again."},
	{"unit", "Killed", "It was asked to stop, did not, and was ended by force or abandoned."},

	{"probe", "up", "The check passes."},
	{"probe", "down", "The check fails. A critical one takes its plane down: /readyz, /livez or /startupz."},
	{"probe", "unknown", "The check has not run yet, or cannot know."},

	{"worker", "Deploying", "Its record exists; its consumer may not exist yet."},
	{"worker", "Running", "It handles messages."},
	{"worker", "Stopped", "It handles no messages and keeps its code and its place."},
	{"worker", "Failed", "It should run, and its host cannot load the code."},
	{"worker", "Deleting", "It finishes its message, and its host removes it."},
	{"worker", "Deleted", "Its consumer and its code are gone."},

	{"event", "joined", "A process has announced itself for the first time."},
	{"event", "phase", "A process has entered a phase."},
	{"event", "unit", "A unit has changed its status."},
	{"event", "restart", "A unit was started again, after the cause in WHY."},
	{"event", "killed", "A unit did not end when it was asked to, and was ended by force."},
	{"event", "probe", "A check has changed its state."},
	{"event", "drainer", "A drainer began or ended."},
	{"event", "hook", "A shutdown hook began or ended."},
	{"event", "reload", "A reload was applied or refused."},
	{"event", "suspended", "Readiness was taken down by hand."},
	{"event", "resumed", "Readiness follows the checks again."},
	{"event", "command", "An operator's command, and whether the process obeyed."},
	{"event", "exit", "A process has ended and said so. TO is the class of its end."},
	{"event", "lost", "A process disappeared without a word. TO is the class of its end."},
	{"event", "returned", "A process that counted as lost announces itself again: it was not dead."},
	{"event", "dropped", "Events are missing: the process had more than the journal takes."},
	{"event", "forged", "A record claims to be of another process than its subject allows."},

	{"end", diagnosis.EndClean, "It ended as it was asked to, or finished."},
	{"end", diagnosis.EndFailed, "A unit or a hook failed, or the exit status was not 0."},
	{"end", diagnosis.EndHung, "A part did not return in its time and was abandoned."},
	{"end", diagnosis.EndCut, "Requests were cut or hooks skipped: the time was too short."},
	{"end", diagnosis.EndLost, "Nothing is known of how it ended."},
	{"end", diagnosis.EndOOM, "Memory ran out, or probably did."},
	{"end", diagnosis.EndForced, "It was killed in the middle of a stop."},
	{"end", diagnosis.EndPanicked, "It ended with the exit status of a panic."},
	{"end", diagnosis.EndKilled, "A signal ended it, and not because memory ran out."},
	{"end", diagnosis.EndEvicted, "Its host ran out of a resource and gave it up."},

	{"column", "READY", "Whether /readyz answers 200 now, or that readiness is suspended by hand."},
	{"column", "UNITS", "How many units run, of how many that have not finished on purpose."},
	{"column", "REASON", "The worst finding about the process, or why it is as it is."},
	{"column", "DEAD", "Messages that the worker failed to handle: lifecyclectl dead-letters shows them."},
	{"column", "ETAG", "The version of an entity: --if-match refuses when it has changed."},
	{"column", "WHAT", "The kind of an event, its unit or probe, and the states before and after."},
	{"column", "CURRENT", "The context that commands use without --context."},
	{"column", "MEANS", "What the word means."},
	{"column", "WORD", "A word that lists and pages show."},
	{"column", "STREAM", "A stream of a backup."},
	{"column", "MESSAGES", "How many messages a stream of a backup has."},
	{"column", "LAST REVISION", "The revision of the last message of a stream."},
}

// explained returns all words, with the rules.
func explained() []meaning {
	list := slices.Clone(meanings)
	for _, r := range diagnosis.Rules {
		list = append(list, meaning{"rule", r.Name, r.Means})
	}
	return list
}

func explainCommand() *cobra.Command {
	var names []string
	for _, m := range explained() {
		names = append(names, m.name)
	}
	for _, thing := range sortedThings() {
		names = append(names, thing)
		for _, m := range explainFields(thing)[1:] {
			names = append(names, m.name)
		}
	}
	for name := range columns {
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return &cobra.Command{
		Use:   "explain [WORD]",
		Short: "Say what a state, an event, a rule, a column or a field means",
		Long: `Say what a state, an event, a rule, a column or a field means, as lists and pages show
it. A field is that of an object which -o json prints: process.ready, or over several
objects process.units.restarts. The name of an object explains all of its fields. Without
a word it explains all states, events and rules. It asks no server.`,
		Example: `  lifecyclectl explain Pending
  lifecyclectl explain out-of-memory
  lifecyclectl explain process.ready
  lifecyclectl explain dead-letter`,
		Args: words("[WORD]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			t := &table{colours: colourful(cmd.OutOrStdout())}
			t.head("KIND", "WORD", "MEANS")
			found := false
			for _, m := range explained() {
				if len(args) == 0 || strings.EqualFold(args[0], m.name) {
					found = true
					t.row(m.kind, m.name, m.means)
				}
			}
			if len(args) > 0 {
				for _, m := range append(explainColumn(args[0]), explainFields(args[0])...) {
					found = true
					t.row(m.kind, m.name, m.means)
				}
			}
			if !found {
				if meant := suggest.Nearest(args[0], names); meant != "" {
					return &failure{status: exitNotFound, err: fmt.Errorf("there is no word %q; did you mean %s?", args[0], meant)}
				}
				return &failure{status: exitNotFound, err: fmt.Errorf("there is no word %q: lifecyclectl explain lists all", args[0])}
			}
			return send(cmd.OutOrStdout(), t.text())
		},
		ValidArgsFunction: cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp),
	}
}
