// Package serving measures the cost of an App's tracking of connections and requests
// per request, beyond net/http.
package serving
