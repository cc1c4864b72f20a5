// Package operatorv1connect has the clients and handlers of the operators'
// contract. "make generate" generates it. Package client of fleet/operator makes
// clients with credentials.
package operatorv1connect
