// Package workers measures supervision trees: what an idle worker costs, how
// fast one that fails is restarted, what is left after a million restarts, how
// long a large tree takes to stop, and what a process worker adds to os/exec.
package workers
