package lifecycle_test

import (
	"context"
	"net/http"

	"github.com/pleme-io/lifecycle-go"
)

// A service under systemd's socket activation. systemd listens, also while the service
// is not there, so a restart refuses no connection. web.socket:
//
//	[Socket]
//	ListenStream=443
//	FileDescriptorName=web
//	Service=web.service
//
// health.socket is the same with another port, FileDescriptorName=health and the same
// Service. web.service:
//
//	[Service]
//	Type=notify
//	ExecStart=/usr/bin/web
//	Sockets=web.socket health.socket
func ExampleApp_Serve_socketActivation() {
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: "fd://health"})
	if err != nil {
		panic(err)
	}
	app.Serve("web", &http.Server{Addr: "fd://web"})
	lifecycle.Main(func() error { return app.Run(context.Background()) })
}
