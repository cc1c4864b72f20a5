// Package operatorv1 is the operators' contract as Go messages. It is generated
// from proto/lifecycle/operator/v1 by "make generate".
package operatorv1

import "google.golang.org/protobuf/reflect/protoreflect"

// Files returns the files of the contract. Together they declare its services.
func Files() []protoreflect.FileDescriptor {
	return []protoreflect.FileDescriptor{
		File_lifecycle_operator_v1_workflow_proto, File_lifecycle_operator_v1_worker_proto,
		File_lifecycle_operator_v1_process_proto, File_lifecycle_operator_v1_access_proto,
	}
}
