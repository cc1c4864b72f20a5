package vet

import "slices"

// Rule is one kind of contradiction that vet looks for.
type Rule struct {
	// ID is the stable name of the rule in findings, in SARIF and for --ignore.
	ID       string
	Severity Severity
	// Title says in a few words what is wrong. Why says in a sentence or two what
	// happens because of it.
	Title, Why string
}

// Rules returns every rule, in the order of the documentation.
func Rules() []Rule { return slices.Clone(rules) }

var rules = []Rule{
	// The configuration.
	{"config-refused", Error, "The configuration contradicts itself", "New and config.Load refuse it: the service ends as it starts, and a rollout stops at its first pod."},

	{"config-undecided", Info, "A setting that vet cannot know", "Its value stands in an object or a file that vet was not given, or is known only when the pod runs. vet says so, and does not guess."},
	{"not-compared", Info, "Nothing says that lifecycle runs this workload", "vet compares a workload with a configuration when the manifest shows that lifecycle runs it, or when the caller says so. Of another program it checks only what holds for every program."},

	// The time that a stop may take.
	{"grace-too-short", Error, "The pod's grace ends before the stop does", "preStop, drain_interval, shutdown_grace and a margin of 2 s have to fit into terminationGracePeriodSeconds; when it is over, the kubelet sends SIGKILL, even with requests in flight."},
	{"probe-grace-too-short", Error, "A probe's own grace ends before the stop does", "A terminationGracePeriodSeconds of a liveness or startup probe replaces the pod's when that probe fails. On a readiness probe the API server refuses it."},
	{"grace-declared", Warning, "The configuration declares another grace than the manifest gives", "New checks the sum against termination_grace, liveness_grace and startup_grace, because the downward API does not offer them. With wrong values that check proves nothing."},
	{"grace-undeclared", Info, "The configuration declares no grace", "With termination_grace set, New refuses a stop that does not fit. The fault shows when the service starts, and not in a rollout."},
	{"prestop-undeclared", Warning, "The configuration does not declare the time of a preStop hook", "The preStop hook uses part of the grace, and SIGTERM comes only after it."},
	{"prestop-sleep", Info, "A preStop hook waits, and the drain window waits again", "The drain window already waits, with readiness down. The hook adds a second wait to every stop."},
	{"prestop-shell", Warning, "A preStop hook needs a program in the image", "An image made from scratch or distroless has no shell and no sleep: the hook fails, and SIGTERM comes at once."},

	// Probes.
	{"probe-port", Error, "A probe asks a port that does not serve the health planes", "The service serves the planes on health_addr only. On another port another handler answers, and it still answers while the process drains."},
	{"probe-path", Error, "A probe asks a path that is not a health plane", "The planes are /livez, /readyz and /startupz. For every other path that port answers 404, and the probe fails forever."},
	{"probe-scheme", Error, "A probe asks by TLS", "The service serves the health planes without TLS: the handshake fails, and so does the probe."},
	{"health-unreachable", Error, "The kubelet cannot reach the health address", "The kubelet asks from the node, not from within the pod. With a loopback address, or with none, every probe fails."},
	{"liveness-depends", Error, "Liveness does not ask whether the process lives", "A readiness plane as liveness restarts every pod at once when a shared dependency is down. That does not repair the dependency, and it kills processes during their drain."},
	{"readiness-not-readyz", Error, "Readiness does not ask whether the process is ready", "The probe still passes while the process drains. When nothing deletes the pod (after a node shutdown or a failed unit), its endpoint stays until the process refuses connections."},
	{"startup-not-startupz", Warning, "The startup probe does not ask whether the start is over", "With /livez in its place, liveness begins before the start is done. With /readyz, a dependency that is down kills the pod."},
	{"liveness-alias", Info, "Liveness asks /healthz", "Here /healthz is an alias of /livez. In many other services it is readiness, so /livez is the clearer name."},
	{"probe-timeout", Error, "A probe gives up before the plane has to answer", "A plane takes up to probe_timeout to say what is wrong. A kubelet that gives up earlier counts a failure and does not learn the reason."},
	{"drain-unnoticed", Warning, "The drain window is over before the kubelet sees that readiness is down", "A pod that is deleted leaves its Services at once, and its probe does not matter: an ordinary rollout loses nothing. When nothing deletes the pod (a failed unit, a stop from within), readiness is the only signal. The kubelet sees it after periodSeconds × failureThreshold, and endpoints take about a second more to spread."},
	{"liveness-kills-drain", Warning, "A liveness probe that is not /livez can fail before the drain is over", "/livez passes until the end of a stop. Another check fails when the listeners close, and the kubelet then kills the process during its drain."},
	{"no-readiness", Warning, "There is no readiness probe", "The pod gets requests before it can answer them, and still gets them when it no longer can."},
	{"no-liveness", Info, "There is no liveness probe", "A wedged process stays wedged until an operator notices."},
	{"no-startup", Warning, "There is a liveness probe and no startup probe", "When a start takes longer than initialDelaySeconds + periodSeconds × failureThreshold of the liveness probe, the kubelet kills the process, and the start begins again."},

	// Signals and other containers.
	{"stop-signal", Error, "The container's stop signal does not begin a drain", "SIGTERM and SIGINT begin a drain. Any other stop signal ends the process at once, or does nothing until SIGKILL."},
	{"shell-entrypoint", Warning, "A shell is the container's first process", "A shell does not pass SIGTERM on: nothing drains, and SIGKILL ends it when the grace is over."},
	{"sidecar-stops-first", Warning, "A second container gets SIGTERM at the same time", "A proxy that ends at once takes the network away while the service drains. Make it a native sidecar, an init container with restartPolicy Always: the kubelet stops it after the service (Kubernetes 1.29, KEP-753)."},
	{"sidecar-grace", Error, "No time is left for a sidecar to stop", "The kubelet stops native sidecars after the service, within the same terminationGracePeriodSeconds. A hook that takes all of it leaves the sidecar 2 s before SIGKILL."},
	{"termination-log", Warning, "The service writes its termination message to a file that Kubernetes does not read", "kubectl describe shows the reason of a stop only when termination_log and terminationMessagePath are the same."},

	// Replicas, rollouts and disruptions.
	{"no-pdb", Warning, "Several replicas and no PodDisruptionBudget", "When two nodes are drained at once, all replicas may be evicted."},
	{"pdb-blocks", Error, "A PodDisruptionBudget allows no eviction", "kubectl drain waits forever, and the operator who upgrades the node finally deletes the pod or the node."},
	{"pdb-selects-nothing", Warning, "A PodDisruptionBudget selects no pods", "It protects no pod, and no error says so."},
	{"pods-undecided", Info, "Pods that an operator makes, or another file has", "No template in these files has the labels. The operator of a custom resource makes its pods, with labels that vet cannot know."},
	{"selector-mismatch", Error, "A workload does not select its own pods", "The API server refuses a selector that does not match the labels of the template."},
	{"pdb-invalid", Error, "A PodDisruptionBudget has both minAvailable and maxUnavailable", "The API server refuses it."},
	{"rollout-loses-capacity", Warning, "A rollout removes pods before others are ready", "With maxUnavailable above 0, fewer pods serve the same load during a rollout. Near the peak that is an outage."},
	{"recreate", Warning, "A rollout stops every pod before it starts one", "Between the last old pod and the first new one, no pod serves requests. A drain cannot help."},
	{"single-replica", Info, "One replica, and readiness goes down", "While the only pod drains, no other pod takes its requests. With drain_readiness: serving it serves until its listeners close (KEP-1669)."},
	{"traffic-local", Warning, "A traffic policy Local, and readiness goes down", "When a node has no other endpoint, kube-proxy falls back to one that terminates and is still ready. A pod whose readiness is down is not one of those (KEP-1669)."},
	{"not-ready-published", Warning, "A Service sends requests to pods that stop", "With publishNotReadyAddresses an endpoint stays ready until its pod is gone, also after the listeners have closed. A headless Service for the peers of a pod may want that; clients of a Service get refused connections at every stop."},
	{"job-exit", Warning, "A Job that is stopped counts as complete", "Kubernetes counts a pod that exits 0 on SIGTERM as succeeded. With exit_on_signal the status is 128+n, and the Job tries again."},

	// Ports and rights.
	{"service-port", Error, "A Service names a port that the pod does not have", "Kubernetes looks up a targetPort by name in the containers' ports. When none has the name, the Service has no endpoints."},
	{"host-network", Warning, "The pod uses the node's network", "Two pods cannot have the same port of a node, so a new pod cannot start there before the old one has ended. The health planes are on the node's address."},
	{"not-restricted", Info, "The pod does not meet the restricted Pod Security Standard", "A namespace that enforces it refuses the pod."},

	// The files.
	{"unknown-field", Warning, "A field that the API does not have", "An older API server drops a misspelt field without an error, and the field's default applies."},
	{"duplicate-field", Warning, "A field that is given twice", "Parsers disagree about which of the two counts."},
	{"wrong-type", Error, "A value that the API server refuses", "The object cannot be applied."},
	{"retired-version", Warning, "An API version that is no longer served", "The object cannot be applied."},
	{"nothing-to-vet", Error, "No object with pods", "vet compared nothing, so it cannot say that nothing is wrong."},
	{"not-rendered", Error, "A template that was not rendered", "vet needs the rendered manifest: the template's values are missing."},
	{"not-an-object", Error, "Not a Kubernetes object", "vet cannot compare it with the configuration."},
	{"not-yaml", Error, "Not YAML", "vet cannot read it."},
	{"not-text", Error, "Not text", "vet cannot read it."},
	{"too-large", Error, "Too large, or too deeply nested", "vet does not read it, because it would use too much memory."},
	{"empty", Error, "Nothing in the file", "Usually the command before the pipe has failed."},
}

var ruleIndex = func() map[string]int {
	m := make(map[string]int, len(rules))
	for i, r := range rules {
		m[r.ID] = i
	}
	return m
}()
