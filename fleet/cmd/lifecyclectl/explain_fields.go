package main

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// columns are the fields that a column of a table shows, as paths that explain knows.
// Columns that no one field has are among the meanings.
var columns = map[string][]string{
	"ACTION": {"audit_entry.action"}, "ADDRESS": {"server.addr"}, "AGE": {"process.started_at", "worker.created_at"},
	"AT":       {"event.at", "audit_entry.at", "history_entry.at", "code_version.at", "dead_letter.at", "state_entry.at"},
	"ATTEMPTS": {"dead_letter.attempts"}, "BACKLOG": {"worker.backlog"}, "BUCKET": {"definition.bucket"}, "BY": {"code_version.who", "history_entry.source"},
	"BYTES": {"code_version.bytes", "dead_letter.data", "state_entry.size"}, "CANARY": {"worker.canary"}, "CAUSE": {"finding.cause"}, "CHANGE": {"finding.change"},
	"CONNECTIONS": {"server.connections"}, "COUNT": {"finding.count"}, "DATA": {"worker_timer.data"}, "DEAD": {"worker.dead_letters", "code_version.dead_lettered"},
	"DEGRADED": {"entity.degraded", "definition.degraded"}, "DESIRED": {"worker.desired"}, "DETAIL": {"audit_entry.detail"}, "DIGEST": {"code_version.digest"},
	"DUE": {"worker_timer.due"}, "ENTITIES": {"definition.total", "phase.count"}, "ERROR": {"worker.error", "probe.error"}, "ETAG": {"entity.etag"},
	"FAILED": {"code_version.failed", "worker_timer.failed"}, "FROM": {"history_entry.from"}, "GROUP": {"worker.group", "dead_letter_group.name"}, "HEALTH": {"unit.health"},
	"HOST": {"process.host", "worker.host"}, "ID": {"process.id", "worker.id", "entity.id", "dead_letter.id"}, "IN FLIGHT": {"server.in_flight"},
	"IN PLACE OF": {"setting.lost"}, "KEY": {"setting.key", "state_entry.key", "worker_timer.key"}, "KIND": {"unit.kind"}, "MEMORY": {"process.memory_bytes", "process.memory_limit_bytes"},
	"NAME": {"worker_timer.name"}, "NEXT": {"finding.next", "entity.next", "phase.next"}, "NOTE": {"history_entry.note"}, "OUTCOME": {"audit_entry.outcome"},
	"PARENT": {"entity.parent_id"}, "PHASE": {"process.phase", "entity.phase", "phase.name"}, "PHASES": {"definition.phases"}, "PID": {"process.pid"},
	"PLANE": {"probe.plane"}, "PROBE": {"probe.name"}, "PROCESS": {"event.process", "process.id"}, "READY": {"process.ready"}, "RELOAD": {"step.name"},
	"RESTARTS": {"unit.restarts"}, "RULE": {"finding.rule"}, "SERVER": {"server.name"}, "SERVICE": {"process.service"}, "SINCE": {"finding.since"},
	"SOURCE": {"setting.source", "code_version.source"}, "STARTED": {"process.started_at"}, "STATE": {"worker.state", "probe.state"}, "STATUS": {"unit.status"},
	"SUBJECT": {"finding.subject"}, "SUCCEEDED": {"code_version.succeeded"}, "TARGET": {"audit_entry.target"}, "TO": {"history_entry.to", "event.to"},
	"TOPIC": {"dead_letter.topic"}, "TOPICS": {"worker.topics"}, "TYPE": {"definition.type"}, "UNIT": {"unit.name"}, "UNITS": {"process.counts"},
	"UPDATED": {"entity.updated_at"}, "VALUE": {"setting.value", "state_entry.value"}, "VERSION": {"process.version"}, "WHO": {"audit_entry.who"},
	"WHY": {"event.cause", "step.error"}, "REASON": {"process.reason", "unit.reason", "dead_letter.reason"}, "RESULT": {"step.result"},
	"WRITABLE FIELD": {"definition.writable_fields"},
	"LETTERS":        {"dead_letter_group.count"}, "FIRST": {"dead_letter_group.first_at"}, "LAST": {"dead_letter_group.last_at"}, "OLDEST": {"dead_letter_group.first_id"},
}

// snake turns the name of a message into the first part of a path: DeadLetter is
// dead_letter.
func snake(name protoreflect.Name) string {
	var b strings.Builder
	for i, r := range string(name) {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}

// plain makes spellings of a path equal: deadletter, dead-letter and dead_letter.
func plain(path string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(path))
}

// things are the messages that -o json prints, by the first part of a path: all but
// requests, with those inside others.
var things = func() map[string]protoreflect.MessageDescriptor {
	all := map[string]protoreflect.MessageDescriptor{}
	var visit func(list protoreflect.MessageDescriptors)
	visit = func(list protoreflect.MessageDescriptors) {
		for i := range list.Len() {
			m := list.Get(i)
			if name := string(m.Name()); !m.IsMapEntry() && !strings.HasSuffix(name, "Request") {
				if _, outer := m.Parent().(protoreflect.MessageDescriptor); !outer || all[snake(m.Name())] == nil {
					all[snake(m.Name())] = m
				}
			}
			visit(m.Messages())
		}
	}
	seen := map[string]bool{}
	var file func(f protoreflect.FileDescriptor)
	file = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] || f.Package() != "lifecycle.operator.v1" {
			return
		}
		seen[f.Path()] = true
		visit(f.Messages())
		for i := range f.Imports().Len() {
			file(f.Imports().Get(i).FileDescriptor)
		}
	}
	for _, f := range operatorv1.Files() {
		file(f)
	}
	return all
}()

// explainFields explains the field at a path such as "process.ready" or
// "process.units.restarts", or when the path leads to a message, that and its fields.
func explainFields(path string) (list []meaning) {
	first, rest, _ := strings.Cut(path, ".")
	for _, name := range sortedThings() {
		if plain(name) != plain(first) {
			continue
		}
		m, at := things[name], name
		for rest != "" {
			var word string
			word, rest, _ = strings.Cut(rest, ".")
			f := fieldOf(m, word)
			if f == nil {
				return nil
			}
			at += "." + string(f.Name())
			m = f.Message()
			if rest == "" {
				list = append(list, meaning{"field", at, operatorv1.Comment(f)})
			}
			if m == nil || m.FullName().Parent() == "google.protobuf" {
				if rest != "" {
					return nil
				}
				return list
			}
		}
		if len(list) == 0 {
			list = append(list, meaning{"object", at, operatorv1.Comment(m)})
		}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			list = append(list, meaning{"field", at + "." + string(f.Name()), operatorv1.Comment(f)})
		}
		return list
	}
	return nil
}

func sortedThings() []string { return slices.Sorted(maps.Keys(things)) }

func fieldOf(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); plain(string(f.Name())) == plain(name) {
			return f
		}
	}
	return nil
}

// explainColumn explains the fields that a column shows.
func explainColumn(name string) (list []meaning) {
	for _, path := range columns[strings.ToUpper(name)] {
		for _, m := range explainFields(path)[:1] {
			list = append(list, meaning{"column", strings.ToUpper(name), m.means + " (" + m.name + ")"})
		}
	}
	return list
}
