package cli

import (
	"runtime/debug"
)

// Built returns what the linker recorded: the version of the module, and
// the revision, when the program was built in a repository.
func Built() (version, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown", ""
	}
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+changes"
		}
	}
	if revision != "" {
		revision += changed
	}
	return info.Main.Version, revision
}
