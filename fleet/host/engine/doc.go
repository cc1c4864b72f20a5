// Package engine runs hosted code. An [Engine] makes a [Program] of bytes that
// arrived at run time, and the program handles one message after the other. Each
// engine is a package below this one. A [Registry] finds an engine by MIME type.
//
// The contract is the same for every language. Code gets a [Message] and a
// [State], and returns nothing, messages to publish, or an error. After an error
// the host tries the message again, within the worker's retry budget. After a
// [RejectError] it does not, and the message becomes a dead letter at once.
//
// The caller of a program may rely on three promises. Handle returns once its
// context ends, unless the runtime cannot interrupt code, as with functions of the
// process. Nothing that the code does panics in the caller. When the code
// breaks a limit, the error is a [LimitError], and the program can be called
// again.
//
// Begin with [Engine] and [Registry]. timers.go and http.go have what code may do besides,
// print.go bounds what it prints, and trust.go marks an engine whose code needs no child
// process. The package imports only the standard library.
package engine
