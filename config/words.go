// Code generated from the comments of lifecycle.Config by "make docs"; DO NOT EDIT.

package config

// lifecycleWords describes a field of lifecycle.Config, as docs/config.md
// does.
func lifecycleWords(field string) string {
	switch field {
	case "Name":
		return "Name of the service, in the log and the report. Defaults to the name of the program."
	case "HealthAddr":
		return "health_addr is where the health planes are served, apart from everything else. Defaults to \":8081\"; \"off\" serves none."
	case "DrainInterval":
		return "drain_interval is the window in which readiness is down and everything is still served, so that the cluster can take this process out of every load balancer before it goes: the period of the readiness probe times its failure threshold, and what endpoints take to spread. Drainers run inside it. Defaults to 5 s; off leaves no window."
	case "DrainQuiet":
		return "drain_quiet ends the window early: once no request is in flight, none has arrived for this long and every drainer has returned, but not before drain_min. RPCs of a gRPC server cannot be seen: it is quiet only when it has no open connection, which clients that keep theirs leave to the end of the window. Defaults to not at all."
	case "DrainMin":
		return "drain_min is the shortest window that drain_quiet can make. Defaults to 1 s, or to drain_interval when that is shorter."
	case "DrainReadiness":
		return "drain_readiness is what /readyz answers in the window. Defaults to \"down\"."
	case "DrainWait":
		return "drain_wait says whether the window may be skipped. Defaults to \"auto\"."
	case "GoAwayAfter":
		return "go_away_after is when, after T0, HTTP/2 connections, websockets and streams are told to go elsewhere. Earlier their clients would come back here, because endpoints still do. At most half of the window. Defaults to 1 s."
	case "AcceptQuiet":
		return "accept_quiet is how long nothing may have connected before the listeners close, after the window. They close when half of linger is over at the latest: a client that still connects then may be refused or reset. Defaults to 1 s, or to half of linger when that is shorter."
	case "Linger":
		return "linger is how long after the window connections that are open go on being served, so that a client that was idle all through the window does not lose the request that it sends next. Ends early when none is left. Half of it is all that accept_quiet may take, so that traffic that still connects when that is over, because endpoints spread later than drain_interval allows for, may be refused or reset. Defaults to 5 s, or a quarter of shutdown_grace when that is shorter."
	case "ShutdownGrace":
		return "shutdown_grace is what everything after the window may take together: requests in flight, units, hooks. Keep it below the pod's terminationGracePeriodSeconds. Defaults to 20 s."
	case "UnitSlice":
		return "unit_slice is the part of shutdown_grace that is kept for units to return in. Defaults to 5 s, or a quarter of shutdown_grace when that is shorter."
	case "HookSlice":
		return "hook_slice is the part of shutdown_grace that is kept for shutdown hooks. Defaults to 5 s, or a quarter of shutdown_grace when that is shorter."
	case "MinSlice":
		return "min_slice is what each hook is sure to get, however long the hooks before it took. Defaults to 1 s, or an equal share of hook_slice when that is shorter. With off a hook may take all that is left, and the hooks behind it are skipped and reported."
	case "ProbeTimeout":
		return "probe_timeout is the longest that a health plane takes to answer. Defaults to 900 ms: the kubelet gives up after 1 s unless told otherwise."
	case "SignalDebounce":
		return "signal_debounce is the time within which two signals are one request: process managers and wrappers send some twice. Defaults to 250 ms."
	case "LeaderRetry":
		return "leader_retry is how often a process that does not lead asks for the lease of each of its leader-elected units (App.Lead), with a jitter of up to a fifth more. Defaults to 2 s."
	case "ExitOnSignal":
		return "exit_on_signal makes Run return the signal that stopped it, so that ExitCode gives 128+n. It is for work that runs to completion: a Job whose pod exits 0 on SIGTERM counts as complete."
	case "TerminationGrace":
		return "termination_grace is the pod's terminationGracePeriodSeconds, as the manifest has it. Declared, it is checked against the times above; the downward API does not carry it. Defaults to not declared."
	case "LivenessGrace":
		return "liveness_grace and startup_grace are the terminationGracePeriodSeconds of the liveness and the startup probe, which replace the pod's when that probe fails. Default to not declared."
	case "StartupGrace":
		return "liveness_grace and startup_grace are the terminationGracePeriodSeconds of the liveness and the startup probe, which replace the pod's when that probe fails. Default to not declared."
	case "PreStop":
		return "pre_stop is the time that the pod's preStop hook takes, which the grace pays for as well. Defaults to none."
	case "TerminationLog":
		return "termination_log is the file that Kubernetes reads a container's last words from. It is written when it exists and never created. Defaults to \"/dev/termination-log\"; \"off\" writes none."
	case "StatuszOff":
		return "statusz_off leaves /statusz out of what the health address serves. The page shows the units, servers and probes by name and the texts of their errors to every client that reaches that address. Defaults to false: it is served."
	case "AdminToken":
		return "admin_token switches on what operators may ask for on the health address: the preStop hook and Suspend and Resume of readiness, see App.Handler. A client that sends it as a bearer token may stop the process. 16 to 1024 visible ASCII characters. Defaults to none: the endpoints do not exist."
	case "AdminTokenFile":
		return "admin_token_file is a file with the admin token, in place of admin_token; space around it does not count. It has to be there when the App is made, and is read again for every request, because a mounted Secret changes. Defaults to none."
	case "MemoryLimitRatio":
		return "memory_limit_ratio is the part of the control group's memory limit that the garbage collector may count on, as with GOMEMLIMIT, which wins when it is set. More than 0 and at most 1; 0.9 leaves room for what the runtime does not count. A limit that is in force already stays, and the one set here stays when Run returns. Defaults to 0: none is set."
	}
	return ""
}
