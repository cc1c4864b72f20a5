// Code generated from the comments of lifecycle.Config by "make docs"; DO NOT EDIT.

package config

// keyText describes the key of a field of lifecycle.Config, as docs/reference/config.md does.
func keyText(field string) string {
	switch field {
	case "Name":
		return "Name of the service, in the log and the report. Defaults to the name of the program."
	case "HealthAddr":
		return "health_addr is the address of the health server, a server of its own for the health planes. Defaults to \":8081\"; with \"off\" there is none, and fd://NAME is a socket of systemd, as in App.Serve."
	case "DrainInterval":
		return "drain_interval is the length of the drain window. In the window readiness is down and the process still serves every request, so that the cluster can take it out of every load balancer. Set it to the period of the readiness probe times its failure threshold, plus the time in which endpoints spread. Drainers run in the window. Defaults to 5 s; with off there is no window. Zero in Go is the default; in a file, the environment or a flag 0 is off."
	case "DrainQuiet":
		return "drain_quiet ends the window early, once drain_min has passed, no request is in flight, none has arrived for this long, and every drainer has returned. The App cannot see RPCs: a gRPC server counts as quiet only when it has no open connection, and clients that keep theirs open make the window last to its end. Defaults to 0: the window never ends early."
	case "DrainMax":
		return "drain_max is the longest time for which App.EndWindow may keep the window open, while the cluster is slow to notice the stop. The budget of a stop counts it in place of drain_interval. Defaults to 0: drain_interval."
	case "DrainMin":
		return "drain_min is the shortest time after which drain_quiet or App.EndWindow may end the window. Defaults to 1 s, or to drain_interval when that is shorter."
	case "DrainReadiness":
		return "drain_readiness is what /readyz answers in the window. Defaults to \"down\"."
	case "DrainWait":
		return "drain_wait says whether the window may be skipped. Defaults to \"auto\"."
	case "GoAwayAfter":
		return "go_away_after is the time from the beginning of the stop (T0) until the App begins to tell websockets, event streams and polls to reconnect elsewhere. If it told them earlier, the load balancer could still send their clients back to this process. It is limited to half of the window. HTTP/2 connections are told when the window is over. Defaults to 1 s."
	case "AcceptQuiet":
		return "accept_quiet is the time without a new connection after which the listeners close, once the window is over. When a connection came late in the window, it is half of the time since T0, if that is longer: the load balancer is slow to notice the stop. With off the listeners close when the window is over. Defaults to 1 s, or to accept_max when that is shorter."
	case "AcceptMax":
		return "accept_max is the longest time after the window for which the listeners stay open because connections still come; they also close when the time of requests in flight ends. A client that connects later is refused or reset. Defaults to one and a half times linger, as far as shutdown_grace has room for it."
	case "Linger":
		return "linger is the time after the window in which the App still serves open connections, so that a client that was idle during the whole window does not lose its next request. It ends early when no connection is open, and not before half of it has passed since the listeners closed. Defaults to 5 s, or a quarter of shutdown_grace when that is shorter."
	case "ShutdownGrace":
		return "shutdown_grace is the time for everything after the window together: requests in flight, units and hooks. Keep it below the pod's terminationGracePeriodSeconds. Defaults to 20 s."
	case "UnitSlice":
		return "unit_slice is the part of shutdown_grace that is reserved for units to return. An App whose units are all servers reserves a moment only. Defaults to 5 s, or a quarter of shutdown_grace when that is shorter."
	case "HookSlice":
		return "hook_slice is the part of shutdown_grace that is reserved for shutdown hooks. An App without hooks reserves none. Defaults to 5 s, or a quarter of shutdown_grace when that is shorter."
	case "MinSlice":
		return "min_slice is the time that each hook is sure to get, however long the earlier hooks took. Defaults to 1 s, or an equal share of hook_slice when that is shorter. With off a hook may take all the time that is left; the App then skips the hooks after it and reports them."
	case "ReportSlice":
		return "report_slice is reserved at the end of shutdown_grace for the functions of App.OnReport and for one last scrape: with WithMetrics the health server stays until one GET of /metrics is answered. Set it to the scrape interval plus 2 s. Defaults to 0: no scrape is awaited, and up to 1 s is reserved for OnReport."
	case "ProbeTimeout":
		return "probe_timeout is the longest that a health plane takes to answer. Defaults to 900 ms: the kubelet gives up after 1 s unless told otherwise."
	case "SignalDebounce":
		return "signal_debounce is the time within which signals count as one request, because process managers and wrappers send some signals twice. It runs from the last signal that counted; ignored signals do not prolong it. Defaults to 250 ms."
	case "StartTimeout":
		return "start_timeout is the longest time from Run to the phase running. An App that is still starting then stops with an error that names the units that have not started; the log names them from 15 s on. Defaults to 1 h, long enough for a migration or a restore: a startup probe, or TimeoutStartSec in systemd, knows better how long this start may take. With off there is no limit."
	case "ReloadTimeout":
		return "reload_timeout is the time that each function of a reload (App.OnReload) has. Then its context ends, and the App abandons a function that ignores that. Defaults to 90 s, which systemd gives a reload. With off there is no limit."
	case "UpgradeSignal":
		return "upgrade_signal is the signal on which the process replaces itself by a new one (App.Upgrade): SIGUSR1 or SIGUSR2. Defaults to none."
	case "UpgradeTimeout":
		return "upgrade_timeout is the longest time from the start of the new process until it serves. A new process that is not ready by then is killed, and the old one serves on. Defaults to 1 m."
	case "LeaderRetry":
		return "leader_retry is the time between two requests for the lease of a leader-elected unit (App.Lead) while this process does not lead. A jitter adds up to a fifth. Defaults to 2 s."
	case "ExitOnSignal":
		return "exit_on_signal makes Run return the signal that stopped it as an error, so that ExitCode gives 128+n. It is for work that runs to completion: Kubernetes counts a Job whose pod exits 0 on SIGTERM as complete. A program with App.Job does not need it."
	case "TerminationGrace":
		return "termination_grace is the terminationGracePeriodSeconds in the pod's manifest. When it is declared, New checks that the times above fit into it. It has to be declared here, because the downward API does not offer it. It belongs to the pod and never changes in a running process. Defaults to 0: not declared."
	case "LivenessGrace":
		return "liveness_grace and startup_grace are the terminationGracePeriodSeconds of the liveness probe and the startup probe. When such a probe fails, its grace replaces the pod's. Default to 0: not declared."
	case "StartupGrace":
		return "liveness_grace and startup_grace are the terminationGracePeriodSeconds of the liveness probe and the startup probe. When such a probe fails, its grace replaces the pod's. Default to 0: not declared."
	case "PreStop":
		return "pre_stop is the time that the pod's preStop hook takes. Kubernetes counts it as part of the grace. Defaults to 0: there is no hook."
	case "TerminationLog":
		return "termination_log is the file from which Kubernetes reads a container's termination message. The App writes it when it exists and never creates it. Defaults to \"/dev/termination-log\"; with \"off\" the App writes none."
	case "LastStopFile":
		return "last_stop_file keeps the report of this life for the next start (Report.Previous). The App replaces it at each phase, so that it tells of a kill too. Its folder must exist, outlive the process and belong to it alone: an emptyDir. Defaults to none."
	case "BlackBoxDir":
		return "black_box_dir is a folder for black boxes: when a unit, hook, drainer, reload or request is abandoned, or the watchdog ends the process, the App writes the last 10 s of its execution trace (go tool trace), the stacks of its goroutines and its heap there. It keeps the newest 8. The folder is made when it does not exist; it should outlive the process: an emptyDir. Defaults to none: nothing is recorded."
	case "StatuszOff":
		return "statusz_off removes /statusz from the health address. The page shows the names of units, servers and probes and the texts of their errors to every client that reaches that address. Defaults to false: the health server serves it."
	case "AdminToken":
		return "admin_token turns on the operators' endpoints on the health address: the preStop hook, Suspend and Resume of readiness, and Upgrade; see App.Handler. A client that sends it as a bearer token may stop the process. It has 16 to 1024 visible ASCII characters. Defaults to none: the endpoints do not exist."
	case "AdminTokenFile":
		return "admin_token_file is a file that contains the admin token, in place of admin_token. White space around the token does not count. The file has to exist when New runs. The App reads it again for every request, because a mounted Secret changes. Defaults to none."
	case "MemoryLimitRatio":
		return "memory_limit_ratio sets the soft memory limit of the Go runtime to this part of the control group's memory limit. It is more than 0 and at most 1; 0.9 leaves room for memory that the runtime does not count. GOMEMLIMIT takes precedence, and so does a limit that the program has already set. When a pod is resized in place, the limit follows within 10 s. It stays when Run returns. Defaults to 0: the App sets no limit."
	}
	return ""
}
