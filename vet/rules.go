package vet

import "slices"

// Rule is one thing that is looked for.
type Rule struct {
	// ID is stable: it is what findings, SARIF and --ignore call the rule.
	ID       string
	Severity Severity
	// Title says in a few words what is wrong where the rule speaks, Why in a
	// sentence or two what comes of it.
	Title, Why string
}

// Rules returns every rule, in the order of the documentation.
func Rules() []Rule { return slices.Clone(rules) }

var rules = []Rule{
	// The configuration.
	{"config-refused", Error, "The configuration contradicts itself", "New refuses it, and so does config.Load: the service ends as it starts, and a rollout stands still with its first pod."},

	// The time that a stop may take.
	{"grace-too-short", Error, "The pod's grace ends before the stop does", "preStop, drain_interval, shutdown_grace and a margin of 2 s have to fit into terminationGracePeriodSeconds; when it is over the kubelet sends SIGKILL, also while requests are in flight."},
	{"probe-grace-too-short", Error, "A probe's own grace ends before the stop does", "A terminationGracePeriodSeconds of a liveness or startup probe replaces the pod's when that probe fails. On a readiness probe the API server refuses it."},
	{"grace-declared", Warning, "The configuration declares another grace than the manifest gives", "New checks the sum against termination_grace, liveness_grace and startup_grace, because the downward API does not carry them. Declared wrong, that check says nothing."},
	{"grace-undeclared", Info, "The configuration declares no grace", "With termination_grace set, New refuses a drain that does not fit, at the start and not in a rollout."},
	{"prestop-undeclared", Warning, "A preStop hook takes time that the configuration does not know of", "The grace pays for the preStop hook first, and SIGTERM comes only after it."},
	{"prestop-sleep", Info, "A preStop hook waits, and the drain window waits again", "The drain window is that wait already, with readiness down; both together double every stop."},
	{"prestop-shell", Warning, "A preStop hook needs a program in the image", "An image made from scratch or distroless has no shell and no sleep: the hook fails, and SIGTERM comes at once."},

	// Probes.
	{"probe-port", Error, "A probe asks a port where the health planes are not", "The planes are served on health_addr alone. On another port something else answers, and goes on answering while the process drains."},
	{"probe-path", Error, "A probe asks a path that is no health plane", "The planes are /livez, /readyz and /startupz; everything else on that port is 404, which fails the probe for ever."},
	{"probe-scheme", Error, "A probe asks by TLS", "The health planes are served without TLS; the handshake fails, and with it the probe."},
	{"health-unreachable", Error, "The health address cannot be reached by the kubelet", "The kubelet asks from the node, not from within the pod: an address of the loopback, or none, fails every probe."},
	{"liveness-depends", Error, "Liveness asks for something else than life", "A readiness plane as liveness restarts every pod at once when a shared dependency is down, which repairs nothing, and kills the process in the middle of its drain."},
	{"readiness-not-readyz", Error, "Readiness does not ask whether the process is ready", "It goes on passing while the process drains: where nothing deletes the pod (a node shutdown, a fatal unit) its endpoint stays, until connections are refused."},
	{"startup-not-startupz", Warning, "The startup probe does not ask whether the start is over", "Liveness begins before the start is done, or a dependency that is down kills a pod that has started."},
	{"liveness-alias", Info, "Liveness asks /healthz", "It is /livez here, and the readiness of something else in many other services: a name that says what it is outlives its author."},
	{"probe-timeout", Error, "A probe gives up before the plane has to answer", "A plane takes up to probe_timeout to say what is wrong; a kubelet that gives up first counts a failure and learns nothing."},
	{"drain-unnoticed", Error, "The drain window is over before readiness was seen to be down", "Where nothing deletes the pod, readiness is the only signal: it is seen after periodSeconds × failureThreshold, and endpoints take about a second more to spread."},
	{"liveness-kills-drain", Warning, "A liveness probe that is not /livez can fail before the drain is over", "/livez passes from the beginning of a stop on. Another check fails when the listeners close, and the kubelet kills the rest."},
	{"no-readiness", Warning, "There is no readiness probe", "The pod gets requests before it can answer them, and goes on getting them when it cannot any more."},
	{"no-liveness", Info, "There is no liveness probe", "A process that is wedged stays so until an operator restarts it."},
	{"no-startup", Warning, "There is a liveness probe and no startup probe", "A start that takes longer than initialDelaySeconds + periodSeconds × failureThreshold of the liveness probe is killed, and starts again."},

	// Signals and other containers.
	{"stop-signal", Error, "The container is stopped by a signal that is not handled", "SIGTERM and SIGINT begin a drain. Any other stop signal ends the process at once, or does nothing until SIGKILL."},
	{"shell-entrypoint", Warning, "A shell is the container's first process", "A shell does not pass SIGTERM on: nothing drains, and SIGKILL ends it when the grace is over."},
	{"sidecar-stops-first", Warning, "A second container gets SIGTERM at the same time", "A proxy beside the service that does not wait takes the network away while the service drains. As a native sidecar, an init container with restartPolicy Always, it is stopped after it (Kubernetes 1.29, KEP-753)."},
	{"sidecar-grace", Error, "A sidecar's stop does not fit behind the service's", "Native sidecars are stopped after the service, out of the same terminationGracePeriodSeconds."},
	{"termination-log", Warning, "The last words are written to another file than Kubernetes reads", "termination_log and terminationMessagePath have to be the same for the reason of a stop to reach kubectl describe."},

	// Replicas, rollouts and disruptions.
	{"no-pdb", Warning, "Several replicas and no PodDisruptionBudget", "A drain of two nodes at once may take all of them."},
	{"pdb-blocks", Error, "A PodDisruptionBudget allows no eviction", "kubectl drain waits for ever, until the operator who upgrades the node deletes the pod or the node."},
	{"pdb-selects-nothing", Warning, "A PodDisruptionBudget selects no pods", "It protects no pod, and Kubernetes does not report that."},
	{"pdb-invalid", Error, "A PodDisruptionBudget has both minAvailable and maxUnavailable", "The API server refuses it."},
	{"rollout-loses-capacity", Warning, "A rollout takes pods away before others are ready", "With maxUnavailable above 0 a rollout serves the same load with fewer pods, which is an outage near the peak."},
	{"recreate", Warning, "A rollout stops every pod before it starts one", "Between the last stop and the first start no pod serves requests; no drain helps against that."},
	{"single-replica", Info, "One replica, and readiness goes down", "A pod that is the only one has no other to send requests to. With drain_readiness: serving it serves until its listeners close (KEP-1669)."},
	{"traffic-local", Warning, "externalTrafficPolicy Local, and readiness goes down", "kube-proxy falls back to endpoints of the node that terminate and are ready; going down takes the pod out of that (KEP-1669)."},
	{"job-exit", Warning, "A Job that is stopped counts as complete", "A pod that exits 0 on SIGTERM has succeeded. With exit_on_signal the status is 128+n, and the work is tried again."},

	// Ports and rights.
	{"service-port", Error, "A Service leads to a port that the pod does not have", "A targetPort by name is looked up in the containers' ports; without one the Service has no endpoints."},
	{"host-network", Warning, "The pod uses the node's network", "Two pods cannot have the same port of a node, so that a rollout waits for the old one to go; and the health planes are on the node's address."},
	{"not-restricted", Info, "The pod does not meet the restricted Pod Security Standard", "A namespace that enforces it refuses the pod."},

	// What was given.
	{"unknown-field", Warning, "A field that the API does not have", "A misspelt field is dropped without a word by older API servers, and its default counts."},
	{"duplicate-field", Warning, "A field that stands twice", "Readers differ in which of the two they take."},
	{"wrong-type", Error, "A value that the API server refuses", "The object cannot be applied."},
	{"retired-version", Warning, "An API version that is not served any more", "The object cannot be applied."},
	{"nothing-to-vet", Error, "No object with pods", "Nothing was compared, which is not the same as nothing being wrong."},
	{"not-rendered", Error, "A template that was not rendered", "What it says is known only once its values are filled in."},
	{"not-an-object", Error, "Not a Kubernetes object", "It cannot be compared with anything."},
	{"not-yaml", Error, "Not YAML", "It cannot be read."},
	{"not-text", Error, "Not a text", "It cannot be read."},
	{"too-large", Error, "Too large, or too deeply nested", "A manifest that kills its reader is not a manifest."},
	{"empty", Error, "Nothing in the file", "Mostly the command before the pipe has failed."},
}

var ruleIndex = func() map[string]int {
	m := make(map[string]int, len(rules))
	for i, r := range rules {
		m[r.ID] = i
	}
	return m
}()
