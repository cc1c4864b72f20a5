// Command rival competes for a Lease with client-go's leader election, as most
// programs on Kubernetes do. It writes a line to stdout when it begins to lead, "lead"
// and the time, and one when it has ended its work, "lost" and the time. It ends when
// stdin ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	host := flag.String("host", "", "URL of the API server")
	ca := flag.String("ca", "", "file with its certificates")
	token := flag.String("token", "", "bearer token")
	namespace := flag.String("namespace", "", "of the lease")
	name := flag.String("lease", "", "its name")
	id := flag.String("id", "", "this holder's")
	lasts := flag.Duration("lasts", 15*time.Second, "how long the lease lasts")
	release := flag.Bool("release", true, "give the lease back at the end")
	flag.Parse()
	client, err := coordination.NewForConfig(&rest.Config{
		Host:            *host,
		BearerToken:     *token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: *ca},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	// The work ends before the lease is given back, as client-go asks for.
	go func() {
		<-ended
		say("lost")
		stop()
	}()
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: *id},
		},
		// The proportions of client-go's defaults: 15 s, 10 s, 2 s.
		LeaseDuration: *lasts, RenewDeadline: *lasts * 2 / 3, RetryPeriod: *lasts / 8,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say("lead") },
			OnStoppedLeading: func() {
				select {
				case <-ended:
				default:
					say("lost")
				}
			},
		},
		ReleaseOnCancel: *release,
	})
}

func say(what string) { fmt.Println(what, time.Now().UnixNano()) }
