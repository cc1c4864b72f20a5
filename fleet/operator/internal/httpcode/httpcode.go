// Package httpcode is the one table between the codes of errors and the status
// of an HTTP answer, for REST and for the pages of the dashboard.
//
// Begin with [Of]; [Code] is the way back.
package httpcode

import (
	"net/http"

	"connectrpc.com/connect"
)

// statusClientClosed is the status that nginx logs when the caller disconnected.
const statusClientClosed = 499

// Of returns the HTTP status of a code, as google/rpc/code.proto has it.
func Of(c connect.Code) int {
	switch c {
	case connect.CodeCanceled:
		return statusClientClosed
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return http.StatusBadRequest
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists, connect.CodeAborted:
		return http.StatusConflict
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	}
	return http.StatusInternalServerError
}

// Code returns the code for an HTTP status with which the transcoder answered
// before it called a service.
func Code(status int) connect.Code {
	switch status {
	case http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusRequestEntityTooLarge:
		return connect.CodeInvalidArgument
	case http.StatusNotFound:
		return connect.CodeNotFound
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return connect.CodeUnimplemented
	case http.StatusForbidden:
		return connect.CodePermissionDenied
	}
	return connect.CodeUnknown
}
