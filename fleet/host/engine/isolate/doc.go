// Package isolate runs hosted code in child processes. Code can end its child, and it
// cannot end the host. The floor is the containment that every child has.
//
// A [Children] makes an engine of another one. Each program of that engine has a
// child of its own, which starts for the first message, and ends when it has been
// idle, when its code breaks a limit of time or memory, or when it dies. The child
// is the program fleet/cmd/engine, or the host's own, whose main calls [Main] first.
//
// # The floor
//
// A launcher raises the floor and then becomes the child by execve(2), so that the
// floor holds from the child's first instruction. It needs no privileges:
//
//   - rlimits: memory (RLIMIT_DATA, for Python RLIMIT_AS), open files, no bytes in
//     files, no core files
//   - no_new_privs, no capabilities, a nice value
//   - a watch of the host, which ends a child with too many threads
//   - a seccomp filter: no new processes, no network, no signals to other processes,
//     no access to other processes, no shared memory, no namespaces
//   - Landlock: the code reads system libraries, and writes no file
//   - an environment that has nothing of the host's
//   - an inherited connection to the host
//
// [Children.Missing] says what the kernel does not have. docs/guides/hosted.md says
// who is trusted with what.
//
// Begin with program.go, the host's side of a child, and child.go, the child's own; batch.go
// has one question and its answers, launch_linux.go the floor. The package uses procpool,
// which runs the process.
package isolate
