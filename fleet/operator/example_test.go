package operator_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// A server on the loopback needs no credentials; every user of the machine is an
// operator there. The server serves the areas that its Config has.
func Example() {
	op, err := operator.New(operator.Config{
		Addr: "127.0.0.1:0",
		// Workflows: operator.FromManager(mgr),
		// Processes: operator.FromPresence(fleet),
		// Workers:   operator.FromHost(host),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(quiet))
	if err != nil {
		fmt.Println(err)
		return
	}
	app.Serve("operator", op.HTTPServer()).OnShutdown("operator", op.Close)
	done := make(chan error)
	go func() { done <- app.Run(context.Background()) }()
	<-app.Reached(lifecycle.PhaseRunning)

	resp, err := http.Get("http://" + app.Addr("operator").String() + "/whoami")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	fmt.Println(strings.ReplaceAll(string(text), " ", ""))

	app.Stop(nil)
	fmt.Println(<-done)
	http.DefaultClient.CloseIdleConnections()

	_, err = operator.New(operator.Config{Addr: ":8090"})
	fmt.Println(err)
	// Output:
	// {"name":"loopback","role":"operator","method":"loopback"}
	// <nil>
	// operator: :8090 can be reached from other machines and there is no Auth: set Auth (TokenFile, Certificates, Kubernetes, OIDC), or listen on 127.0.0.1
}
