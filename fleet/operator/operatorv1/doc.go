// Package operatorv1 is the operators' contract as Go messages. It is generated
// from proto/lifecycle/operator/v1 by "make generate".
package operatorv1

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Files returns the files of the contract. Together they declare its services.
func Files() []protoreflect.FileDescriptor {
	return []protoreflect.FileDescriptor{
		File_lifecycle_operator_v1_workflow_proto, File_lifecycle_operator_v1_worker_proto,
		File_lifecycle_operator_v1_process_proto, File_lifecycle_operator_v1_access_proto,
	}
}

// Comment returns what the contract says of one of its messages or fields, on one line; ""
// when it says nothing.
func Comment(d protoreflect.Descriptor) string {
	return comments[strings.TrimPrefix(string(d.FullName()), "lifecycle.operator.v1.")]
}
