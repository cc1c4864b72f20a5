// Package operatorv1 is the operators' contract as Go messages. It is generated
// from proto/lifecycle/operator/v1/operator.proto by "make generate".
package operatorv1
