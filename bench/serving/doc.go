// Package serving measures what an App's tracking of connections and requests
// costs a request, beyond what net/http takes.
package serving
